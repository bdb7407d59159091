import { describe, expect, it } from "vitest";
import type { RunSummary, Schemas, Worker } from "../src/api/client";
import { servedQueues } from "../src/fleet/queues";
import { needsOf, type Standing } from "../src/overview/attention";
import { ceiling } from "../src/overview/EndedChart";
import { grouped, signature } from "../src/overview/failures";
import {
  changeOf,
  countsOf,
  failuresByFlow,
  figuresOf,
  firstBar,
  p95Of,
  pointsOf,
  RANGES,
  rangeOf,
  type Stats,
  type StatsPoint,
  slotsOf,
} from "../src/overview/series";
import { rateText } from "../src/overview/Tiles";

const NOW = 1_800_000_030;

function point(at: number, count: number, wait: number | null = null): StatsPoint {
  const quantiles = { p50: wait, p95: wait, p99: wait };
  return { at, count, wait: quantiles, duration: quantiles };
}

function stats(series: Record<string, StatsPoint[]>): Stats {
  const found = Object.entries(series).map(([key, points]) => ({ key, points }));
  return { by: "status", bucket: "minute", since: 0, until: NOW, series: found };
}

describe("a range", () => {
  it.each(Object.entries(RANGES))("of %s ends with the bar that is being filled", (_, range) => {
    const from = firstBar(range, NOW);
    expect(from % range.step).toBe(0);
    expect(from + range.sec).toBeGreaterThan(NOW);
    expect(from + range.sec - range.step).toBeLessThanOrEqual(NOW);
  });

  it("is an hour unless another one is chosen", () => {
    expect([undefined, "7d", "toString", "2h"].map(rangeOf)).toEqual(["1h", "7d", "1h", "1h"]);
  });
});

describe("bars", () => {
  const range = RANGES["1h"];
  const from = firstBar(range, NOW);

  it("have every run that ended in their time, once", () => {
    const found = stats({
      COMPLETED: [point(from - 60, 9), point(from, 2, 1), point(from + 3540, 5, 3)],
      FAILED: [point(from, 1, 2)],
    });
    const slots = slotsOf(found, range, from);
    expect(slots).toHaveLength(60);
    expect(slots[0]).toMatchObject({ COMPLETED: 2, FAILED: 1, CANCELLED: 0, all: 3, wait: 2 });
    expect(slots.at(-1)).toMatchObject({ COMPLETED: 5, all: 5 });
    expect(slots[1]).toMatchObject({ all: 0, wait: null });
    expect(countsOf(found, "COMPLETED", range, from).reduce((sum, n) => sum + n, 0)).toBe(7);
  });

  it("gather four hours in a week", () => {
    const week = RANGES["7d"];
    const start = firstBar(week, NOW);
    const found = stats({ FAILED: [0, 1, 2, 3, 4].map((n) => point(start + n * 3600, 1)) });
    expect(
      slotsOf(found, week, start)
        .map((one) => one.FAILED)
        .slice(0, 3),
    ).toEqual([4, 1, 0]);
  });

  it.each([
    [0, 4],
    [3, 4],
    [53, 60],
    [101, 200],
    [9999, 10_000],
  ])("up to %d stand below %d", (most, top) => expect(ceiling(most)).toBe(top));
});

describe("figures", () => {
  it("count success among the runs that were not cancelled", () => {
    const found = stats({ COMPLETED: [point(0, 3)], FAILED: [point(0, 1)], CANCELLED: [point(60, 6)] });
    expect(figuresOf(found, 0, 600)).toMatchObject({ all: 10, failed: 1, success: 0.75, perMin: 1 });
    expect(figuresOf(found, 600, 1200)).toMatchObject({ all: 0, success: null, wait: null });
  });

  it("show what failed even if it is little", () => {
    expect([1, 0.99999, 0.5, null].map(rateText)).toEqual(["100 %", "99.9 %", "50.0 %", "–"]);
  });

  it("have the p95 of one bucket exactly, and of several in between", () => {
    const busy = { at: 0, count: 100, wait: { p50: 1, p95: 8, p99: 9 }, duration: point(0, 0).duration };
    expect(p95Of([busy])).toBe(8);
    expect(p95Of([busy, point(60, 1000, 2)])).toBe(2);
    expect(p95Of([])).toBeNull();
  });

  it("change against the time before, for better or worse", () => {
    expect(changeOf(15, 10, "less")).toEqual({ text: "+50 %", isGood: false });
    expect(changeOf(5, 10, "less")).toEqual({ text: "−50 %", isGood: true });
    expect(changeOf(10, 10, "more")).toEqual({ text: "±0 %", isGood: null });
    expect(changeOf(5, 0, "more")).toBeNull();
    expect(pointsOf(0.985, 0.99)).toEqual({ text: "−0.5 pt", isGood: false });
    expect(pointsOf(null, 0.99)).toBeNull();
  });
});

describe("flows by failures", () => {
  const all = stats({ good: [point(0, 9)], bad: [point(0, 4), point(60, 6)], worse: [point(60, 3)] });
  const failed = stats({ bad: [point(0, 1), point(60, 1)], worse: [point(60, 3)] });

  it("begin with the most", () => {
    expect(failuresByFlow(all, failed, 0)).toEqual([
      { flow: "worse", failed: 3, all: 3 },
      { flow: "bad", failed: 2, all: 10 },
    ]);
  });

  it("are those since a time", () => {
    expect(failuresByFlow(all, failed, 60).map((one) => [one.flow, one.failed])).toEqual([
      ["worse", 3],
      ["bad", 1],
    ]);
  });
});

describe("what needs attention", () => {
  const nothing: Standing = { flows: [], queues: [], workers: [], waits: null, undelivered: [] };
  const queue = { tag: "gpu", waiting: 6, running: 0, paused: null, oldest_wait_sec: 41, workers: 0 };
  const queues = servedQueues([{ ...queue, throughput_per_min: 0 }], []);

  it("is nothing while all is well", () => {
    expect(needsOf(nothing)).toEqual([]);
    expect(needsOf({ ...nothing, flows: [{ flow: "a", failed: 2, all: 2 }] })).toEqual([]);
    expect(needsOf({ ...nothing, flows: [{ flow: "a", failed: 3, all: 100 }] })).toEqual([]);
    expect(needsOf({ ...nothing, waits: { items: [], cursor: null } })).toEqual([]);
  });

  it("is a flow that fails, a queue without a worker, a lost worker, a channel and a question", () => {
    const worker = { worker_id: "node-7", state: "DISCONNECTED", last_heartbeat_at: 5 } as Worker;
    const wait = (at: number) => ({ waiting_at: at }) as Schemas["Wait"];
    const delivery = (error: string) => ({ channel: "ops", last_error: error }) as Schemas["DeliveryView"];
    const needs = needsOf({
      flows: [{ flow: "score", failed: 9, all: 14 }],
      queues,
      workers: [worker],
      waits: { items: [wait(9), wait(4)], cursor: "more" },
      undelivered: [delivery("HTTP 500"), delivery("timed out")],
    });
    expect(needs).toEqual([
      { kind: "flow", flow: "score", failed: 9, all: 14 },
      { kind: "queue", tag: "gpu", n: 6, oldest: 41 },
      { kind: "worker", worker: "node-7", at: 5 },
      { kind: "delivery", channel: "ops", n: 2, error: "HTTP 500" },
      { kind: "waits", n: 2, isMore: true, oldest: 4 },
    ]);
  });

  it("is a pause only while runs wait for its end", () => {
    const paused = { since: 1, reason: null, until: null };
    const of = (waiting: number) => servedQueues([{ ...queue, waiting, paused, throughput_per_min: 0 }], []);
    expect(needsOf({ ...nothing, queues: of(6) })).toEqual([{ kind: "paused", tag: "gpu", n: 6 }]);
    expect(needsOf({ ...nothing, queues: of(0) })).toEqual([]);
  });
});

describe("failures", () => {
  const run = (run_id: string, error: string, flow_name = "a") => ({ run_id, error, flow_name }) as RunSummary;

  it("with other numbers in the same words are the same", () => {
    expect(signature("order 1043 not found\nmore")).toBe(signature("order 9 not found"));
    expect(signature("run 0190aaaa-bbbb-7ccc")).toBe("run #");
    expect(signature("no rate for XTS")).not.toBe(signature("no rate for EUR"));
    expect(signature("bad cafe")).toBe("bad cafe");
  });

  it("are grouped, the newest first, with all their flows", () => {
    const found = grouped([run("3", "order 3"), run("2", "timeout", "b"), run("1", "order 1", "c")]);
    expect(found.map((one) => [one.newest.run_id, one.n, one.flows])).toEqual([
      ["3", 2, ["a", "c"]],
      ["2", 1, ["b"]],
    ]);
  });
});
