import { describe, expect, it } from "vitest";
import type { ExecutionEvent, ExecutionSummary } from "../src/api/client";
import { place } from "../src/drawing/layout";
import { asCommand, asCurl, readJson } from "../src/executions/commands";
import {
  type Definition,
  framesOf,
  idIn,
  isAsking,
  lookOf,
  picture,
  problemsIn,
  shortCondition,
} from "../src/executions/graphs/definition";
import { compare, filtersOf, progressOf, refreshed, standing, withOlder } from "../src/executions/list";
import { appended, isKnown, momentOf, moved, nodeOf, saying, toneOfEvent } from "../src/executions/travel";
import en from "../src/i18n/en.json";

const summary = (id: string, created_at: number, more: Partial<ExecutionSummary> = {}) =>
  ({ execution_id: id, created_at, status: "ACTIVE", ...more }) as ExecutionSummary;
const ids = (rows: readonly ExecutionSummary[]) => rows.map((row) => row.execution_id).join("");

describe("the list of executions", () => {
  it("has its filters in the address, and ignores nonsense there", () => {
    expect(filtersOf({ status: "FAILED", graph: "g", archived: "1" })).toEqual({
      status: "FAILED",
      graph: "g",
      archived: "1",
    });
    expect(filtersOf({ status: "RUNNING", graph: "", archived: "yes" })).toEqual({});
  });

  it("takes over what is new, what changed and what is gone, and keeps older pages", () => {
    const known = [summary("d", 4), summary("c", 3), summary("b", 2), summary("a", 1)];
    const newest = [summary("e", 5), summary("d", 4, { status: "FAILED" }), summary("b", 2)];
    const rows = refreshed(known, newest);
    expect(ids(rows)).toBe("edba");
    expect(rows[1]?.status).toBe("FAILED");
    expect(refreshed(known, [])).toEqual([]);
  });

  it("gets a page once, in the server's order", () => {
    expect(ids(withOlder([summary("c", 3), summary("b", 2)], [summary("b", 2), summary("a", 1)]))).toBe("cba");
    expect(ids([summary("a", 1), summary("b", 1)].sort(compare))).toBe("ba");
  });

  it("says in one word what an execution is doing: who is needed comes first", () => {
    const active = { status: "ACTIVE" as const, started_at: 1, cancel_requested_at: null, fail_requested_at: null };
    expect(standing(active, false)).toBe("ACTIVE");
    expect(standing(active, true)).toBe("WAITING");
    expect(standing({ ...active, started_at: null }, false)).toBe("CREATED");
    expect(standing({ ...active, fail_requested_at: 2 }, true)).toBe("FAILING");
    expect(standing({ ...active, fail_requested_at: 2, cancel_requested_at: 3 }, true)).toBe("CANCELLING");
    expect(standing({ ...active, status: "CANCELED", cancel_requested_at: 3 }, true)).toBe("CANCELED");
  });

  it("counts nodes that have ended, however they did", () => {
    expect(progressOf({ SUCCEEDED: 2, FAILED: 1, CANCELED: 1, IDLE: 3, RUNNING: 1 })).toEqual({ done: 4, total: 8 });
    expect(progressOf({})).toEqual({ done: 0, total: 0 });
  });
});

describe("time travel", () => {
  it("reads the moment from the address; anything else is now", () => {
    expect(momentOf("3", 9)).toBe(3);
    for (const text of [undefined, "", "0", "-1", "9", "10", "1.5", "x"]) expect(momentOf(text, 9)).toBeNull();
  });

  it("goes back and forth between the first event and now", () => {
    expect(moved(null, 9, -1)).toBe(8);
    expect(moved(8, 9, 1)).toBeNull();
    expect(moved(null, 9, 1)).toBeNull();
    expect(moved(1, 9, -1)).toBe(1);
    expect(moved(5, 9, 0)).toBe(5);
    expect(moved(9, 9, 0)).toBeNull();
  });

  const event = (sequence: number, type = "NODE_READY", payload: Record<string, unknown> = {}) =>
    ({ sequence, type, payload }) as unknown as ExecutionEvent;

  it("has every event once and in order, however often a stream begins again", () => {
    const known = appended([], [event(1), event(2)]);
    expect(appended(known, [event(2), event(4), event(3)]).map((one) => one.sequence)).toEqual([1, 2, 3, 4]);
    expect(appended(known, [event(1)])).toBe(known);
  });

  it("tells of each event which node it is about and what it says", () => {
    expect(nodeOf(event(1, "NODE_READY", { node_id: "a" }))).toBe("a");
    expect(nodeOf(event(1, "EXECUTION_FAILED", { failed_node_id: "b" }))).toBe("b");
    expect(nodeOf(event(1, "EXECUTION_STARTED"))).toBeNull();
    expect(saying(event(1, "NODE_WAITING", { prompt: "Close?", wait_key: "k" }))).toBe("Close?");
    expect(saying(event(1, "NODE_FAILED", { error: { message: "boom" } }))).toBe("boom");
    expect(saying(event(1, "NODE_PROGRESS_REPORTED", { progress: 40 }))).toBe("40 %");
    expect(saying(event(1, "NODE_SUCCEEDED", { output: { ok: true } }))).toBe('{"ok":true}');
    expect(saying(event(1, "EXECUTION_STARTED"))).toBe("");
  });

  it("colours what needs somebody, what failed, what was cancelled", () => {
    expect(toneOfEvent("NODE_WAITING")).toBe("waiting");
    expect(toneOfEvent("EXECUTION_FAIL_REQUESTED")).toBe("bad");
    expect(toneOfEvent("NODE_INTERRUPT_REQUESTED")).toBe("warn");
    expect(toneOfEvent("EXECUTION_COMPLETED")).toBe("good");
    expect(toneOfEvent("NODE_READY")).toBe("quiet");
  });

  it("has a word for each type of events, and leaves a newer one as it is", () => {
    const words = Object.keys(en)
      .filter((key) => key.startsWith("event."))
      .map((key) => key.slice("event.".length));
    expect(words).toHaveLength(27);
    expect(words.every(isKnown)).toBe(true);
    expect(isKnown("NODE_PAUSED")).toBe(false);
  });
});

describe("an execution as a command", () => {
  const started = { graph_id: "close", graph_version: 3, input: { ym: "it's" } as never };

  it("is quoted for the shell, names the version, and shows no key", () => {
    expect(asCurl(started, "http://h:1", "X-API-Key")).toBe(
      `curl http://h:1/executions -H "X-API-Key: $PYOCO_API_KEY" -H 'Content-Type: application/json' -d ` +
        `'{"graph_id":"close","graph_version":3,"input":{"ym":"it'\\''s"}}'`,
    );
    expect(asCommand({ ...started, input: null as never }, "http://h:1", false)).toBe(
      "pyoco-client executions create close --graph-version 3 --server http://h:1",
    );
  });

  it("takes any JSON as input, or none", () => {
    expect(readJson(" ")).toBeUndefined();
    expect(readJson("null")).toBeNull();
    expect(readJson('{"a":[1]}')).toEqual({ a: [1] });
    expect(() => readJson("{")).toThrow(SyntaxError);
  });
});

const NESTED: Definition = {
  id: "nested",
  nodes: {
    begin: { type: "task" },
    outer: { type: "fork" },
    a: { type: "task" },
    inner: { type: "fork" },
    b: { type: "task" },
    c: { type: "task", external: true },
    meet: { type: "join" },
    gather: { type: "join" },
    ask: { type: "wait" },
  },
  edges: [
    { from: "begin", to: "outer" },
    { from: "outer", to: "a" },
    { from: "outer", to: "inner" },
    { from: "inner", to: "b" },
    { from: "inner", to: "c" },
    { from: "b", to: "meet" },
    { from: "c", to: "meet" },
    { from: "a", to: "gather" },
    { from: "meet", to: "gather" },
    { from: "gather", to: "ask", when: "nodes.b.output.ok == true" },
    { from: "begin", to: "ask", on: "failure" },
    { from: "begin", to: "ask" },
  ],
};

describe("the picture of a graph", () => {
  const drawn = picture(NESTED, null, (kind) => kind, "on failure");

  it("frames each join with its nearest fork and what lies between", () => {
    const frames = Object.fromEntries(framesOf(NESTED).map((frame) => [frame.id, [...frame.nodes].sort()]));
    expect(frames["frame meet"]).toEqual(["b", "c", "inner", "meet"]);
    expect(frames["frame gather"]).toEqual(["a", "b", "c", "gather", "inner", "meet", "outer"]);
  });

  it("keeps the frame of one inside that of the other, with its own nodes in it and no others", () => {
    const placed = place(drawn.nodes, drawn.edges, undefined, drawn.frames);
    const boxes = new Map([...placed.frames, ...placed.nodes].map((box) => [box.id, box]));
    const isIn = (one: string, other: string) => {
      const [a, b] = [boxes.get(one)!, boxes.get(other)!];
      return a.x >= b.x && a.y >= b.y && a.x + a.width <= b.x + b.width && a.y + a.height <= b.y + b.height;
    };
    expect(placed.frames).toHaveLength(2);
    expect(isIn("frame meet", "frame gather")).toBe(true);
    for (const frame of drawn.frames) {
      for (const node of Object.keys(NESTED.nodes))
        expect(isIn(node, frame.id), `${node} ${frame.id}`).toBe(frame.nodes.includes(node));
    }
  });

  it("leaves out a frame that would cross another", () => {
    const frames = [
      { id: "one", nodes: ["begin", "outer", "a"] },
      { id: "two", nodes: ["a", "inner"] },
    ];
    expect(place(drawn.nodes, drawn.edges, undefined, frames).frames.map((frame) => frame.id)).toEqual(["one"]);
  });

  it("draws two edges between the same nodes as two, and marks what they are", () => {
    const placed = place(drawn.nodes, drawn.edges, undefined, drawn.frames);
    const both = placed.edges.filter((edge) => edge.from === "begin" && edge.to === "ask");
    expect(both).toHaveLength(2);
    expect(both[0]!.path).not.toBe(both[1]!.path);
    expect(both.map((edge) => edge.label)).toEqual(["on failure", undefined]);
    expect(placed.edges.find((edge) => edge.from === "gather")).toMatchObject({ label: "b.ok == true" });
    expect(placed.edges.find((edge) => edge.from === "gather")!.labelAt!.width).toBeGreaterThan(40);
  });

  it("shows states and ways of an execution, and none in a plan", () => {
    expect(drawn.nodes.every((node) => node.state === null)).toBe(true);
    const state = {
      nodes: { begin: { status: "SUCCEEDED" }, ask: { status: "WAITING" }, a: { status: "IDLE" } },
      edges: ["taken", "not taken", "failed", "canceled", "broken"].map((fate) => ({ fate })),
    };
    const now = picture(NESTED, state as never, (kind) => kind, "");
    const states = Object.fromEntries(now.nodes.map((node) => [node.id, node.state]));
    expect(states).toMatchObject({ begin: "SUCCEEDED", ask: "WAITING", a: "UNREACHED", outer: "UNREACHED" });
    expect(now.edges.slice(0, 6).map((edge) => edge.fate)).toEqual([
      "taken",
      "untaken",
      "failed",
      "untaken",
      "failed",
      "open",
    ]);
    expect(lookOf("IDLE")).toBe("UNREACHED");
  });

  it("leads from a node to the one that undoes it, taken once it has begun to", () => {
    const plan = { id: "g", nodes: { a: { type: "task", undo: "b" }, b: { type: "task" } }, edges: [] } as const;
    const undo = (state: unknown) =>
      picture({ ...plan, edges: [] }, state as never, (kind) => kind, "", "undo").edges.map((edge) => [
        edge.from,
        edge.to,
        edge.label,
        edge.fate,
      ]);
    expect(undo(null)).toEqual([["a", "b", "undo", "open"]]);
    expect(undo({ nodes: { b: { status: "RUNNING", undoes: "a" } } })).toEqual([["a", "b", "undo", "taken"]]);
  });

  it("asks for nobody while a node sleeps", () => {
    expect(isAsking({ status: "WAITING", wake_at: null })).toBe(true);
    expect(isAsking({ status: "WAITING", wake_at: 5 })).toBe(false);
  });

  it("knows a graph's kinds of nodes", () => {
    const kinds = Object.fromEntries(drawn.nodes.map((node) => [node.id, node.kind?.name]));
    expect(kinds).toMatchObject({ begin: undefined, outer: "fork", meet: "join", ask: "wait", c: "external" });
  });
});

describe("a pasted graph", () => {
  it("tells its own id, in YAML and in JSON", () => {
    expect(idIn("# a graph\nid: monthly-close\nnodes: {}\n")).toBe("monthly-close");
    expect(idIn('{\n  "id": "close",\n  "nodes": {}\n}')).toBe("close");
    expect(idIn("nodes: {}")).toBe("");
  });

  it("that is refused has one line per problem, also where a problem has a semicolon", () => {
    const detail =
      "graph x: node a has neither flow nor external: true; say who carries it out; edge a → c: to: there is no node 'c'; and 3 more";
    expect(problemsIn(detail)).toEqual([
      "node a has neither flow nor external: true; say who carries it out",
      "edge a → c: to: there is no node 'c'",
      "and 3 more",
    ]);
  });

  it("has conditions that are short enough to be read", () => {
    expect(shortCondition("nodes.approve.output.ok == true && nodes.x-1.output > 2")).toBe(
      "approve.ok == true && x-1 > 2",
    );
  });
});
