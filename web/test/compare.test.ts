import { describe, expect, it } from "vitest";
import type { Run } from "../src/api/client";
import { pairsOf } from "../src/runs/compare";

type Given = [state: "SUCCEEDED" | "FAILED" | "RUNNING", start: number | null, ms: number | null];

function runOf(tasks: Record<string, Given>): Run {
  const entries = Object.entries(tasks);
  return {
    tasks: Object.fromEntries(entries.map(([name, [state]]) => [name, state])),
    task_records: Object.fromEntries(
      entries.map(([name, [, started_at, duration_ms]]) => [name, { started_at, duration_ms }]),
    ),
  } as unknown as Run;
}

describe("two runs", () => {
  const pairs = pairsOf(
    runOf({ b: ["SUCCEEDED", 2, 1000], a: ["SUCCEEDED", 1, 100], same: ["SUCCEEDED", 3, 1000] }),
    runOf({
      b: ["SUCCEEDED", 9, 3000],
      a: ["SUCCEEDED", 8, 140],
      same: ["FAILED", 10, 1010],
      only: ["RUNNING", 11, null],
    }),
  );

  it("are compared task by task, in the order of the first", () =>
    expect(pairs.map(({ task }) => task)).toEqual(["a", "b", "same", "only"]));

  it("differ where one took notably longer, ended otherwise, or has no such task", () => {
    expect(pairs.map(({ times, differs }) => [times, differs])).toEqual([
      [null, false], // 40 ms are noise
      [3, true],
      [null, true],
      [null, true],
    ]);
    expect(pairs[3]!.sides).toEqual([
      { state: null, seconds: null },
      { state: "RUNNING", seconds: null },
    ]);
  });
});
