import { describe, expect, it } from "vitest";
import type { TaskRecord, TaskState } from "../src/api/client";
import { ticks, timeline } from "../src/runs/timeline";

function record(started_at: number | null, ended_at: number | null, state: TaskState = "SUCCEEDED"): TaskRecord {
  return {
    state,
    started_at,
    ended_at,
    duration_ms: null,
    error: null,
    traceback: null,
    inputs: null,
    output: null,
    artifacts: null,
    reusable: null,
  };
}

describe("bars", () => {
  const run = {
    start_time: 100,
    end_time: 110,
    tasks: { late: "SUCCEEDED", never: "PENDING", first: "SUCCEEDED" } as Record<string, TaskState>,
    task_records: { late: record(105, 110), first: record(100, 104), never: record(null, null, "PENDING") },
  };

  it("stand in the order the tasks began; what never began comes last, without a bar", () => {
    const drawn = timeline(run, 999);
    expect(drawn.bars.map((bar) => [bar.task, bar.left, bar.width])).toEqual([
      ["first", 0, 0.4],
      ["late", 0.5, 0.5],
      ["never", null, 0],
    ]);
    expect(drawn.span).toBe(10);
  });

  it("of a running task grow until now, and stay inside", () => {
    const running = {
      start_time: 100,
      end_time: null,
      tasks: { t: "RUNNING" as const },
      task_records: { t: record(102, null, "RUNNING") },
    };
    const [bar] = timeline(running, 104).bars;
    expect([bar?.left, bar?.width, bar?.seconds]).toEqual([0.5, 0.5, 2]);
  });

  it("survive clocks that differ and records that are gone", () => {
    const odd = {
      start_time: 100,
      end_time: 101,
      tasks: { early: "SUCCEEDED" as const, gone: "SUCCEEDED" as const },
      task_records: { early: record(99, 98) },
    };
    const drawn = timeline(odd, 0);
    for (const bar of drawn.bars) {
      expect(bar.width).toBeGreaterThanOrEqual(0);
      expect((bar.left ?? 0) + bar.width).toBeLessThanOrEqual(1);
    }
    const nothing = { start_time: null, end_time: null, tasks: { t: "PENDING" as const }, task_records: null };
    expect(timeline(nothing, 5)).toEqual({
      bars: [{ task: "t", state: "PENDING", left: null, width: 0, seconds: null, isKept: false }],
      ticks: [],
      span: 0,
    });
  });

  it("leave out what was kept of an earlier run, which comes first", () => {
    const retried = {
      ...run,
      kept_tasks: ["old"],
      tasks: { ...run.tasks, old: "SUCCEEDED" as const },
      task_records: { ...run.task_records, old: record(1, 2) },
    };
    const drawn = timeline(retried, 999);
    expect(drawn.bars[0]).toEqual({
      task: "old",
      state: "SUCCEEDED",
      left: null,
      width: 0,
      seconds: null,
      isKept: true,
    });
    expect(drawn.span).toBe(10);
    expect(timeline({ ...retried, start_time: null, task_records: {} }, 0).bars[0]?.isKept).toBe(true);
  });

  it("of 200 tasks are all there", () => {
    const names = Array.from({ length: 200 }, (_, n) => `t${n}`);
    const many = {
      start_time: 0,
      end_time: 200,
      tasks: Object.fromEntries(names.map((name) => [name, "SUCCEEDED" as const])),
      task_records: Object.fromEntries(names.map((name, n) => [name, record(n, n + 1)])),
    };
    expect(timeline(many, 0).bars.map((bar) => bar.task)).toEqual(names);
  });
});

describe("ticks", () => {
  it.each([
    [0.003, [0, 0.001, 0.002, 0.003]],
    [4.7, [0, 1, 2, 3, 4]],
    [59, [0, 10, 20, 30, 40, 50]],
    [300, [0, 60, 120, 180, 240, 300]],
    [7200, [0, 1800, 3600, 5400, 7200]],
  ])("of %s s are round", (span, expected) => {
    const found = ticks(span, 6).map((tick) => Number(tick.seconds.toFixed(4)));
    expect(found).toEqual(expected);
  });

  it("are never many, whatever the span", () => {
    for (let span = 0.001; span < 1e7; span *= 1.7) {
      const found = ticks(span, 6);
      expect(found.length).toBeLessThanOrEqual(7);
      expect(found.at(-1)!.at).toBeLessThanOrEqual(1 + 1e-9);
    }
  });
});
