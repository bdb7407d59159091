/** Two runs beside each other: what went in, how long each task took, what came out. */
import type { Json, Run, TaskState } from "../api/client";

export interface Side {
  state: TaskState | null;
  /** Null: it did not end, or did not start. */
  seconds: number | null;
}

export interface TaskPair {
  task: string;
  sides: readonly [Side, Side];
  /** How many times as long the second took; null: it cannot be said. */
  times: number | null;
  differs: boolean;
}

/** Less than this is noise. */
const NOTABLE_SEC = 0.05;
const NOTABLE_TIMES = 1.2;

function sideOf(run: Run, task: string): Side {
  const record = run.task_records?.[task];
  const { started_at, ended_at, duration_ms } = record ?? {};
  const took = duration_ms != null ? duration_ms / 1000 : started_at && ended_at ? ended_at - started_at : null;
  return { state: run.tasks[task] ?? null, seconds: took };
}

/** In the order in which the first run began them, then what only the second has. */
export function pairsOf(one: Run, other: Run): TaskPair[] {
  const start = (run: Run, task: string) => run.task_records?.[task]?.started_at ?? Number.POSITIVE_INFINITY;
  const names = [...new Set([...Object.keys(one.tasks), ...Object.keys(other.tasks)])];
  const began = (task: string) => (task in one.tasks ? start(one, task) : start(other, task));
  return names
    .sort((a, b) => began(a) - began(b) || (a < b ? -1 : 1))
    .map((task) => pair(task, [sideOf(one, task), sideOf(other, task)]));
}

function pair(task: string, sides: readonly [Side, Side]): TaskPair {
  const [a, b] = sides;
  const times = a.seconds && b.seconds ? b.seconds / a.seconds : null;
  const isSlower = times !== null && Math.abs(b.seconds! - a.seconds!) >= NOTABLE_SEC;
  const isNotable = isSlower && (times >= NOTABLE_TIMES || times <= 1 / NOTABLE_TIMES);
  return { task, sides, times: isNotable ? times : null, differs: a.state !== b.state || isNotable };
}

/** What is compared as JSON. */
export function valuesOf(run: Run): { [part in "params" | "result"]: Json } {
  return { params: (run.params ?? null) as Json, result: (run.result ?? null) as Json };
}
