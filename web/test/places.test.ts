import { describe, expect, it } from "vitest";
import { type Run, url } from "../src/api/client";
import { link, readPlace } from "../src/app/router";
import { readSettings } from "../src/app/settings";
import { merged, ofTask } from "../src/runs/logs";
import { asCommand, asCurl, readParams, readTags, submissionOf } from "../src/runs/submission";
import { newer } from "../src/runs/useRun";
import { tokens } from "../src/ui/JsonValue";
import { readName } from "../src/wheels/upload";

describe("addresses", () => {
  it("lead back to where they came from", () => {
    const place = { path: ["runs", "a/b ?#"], query: { flow: "x&y=z", tag: "%" } };
    expect(readPlace(link(place.path, place.query))).toEqual(place);
  });

  it("leave out what is not set, and survive nonsense", () => {
    expect(link(["runs"], { status: undefined, flow: "", tag: null })).toBe("#/runs");
    expect(readPlace("#/runs/%E0%A4%A")).toEqual({ path: ["runs", "%E0%A4%A"], query: {} });
    expect(readPlace("")).toEqual({ path: [], query: {} });
  });

  it("of the API have their values in them, encoded", () => {
    expect(url("/runs/{run_id}/logs", { path: { run_id: "a/../b" }, query: { limit: 5, task: "" } })).toBe(
      "/runs/a%2F..%2Fb/logs?limit=5",
    );
    expect(url("/runs", { query: { include: ["full", "all"] } })).toBe("/runs?include=full&include=all");
  });
});

describe("what the server tells the page", () => {
  it("has defaults", () => {
    expect(readSettings('{"lang":"ja","auth":"api_key"}')).toMatchObject({ lang: "ja", auth: "api_key" });
    expect(readSettings("nonsense")).toMatchObject({ lang: "en", auth: "none", api_key_header: "X-API-Key" });
  });
});

describe("a run as a command", () => {
  const submission = submissionOf({ flow_name: "it's", params: { x: "$HOME" } as never, tag: "cpu", tags: ["a", "b"] });

  it("is quoted for the shell, and shows no key", () => {
    expect(asCurl(submission, "http://h:1", "X-API-Key")).toBe(
      `curl http://h:1/runs -H "X-API-Key: $PYOCO_API_KEY" -H 'Content-Type: application/json' -d ` +
        `'{"flow_name":"it'\\''s","params":{"x":"$HOME"},"tag":"cpu","tags":["a","b"]}'`,
    );
    expect(asCommand(submission, "http://h:1", false)).toBe(
      `pyoco-client submit --flow-name 'it'\\''s' --params '{"x":"$HOME"}' --tag cpu --tags a,b --server http://h:1`,
    );
    expect(asCommand(submission, "http://h:1", true)).toMatch(/ --api-key "\$PYOCO_API_KEY"$/);
  });

  it("takes params that are an object and nothing else", () => {
    expect(readParams(" ", "")).toEqual({});
    expect(readParams('{"a":[1]}', "")).toEqual({ a: [1] });
    expect(() => readParams("[1]", "an object")).toThrow("an object");
    expect(() => readParams("{", "an object")).toThrow();
    expect(readTags(" a, ,b ")).toEqual(["a", "b"]);
  });
});

describe("a run that is seen by two ways", () => {
  const seen = (status: Run["status"], updated_at: number, more: Partial<Run> = {}) =>
    ({ status, updated_at, ...more }) as Run;

  it("never goes back", () => {
    expect(newer(seen("COMPLETED", 5), seen("RUNNING", 4)).status).toBe("COMPLETED");
    expect(newer(seen("COMPLETED", 5), seen("RUNNING", 5)).status).toBe("COMPLETED");
    expect(newer(seen("RUNNING", 5), seen("COMPLETED", 5)).status).toBe("COMPLETED");
    expect(newer(null, seen("RUNNING", 5)).status).toBe("RUNNING");
  });

  it("keeps what only one of them tells", () => {
    expect(newer(seen("RUNNING", 5, { worker_alive: true }), seen("RUNNING", 6)).worker_alive).toBe(true);
  });

  it("forgets why it waited when it has changed", () => {
    const waits = seen("PENDING", 5, { waiting_for: { limit: "api", key: "", position: 2 } });
    expect(newer(waits, seen("PENDING", 5)).waiting_for).toEqual(waits.waiting_for);
    expect(newer(waits, seen("PENDING", 6)).waiting_for).toBeUndefined();
  });
});

describe("logs", () => {
  const lineOf = (n: number, task = "t", attempt = 1) => ({
    attempt,
    n,
    task,
    stream: "stdout",
    text: `${n}\n`,
    ts: n,
  });

  it("of two sources are in order, each line once", () => {
    const both = merged([lineOf(0), lineOf(2)], [lineOf(1), lineOf(2), lineOf(0, "t", 2)]);
    expect(both.map((line) => [line.attempt, line.n])).toEqual([
      [1, 0],
      [1, 1],
      [1, 2],
      [2, 0],
    ]);
    expect(merged([lineOf(0)], [lineOf(1)])).toHaveLength(2);
  });

  it("can be those of a task", () => {
    expect(ofTask([lineOf(0, "a"), lineOf(1, "b")], "b")).toHaveLength(1);
    expect(ofTask([lineOf(0, "a"), lineOf(1, "b")], null)).toHaveLength(2);
  });
});

describe("values", () => {
  it("in colour are the same text", () => {
    const text = JSON.stringify(
      { key: 'a "quoted" : 1', n: -1.5e3, ok: true, no: null, deep: [{ "k:": "v" }] },
      null,
      2,
    );
    const found = tokens(text);
    expect(found.map((token) => token.text).join("")).toBe(text);
    expect(found.filter((token) => token.kind === "key")).toHaveLength(6);
    expect(found.filter((token) => token.kind === "number").map((token) => token.text)).toEqual(["-1500"]);
  });

  it("of a wheel's name are what people call it", () => {
    expect(readName("my_flows-1.2-py3-none-any.whl")).toEqual({ package: "my-flows", version: "1.2" });
  });
});
