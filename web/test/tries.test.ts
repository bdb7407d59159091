import { describe, expect, it } from "vitest";
import type { Run, RunStatus } from "../src/api/client";
import { keepable, pauses, retriedKinds, shownTries, startsAt, waitsFrom } from "../src/runs/tries";

const policy: NonNullable<Run["retry"]> = {
  max_attempts: 3,
  backoff_sec: 5,
  factor: 2,
  max_backoff_sec: 3600,
  jitter: 0.1,
  on: ["error", "timeout", "crash"],
};
const failed = (n: number): Run["tries"][number] => ({
  n,
  started_at: n,
  ended_at: n + 1,
  worker_id: null,
  failure: { kind: "error", message: "no", task: null, traceback: null },
});

describe("a run that waits for its time", () => {
  it("starts then, and counts down only until then", () => {
    const run = { status: "PENDING" as RunStatus, not_before: 100 };
    expect(startsAt(run, 99)).toBe(100);
    expect(startsAt(run, 100)).toBeNull();
    expect(startsAt({ ...run, not_before: null }, 0)).toBeNull();
    expect(startsAt({ ...run, status: "CANCELLED" }, 0)).toBeNull();
  });
});

describe("the wait for a worker", () => {
  it("begins when the run may start", () => {
    expect(waitsFrom({ submitted_at: 10, not_before: null }, 20)).toBe(10);
    expect(waitsFrom({ submitted_at: 10, not_before: 15 }, 20)).toBe(15);
    expect(waitsFrom({ submitted_at: 10, not_before: 30 }, 20)).toBeNull();
    expect(waitsFrom({ submitted_at: null, not_before: null }, 20)).toBeNull();
  });
});

describe("tries", () => {
  it("are shown unless the error of the run is all there is", () => {
    expect(shownTries({ tries: [failed(1)], retry: null, status: "FAILED" })).toEqual([]);
    expect(shownTries({ tries: [failed(1)], retry: policy, status: "FAILED" })).toHaveLength(1);
    expect(shownTries({ tries: [failed(1)], retry: policy, status: "PENDING" })).toHaveLength(1);
    expect(shownTries({ tries: [], retry: policy, status: "COMPLETED" })).toEqual([]);
  });

  it("come after longer and longer waits", () => {
    expect(pauses(policy)).toBe("5 s, 10 s");
    expect(pauses({ ...policy, max_attempts: 9, max_backoff_sec: 15 })).toBe("5 s, 10 s, 15 s, 15 s …");
  });

  it("name what is retried only where not everything is", () => {
    expect(retriedKinds(policy)).toBeNull();
    expect(retriedKinds({ ...policy, on: ["timeout"] })).toEqual(["timeout"]);
  });

  it("of a retry by hand may keep what succeeded", () => {
    const tasks = { a: "SUCCEEDED" as const, b: "FAILED" as const };
    expect(keepable({ status: "FAILED", tasks })).toBe(1);
    expect(keepable({ status: "COMPLETED", tasks: { a: "SUCCEEDED" } })).toBe(0);
    expect(keepable({ status: "FAILED", tasks: { b: "FAILED" } })).toBe(0);
  });
});
