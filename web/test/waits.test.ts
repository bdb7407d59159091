import { describe, expect, it } from "vitest";
import type { ExecutionEvent, Wait } from "../src/api/client";
import type { Definition } from "../src/executions/graphs/definition";
import { badge, fieldsRead, groupsOf, skeleton, withComment, yesOrNo } from "../src/executions/waits/answer";
import { answerIn } from "../src/executions/waits/refusal";
import { countdown } from "../src/format";

const graph = (...conditions: string[]): Definition => ({
  id: "g",
  // biome-ignore lint/suspicious/noTemplateCurlyInString: the syntax of graphs
  nodes: { ask: { type: "wait" }, after: { type: "task", params: { who: "${nodes.ask.output.who}" } } },
  edges: conditions.map((when) => ({ from: "ask", to: "after", when })),
});
const plain: Definition = { id: "g", nodes: { ask: { type: "wait" } }, edges: [] };

describe("an answer", () => {
  it("has the fields that the graph reads of it", () => {
    expect(fieldsRead(plain, "ask")).toEqual([]);
    expect(fieldsRead(null, "ask")).toEqual([]);
    expect(fieldsRead(graph("nodes.ask.output.approved == true", "nodes.ask.output.approved == false"), "ask")).toEqual(
      ["approved", "who"],
    );
    expect(
      fieldsRead({ ...plain, edges: [{ from: "ask", to: "x", when: "nodes.ask.output == true" }] }, "ask"),
    ).toEqual([""]);
    expect(
      fieldsRead({ ...plain, edges: [{ from: "ask", to: "x", when: 'nodes["ask-1"].output.ok' }] }, "ask-1"),
    ).toEqual(["ok"]);
    expect(fieldsRead(graph("nodes.asking.output.x == 1"), "ask")).toEqual(["who"]);
  });

  it("is yes or no where that is all there is to say", () => {
    expect(yesOrNo([], true)).toEqual({ ok: true });
    expect(yesOrNo(["approved"], false)).toEqual({ approved: false });
    expect(yesOrNo([""], true)).toBe(true);
    expect(yesOrNo(["approved", "who"], true)).toBeNull();
  });

  it("begins with what was asked for, else with the fields", () => {
    expect(JSON.parse(skeleton(["a"], { b: 1 }))).toEqual({ b: 1 });
    expect(JSON.parse(skeleton(["a", "", "c"], null))).toEqual({ a: null, c: null });
    expect(JSON.parse(skeleton([], null))).toEqual({ ok: true });
  });
});

describe("a deadline", () => {
  it("is counted down, and more urgent when it is near", () => {
    expect(countdown(10_000, 0)).toEqual({ text: "2h 46m", urgency: "calm" });
    expect(countdown(3000, 3)).toEqual({ text: "49m 57s", urgency: "soon" });
    expect(countdown(100, 94.2)).toEqual({ text: "5 s", urgency: "soon" });
    expect(countdown(100, 165)).toEqual({ text: "1m 05s", urgency: "late" });
    expect(countdown(100, 100)).toMatchObject({ urgency: "late" });
  });
});

describe("the badge", () => {
  it("is short", () => {
    expect(badge(3, false)).toBe("3");
    expect(badge(100, false)).toBe("99+");
    expect(badge(50, true)).toBe("99+");
  });
});

describe("a refused answer", () => {
  const event = (type: string, node_id: string, id: string | null, data: unknown) =>
    ({ type, payload: { node_id, data }, actor: { kind: "user", id } }) as unknown as ExecutionEvent;

  it("names who answered what", () => {
    const events = [event("NODE_RESUMED", "ask", "mika", { ok: false }), event("NODE_SUCCEEDED", "ask", null, null)];
    expect(answerIn(events, "ask")).toEqual({ who: "mika", data: { ok: false } });
    expect(answerIn([event("NODE_RESUMED", "ask", null, 1)], "ask")?.who).toBe("user");
  });

  it("has no answer where the node ended otherwise", () => {
    expect(answerIn([event("NODE_FAILED", "ask", null, null)], "ask")).toBeNull();
  });
});

describe("the inbox", () => {
  const wait = (node_id: string, waiting_at: number, deadline: number | null) =>
    ({ node_id, waiting_at, deadline }) as unknown as Wait;

  it("is grouped by deadlines, the next first; without one the oldest first", () => {
    const day = 86_400;
    const waits = [
      wait("n2", 5, null),
      wait("n1", 4, null),
      wait("far", 1, 9 * day),
      wait("b", 1, 70),
      wait("a", 2, 60),
    ];
    const groups = groupsOf([...waits, wait("late", 1, 40)], 50);
    expect(groups.map(({ group, waits: some }) => [group, some.map((one) => one.node_id)])).toEqual([
      ["overdue", ["late"]],
      ["soon", ["a", "b"]],
      ["later", ["far"]],
      ["none", ["n1", "n2"]],
    ]);
  });

  it("takes a comment where the answer has a place for it", () => {
    expect(withComment({ ok: true }, " fine ")).toEqual({ ok: true, comment: "fine" });
    expect(withComment({ ok: true }, " ")).toEqual({ ok: true });
    expect(withComment(true, "fine")).toBe(true);
  });
});
