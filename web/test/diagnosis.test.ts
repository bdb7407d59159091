import { describe, expect, it } from "vitest";
import type { Run } from "../src/api/client";
import { changesOf, hasSummary, isShown, toneOf } from "../src/runs/diagnosis";

const RUN = {
  run_id: "r",
  status: "PENDING",
  attempt: null,
  tries: [],
  not_before: null,
  updated_at: 1,
} as unknown as Run;

describe("a diagnosis", () => {
  it("is read again when the state of the run changes, not with every heartbeat", () => {
    const same = { ...RUN, updated_at: 2, heartbeat_at: 2, tasks: { load: "RUNNING" } } as Run;
    expect(changesOf(same)).toBe(changesOf(RUN));
    for (const change of [
      { status: "RUNNING" },
      { attempt: 2 },
      { tries: [{ n: 1 }] },
      { waiting_for: { limit: "one", position: 1 } },
      { worker_alive: false },
    ]) {
      expect(changesOf({ ...RUN, ...change } as Run)).not.toBe(changesOf(RUN));
    }
  });

  it("is shown unless the page says the same, and a sentence about a time is left to the countdown", () => {
    expect((["running", "completed", "cancelled"] as const).filter(isShown)).toEqual([]);
    expect((["busy", "error", "paused", "expired"] as const).every(isShown)).toBe(true);
    expect([hasSummary("delayed"), hasSummary("next_try"), hasSummary("crash")]).toEqual([false, false, true]);
  });

  it("is loud where something failed", () => {
    expect([toneOf("busy"), toneOf("paused"), toneOf("worker_lost")]).toEqual(["", "tone-warn", "tone-bad"]);
  });
});
