/** Where the bars of a timeline stand. */
import type { Run, TaskRecord, TaskState } from "../api/client";

export interface Bar {
  task: string;
  state: TaskState;
  /** Fractions of the whole width; null: it has not started. */
  left: number | null;
  width: number;
  seconds: number | null;
  /** Its output is that of an earlier run; here it did not run. */
  isKept: boolean;
}

export interface Tick {
  at: number;
  seconds: number;
}

export interface Timeline {
  bars: Bar[];
  ticks: Tick[];
  span: number;
}

type Part = Pick<Run, "tasks" | "task_records" | "start_time" | "end_time"> & Partial<Pick<Run, "kept_tasks">>;
const STEPS = [1, 2, 5, 10, 15, 30, 60];

export function timeline(run: Part, now: number, maxTicks = 6): Timeline {
  const kept = new Set(run.kept_tasks);
  // The times of kept tasks are those of the run that they ran in.
  const records = Object.fromEntries(Object.entries(run.task_records ?? {}).filter(([task]) => !kept.has(task)));
  const starts = Object.values(records).flatMap((record) => record.started_at ?? []);
  const from = Math.min(run.start_time ?? Infinity, ...starts);
  const waiting = Object.entries(run.tasks).map(([task, state]) => notStarted(task, state, kept.has(task)));
  if (!Number.isFinite(from)) return { bars: waiting.sort(byStart), ticks: [], span: 0 };
  const ends = Object.values(records).flatMap((record) => record.ended_at ?? []);
  const to = Math.max(run.end_time ?? now, from, ...ends);
  const span = Math.max(to - from, 0.001);
  const bars = waiting.map((bar) => drawn(bar, records[bar.task], from, span, run.end_time ?? now));
  return { bars: bars.sort(byStart), ticks: ticks(span, maxTicks), span };
}

function notStarted(task: string, state: TaskState, isKept: boolean): Bar {
  return { task, state, left: null, width: 0, seconds: null, isKept };
}

function drawn(bar: Bar, record: TaskRecord | undefined, from: number, span: number, until: number): Bar {
  const started = record?.started_at;
  if (started == null) return bar;
  const seconds = Math.max(0, (record?.ended_at ?? until) - started);
  const left = (started - from) / span;
  return { ...bar, left, width: Math.min(seconds / span, 1 - left), seconds };
}

/** Kept ones first, then as they began; what has not begun comes last, by name. */
function byStart(a: Bar, b: Bar): number {
  if (a.isKept !== b.isKept) return a.isKept ? -1 : 1;
  if (a.left !== null && b.left !== null && a.left !== b.left) return a.left - b.left;
  if ((a.left === null) !== (b.left === null)) return a.left === null ? 1 : -1;
  return a.task < b.task ? -1 : 1;
}

/** Round figures, few enough to be read. */
export function ticks(span: number, max: number): Tick[] {
  const step = roundStep(Math.max(span / max, 0.001)); // labels are in milliseconds
  const count = Math.floor(span / step + 1e-9);
  return Array.from({ length: count + 1 }, (_, n) => ({ at: (n * step) / span, seconds: n * step }));
}

function roundStep(atLeast: number): number {
  let unit = atLeast < 1 ? 10 ** Math.floor(Math.log10(atLeast)) : 1;
  for (;;) {
    const steps = unit < 1 ? [1, 2, 5, 10] : STEPS;
    const found = steps.find((step) => step * unit >= atLeast);
    if (found !== undefined) return found * unit;
    unit *= unit < 1 ? 10 : 60;
  }
}
