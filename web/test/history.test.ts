import { describe, expect, it } from "vitest";
import { gridOf } from "../src/flows/history";
import { aRun } from "./builders";

const told = (tasks: string[], needs: Record<string, string[]> | null = null) => ({
  tasks: Object.fromEntries(tasks.map((task) => [task, "SUCCEEDED" as const])),
  task_dependencies: needs,
});

describe("the history of a flow", () => {
  const runs = [aRun("new", 3), aRun("gone", 2), aRun("old", 1)];

  it("has tasks in the order in which they follow each other, and the runs oldest first", () => {
    const grid = gridOf(
      runs,
      new Map([
        ["new", told(["a", "z", "m"], { a: ["m"], m: ["z"], z: [] })],
        ["old", told(["b", "z"])],
      ]),
    );
    expect(grid.tasks).toEqual(["z", "m", "a", "b"]);
    expect(grid.columns.map(({ run }) => run.run_id)).toEqual(["old", "gone", "new"]);
    expect(grid.columns[0]!.states).toEqual({ b: "SUCCEEDED", z: "SUCCEEDED" });
    expect(grid.columns[1]!.states).toEqual({});
  });

  it("survives dependencies in a circle, and leaves out what does not fit", () => {
    expect(gridOf([runs[0]!], new Map([["new", told(["a", "b"], { a: ["b"], b: ["a"] })]])).tasks).toHaveLength(2);
    const many = Array.from({ length: 1500 }, (_, n) => `t${n}`);
    expect(gridOf([runs[0]!], new Map([["new", told(many)]])).left).toBe(500);
  });
});
