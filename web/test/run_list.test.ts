import { describe, expect, it } from "vitest";
import type { RunSummary } from "../src/api/client";
import {
  applied,
  compare,
  filtersOf,
  firstPage,
  isMore,
  LIVE_ROWS,
  matches,
  released,
  withPage,
} from "../src/runs/list";

function run(id: string, updated_at: number, more: Partial<RunSummary> = {}): RunSummary {
  return {
    run_id: id,
    flow_name: "f",
    status: "RUNNING",
    tag: "default",
    tags: null,
    updated_at,
    heartbeat_at: updated_at,
    submitted_at: updated_at,
    start_time: null,
    end_time: null,
    worker_id: null,
    attempt: null,
    error: null,
    cancel_requested_at: null,
    tasks_total: 0,
    tasks_done: 0,
    tenant_id: null,
    api_key_id: null,
    workflow_yaml_sha256: null,
    workflow_yaml_bytes: null,
    execution_id: null,
    node_id: null,
    schedule_id: null,
    due_at: null,
    not_before: null,
    instance_id: null,
    parent_run_id: null,
    ...more,
  };
}

const ids = (list: { rows: readonly RunSummary[] }) => list.rows.map((one) => one.run_id);
const NONE = {};

describe("a change of the list", () => {
  const list = firstPage([run("c", 3), run("b", 2), run("a", 1)], null);

  it("moves a run that changed to the top and keeps the others", () => {
    const next = applied(list, { items: [run("a", 4, { status: "COMPLETED" })], removed: [] }, NONE, false);
    expect(ids(next)).toEqual(["a", "c", "b"]);
    expect(next.rows[0]?.status).toBe("COMPLETED");
  });

  it("brings in a new run", () => {
    expect(ids(applied(list, { items: [run("d", 5)], removed: [] }, NONE, false))).toEqual(["d", "c", "b", "a"]);
  });

  it("does not bring back what is older than what is known", () => {
    const next = applied(list, { items: [run("c", 2, { status: "PENDING" })], removed: [] }, NONE, false);
    expect(next.rows[0]).toEqual(run("c", 3));
  });

  it("takes out what was removed", () => {
    expect(ids(applied(list, { items: [], removed: ["b"] }, NONE, false))).toEqual(["c", "a"]);
  });

  it("takes out what no longer matches the filters, and leaves others outside", () => {
    const filters = { status: "RUNNING" as const };
    const change = { items: [run("c", 4, { status: "FAILED" }), run("x", 5, { status: "FAILED" })], removed: [] };
    expect(ids(applied(list, change, filters, false))).toEqual(["b", "a"]);
  });

  it("orders equal times by id, as the server does", () => {
    expect([run("a", 1), run("b", 1)].sort(compare).map((one) => one.run_id)).toEqual(["b", "a"]);
  });

  it("does not bring in what belongs to a page that was not asked for", () => {
    const paged = firstPage([run("c", 3), run("b", 2)], "cursor");
    const next = applied(paged, { items: [run("old", 1), run("new", 9)], removed: [] }, NONE, false);
    expect(ids(next)).toEqual(["new", "c", "b"]);
  });
});

describe("while somebody reads further down", () => {
  const list = firstPage([run("c", 3), run("b", 2)], null);

  it("rows keep their places, their content is brought up to date, new ones are held back", () => {
    const change = { items: [run("b", 8, { status: "FAILED" }), run("d", 9)], removed: [] };
    const held = applied(list, change, NONE, true);
    expect(ids(held)).toEqual(["c", "b"]);
    expect(held.rows[1]?.status).toBe("FAILED");
    expect([...held.held.keys()]).toEqual(["d"]);
  });

  it("everything falls into place when it is asked for", () => {
    const filters = { status: "RUNNING" as const };
    const change = { items: [run("b", 8, { status: "FAILED" }), run("d", 9)], removed: [] };
    const free = released(applied(list, change, filters, true), filters);
    expect(ids(free)).toEqual(["d", "c"]);
    expect(free.held.size).toBe(0);
  });

  it("forgets a held run that was removed or stopped matching", () => {
    const filters = { status: "RUNNING" as const };
    const one = applied(list, { items: [run("d", 9), run("e", 10)], removed: [] }, filters, true);
    const two = applied(one, { items: [run("e", 11, { status: "FAILED" })], removed: ["d"] }, filters, true);
    expect(two.held.size).toBe(0);
  });
});

describe("pages", () => {
  it("a run that moved between two pages is shown once, as it is now", () => {
    const list = firstPage([run("a", 9, { status: "COMPLETED" }), run("c", 3)], "next");
    const both = withPage(list, [run("a", 1), run("b", 2)], null);
    expect(ids(both)).toEqual(["a", "c", "b"]);
    expect(both.rows[0]?.status).toBe("COMPLETED");
    expect(both.cursor).toBeNull();
  });
});

describe("filters", () => {
  it("come from the address; what is not a status is none", () => {
    expect(filtersOf({ status: "FAILED", flow: "etl", tag: "" })).toEqual({
      status: "FAILED",
      flow: "etl",
      tag: undefined,
    });
    expect(filtersOf({ status: "<b>" }).status).toBeUndefined();
  });

  it("find a run by its routing tag and by its own tags", () => {
    expect(matches(run("a", 1, { tag: "cpu", tags: ["eu"] }), { tag: "eu" })).toBe(true);
    expect(matches(run("a", 1, { tag: "cpu", tags: ["eu"] }), { tag: "cpu" })).toBe(true);
    expect(matches(run("a", 1, { tag: "cpu", tags: ["eu"] }), { tag: "us" })).toBe(false);
  });
});

describe("a list that is open for hours", () => {
  const many = (n: number, at: number) => Array.from({ length: n }, (_, i) => run(`r${at}-${i}`, at + i / 1000));

  it("keeps the newest rows and no more", () => {
    let list = firstPage(many(50, 1), "next");
    for (let at = 2; at < 20; at++) list = applied(list, { items: many(50, at), removed: [] }, NONE, false);
    expect(list.rows).toHaveLength(LIVE_ROWS);
    expect(list.rows[0]!.run_id).toBe("r19-49");
    expect(isMore(list)).toBe(true);
    expect(list.cursor).toBeNull(); // a cursor of before would lead behind rows that were cut off
  });

  it("does not cut what somebody has scrolled to while nothing new comes", () => {
    const list = withPage(firstPage(many(100, 2), "next"), many(100, 1), "more");
    const next = applied(list, { items: [run("r1-5", 1.005, { status: "COMPLETED" })], removed: ["r1-6"] }, NONE, true);
    expect(next.rows).toHaveLength(199);
    expect(next.isTrimmed).toBe(false);
  });

  it("keeps back no more than it could show", () => {
    let list = firstPage(many(50, 1), "next");
    for (let at = 2; at < 20; at++) list = applied(list, { items: many(50, at), removed: [] }, NONE, true);
    expect(list.held.size).toBe(LIVE_ROWS);
    expect(released(list, NONE).rows[0]!.run_id).toBe("r19-49");
  });
});
