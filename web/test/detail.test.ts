import { describe, expect, it } from "vitest";
import type { LogLine, Run } from "../src/api/client";
import { failedTask, isShown, problemOf, shownTab, shownTask, tabsOf } from "../src/runs/detail";
import { marked, placeOf, sought } from "../src/runs/logs";
import { folded, raised } from "../src/runs/traceback";
import { withinBounds } from "../src/ui/Panes";

const TRACEBACK = `Traceback (most recent call last):
  File "/app/.venv/lib/python3.11/site-packages/pyoco/core/engine.py", line 523, in _execute_task
    result = task.func(**kwargs)
             ^^^^^^^^^^^^^^^^^^^
  File "/app/.venv/lib/python3.11/site-packages/pyoco_server/engine/tasks.py", line 175, in call
    result = function(*args, **kwargs)
  File "/app/flows/shop.py", line 89, in rate
    raise LookupError(f"no rate for {name}")
LookupError: no rate for XTS
and more words
`;

describe("a traceback", () => {
  it("begins with what failed, then where, the last frame first", () => {
    const [found] = raised(TRACEBACK);
    expect(found?.error).toBe("LookupError: no rate for XTS\nand more words");
    expect(found?.frames.map((frame) => [frame.name, frame.line, frame.isLibrary])).toEqual([
      ["rate", 89, false],
      ["call", 175, true],
      ["_execute_task", 523, true],
    ]);
    expect(found?.frames[0]?.code).toBe('raise LookupError(f"no rate for {name}")');
    expect(found?.frames[2]?.code).toBe("result = task.func(**kwargs)");
  });

  it("folds frames of libraries that follow each other", () => {
    const parts = folded(raised(TRACEBACK)[0]!.frames);
    expect(parts.map((part) => (Array.isArray(part) ? part.length : part.name))).toEqual(["rate", 2]);
  });

  it("has the exception that was raised last before its cause", () => {
    const cause = TRACEBACK.replace("LookupError: no rate for XTS\nand more words", "KeyError: 'XTS'").trimEnd();
    for (const words of [
      "During handling of the above exception, another exception occurred:",
      "The above exception was the direct cause of the following exception:",
    ]) {
      const errors = raised(`${cause}\n\n${words}\n\n${TRACEBACK}`).map((one) => one.error.split("\n")[0]);
      expect(errors).toEqual(["LookupError: no rate for XTS", "KeyError: 'XTS'"]);
    }
  });

  it("is left as it is where it is none", () => {
    expect(raised("Segmentation fault")).toEqual([]);
  });
});

describe("what a run shows", () => {
  const run = {
    status: "FAILED",
    tasks: { load: "SUCCEEDED", rate: "FAILED" },
    failure: { kind: "error", message: "LookupError: x", task: "rate", traceback: "T" },
    error: "LookupError: x",
    task_records: { rate: { error: "x", traceback: "own" } },
  } as unknown as Run;

  it("is the task that failed, unless another one or the whole is chosen", () => {
    expect(failedTask(run)).toBe("rate");
    expect(shownTask(run, {})).toBe("rate");
    expect(shownTask(run, { task: "load" })).toBe("load");
    expect(shownTask(run, { task: "gone" })).toBe("rate");
    expect(shownTask(run, { whole: "1" })).toBeNull();
    expect(shownTask({ ...run, status: "COMPLETED" }, {})).toBeNull();
  });

  it("has an error where something failed, and opens it", () => {
    expect(problemOf(run, "rate")).toEqual({ text: "x", traceback: "own" });
    expect(problemOf(run, "load")).toBeNull();
    expect(problemOf(run, null)).toEqual({ text: "LookupError: x", traceback: "T" });
    expect(shownTab(undefined, tabsOf(true, false))).toBe("error");
    expect(shownTab("log", tabsOf(true, false))).toBe("log");
    expect(shownTab("error", tabsOf(false, false))).toBe("log");
    expect(shownTab("artifacts", tabsOf(false, false))).toBe("log");
    expect(shownTab("artifacts", tabsOf(true, true))).toBe("artifacts");
  });

  it("has the tasks that a filter leaves", () => {
    const left = (text: string, onlyFailed: boolean) =>
      Object.keys(run.tasks).filter((task) => isShown(run, task, text, onlyFailed));
    expect([left("", false), left("LO", false), left("", true), left("lo", true)]).toEqual([
      ["load", "rate"],
      ["load"],
      ["rate"],
      [],
    ]);
  });
});

describe("a log", () => {
  const line = (n: number, text: string, more: Partial<LogLine> = {}) =>
    ({ attempt: 1, n, text, stream: "stdout", ...more }) as LogLine;
  const lines = [
    line(0, "2026-11-18 INFO start"),
    line(1, "WARNING: slow", { stream: "stderr" }),
    line(2, "cut", { cut_lines: 9, cut_bytes: 90 }),
    line(3, "app ERROR no errors here"),
  ];
  const found = (text: string, kind: Parameters<typeof sought>[2]) => sought(lines, text, kind).map((one) => one.n);

  it("is searched by text, stream and level; where it was cut it shows", () => {
    expect(found("", "all")).toEqual([0, 1, 2, 3]);
    expect(found("SLOW", "all")).toEqual([1, 2]);
    expect(found("", "stderr")).toEqual([1, 2]);
    expect(found("", "warnings")).toEqual([1, 2, 3]);
    expect(found("", "errors")).toEqual([2, 3]);
  });

  it("marks what is sought, whatever its letters mean elsewhere", () => {
    expect(marked("a(b) A(B)", "a(")).toEqual(["", "a(", "b) ", "A(", "B)"]);
  });

  it("names its lines as they are counted by people", () => {
    expect(placeOf({ attempt: 2, n: 41 })).toBe("2.42");
  });
});

it("panes stay wide enough to be used", () => {
  expect([10, 33.4, 99, Number.NaN].map(withinBounds)).toEqual([25, 33, 75, 50]);
});
