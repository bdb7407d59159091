/** What a run did before, may do again, and waits for. */
import type { Run, RunSummary } from "../api/client";
import { tickLabel } from "../format";

/** When a run that waits for its time starts; null: it does not, or its time has come. */
export function startsAt(run: Pick<RunSummary, "status" | "not_before">, now: number): number | null {
  const isWaiting = run.status === "PENDING" && run.not_before !== null && run.not_before > now;
  return isWaiting ? run.not_before : null;
}

/** Since when it waits for a worker: not while it waits for its time. Null: it does not wait yet. */
export function waitsFrom(run: Pick<Run, "submitted_at" | "not_before">, now: number): number | null {
  const notBefore = run.not_before ?? 0;
  return notBefore > now ? null : Math.max(run.submitted_at ?? 0, notBefore) || null;
}

/** The tries, where there is more to show than the run's own error. */
export function shownTries(run: Pick<Run, "tries" | "retry" | "status">): Run["tries"] {
  const isOnly = run.tries.length === 1 && run.status === "FAILED" && (run.retry?.max_attempts ?? 1) === 1;
  return isOnly ? [] : run.tries;
}

type Policy = NonNullable<Run["retry"]>;

/** The waits between the tries: `5 s, 10 s, 20 s, 40 s …`. */
export function pauses(retry: Policy, most = 4): string {
  const waits = Array.from({ length: Math.min(retry.max_attempts - 1, most) }, (_, n) =>
    tickLabel(Math.min(retry.backoff_sec * retry.factor ** n, retry.max_backoff_sec)),
  );
  return retry.max_attempts - 1 > most ? `${waits.join(", ")} …` : waits.join(", ");
}

const RETRIED = 3;

/** The kinds of failures that are retried; null: all that can be. */
export function retriedKinds(retry: Policy): Policy["on"] | null {
  return retry.on.length < RETRIED ? retry.on : null;
}

/** How many tasks a retry from the failed ones would keep; whether it may is up to the server. */
export function keepable(run: Pick<Run, "status" | "tasks">): number {
  if (run.status === "COMPLETED") return 0;
  return Object.values(run.tasks).filter((state) => state === "SUCCEEDED").length;
}
