import type { Run, Schemas } from "../api/client";

export type Cause = Schemas["Cause"];

/** The rest of the page says these. */
const PLAIN: readonly Cause[] = ["running", "completed", "cancelled"];
/** These start at a time that the page counts down to, while a sentence grows old. */
const TIMED: readonly Cause[] = ["delayed", "next_try"];
const WAITING: readonly Cause[] = ["no_worker", "busy", "limit", ...TIMED];

/** What a diagnosis depends on. A heartbeat or a finished task is no reason to ask again. */
export function changesOf(run: Run): string {
  const { run_id, status, attempt, tries, not_before, waiting_for, worker_alive } = run;
  return JSON.stringify([run_id, status, attempt, tries.length, not_before, waiting_for, worker_alive]);
}

export function isShown(cause: Cause): boolean {
  return !PLAIN.includes(cause);
}

export function hasSummary(cause: Cause): boolean {
  return !TIMED.includes(cause);
}

export function toneOf(cause: Cause): string {
  if (cause === "paused") return "tone-warn";
  return WAITING.includes(cause) ? "" : "tone-bad";
}
