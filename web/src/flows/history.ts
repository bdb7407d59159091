/** The tasks of the last runs of a flow, as a grid. */
import { useEffect, useState } from "preact/hooks";
import { get, type Run, type RunSummary, type Schemas, type TaskState } from "../api/client";

/** More cells than these are no easier to read, and make the page slow. */
const CELLS = 1000;

export interface Grid {
  tasks: string[];
  /** Oldest first. */
  columns: { run: RunSummary; states: Readonly<Record<string, TaskState>> }[];
  /** Tasks that have no place. */
  left: number;
}

type Told = Pick<Run, "tasks" | "task_dependencies">;

/** Tasks in the order in which they follow each other, by the newest run that has them. */
export function gridOf(newestFirst: readonly RunSummary[], told: ReadonlyMap<string, Told>): Grid {
  const names = new Set<string>();
  for (const run of newestFirst) for (const task of ordered(told.get(run.run_id))) names.add(task);
  const most = Math.max(10, Math.floor(CELLS / Math.max(newestFirst.length, 1)));
  const tasks = [...names].slice(0, most);
  const columns = newestFirst.map((run) => ({ run, states: told.get(run.run_id)?.tasks ?? {} })).reverse();
  return { tasks, columns, left: names.size - tasks.length };
}

function ordered(run: Told | undefined): string[] {
  if (!run) return [];
  const needs = run.task_dependencies ?? {};
  const found = new Set<string>();
  const open = new Set<string>();
  const visit = (task: string): void => {
    if (found.has(task) || open.has(task)) return;
    open.add(task);
    for (const before of needs[task] ?? []) visit(before);
    found.add(task);
  };
  for (const task of Object.keys(run.tasks).sort()) visit(task);
  return [...found].filter((task) => task in run.tasks);
}

const known = new Map<string, { at: number; run: Run }>();
const KEPT = 400;

/** So few are read one by one: whole runs are large. */
const FEW = 3;

function isNew({ run_id, updated_at }: RunSummary): boolean {
  return (known.get(run_id)?.at ?? 0) < updated_at;
}

async function readAll(rows: readonly RunSummary[], signal: AbortSignal): Promise<void> {
  // With `updated_after` the answer is a page; without it, a bare array.
  const query = { flow: rows[0]!.flow_name, limit: rows.length, include: ["full" as const], updated_after: 0 };
  const page = (await get("/runs", { query, signal })) as Schemas["RunPage"];
  for (const run of page.items as unknown as Run[]) known.set(run.run_id, { at: run.updated_at, run });
}

async function read(rows: readonly RunSummary[], signal: AbortSignal): Promise<void> {
  if (rows.filter(isNew).length > FEW) await readAll(rows, signal);
  const reads = rows.filter(isNew).map(async ({ run_id, updated_at }) => {
    known.set(run_id, { at: updated_at, run: await get("/runs/{run_id}", { path: { run_id }, signal }) });
  });
  await Promise.allSettled(reads); // one that is gone has no column
}

/** The runs of a flow themselves: in one request, and again those that have changed. */
export function useRuns(rows: readonly RunSummary[]): ReadonlyMap<string, Run> {
  const [, redraw] = useState(0);
  const key = rows.map((row) => `${row.run_id} ${row.updated_at}`).join();
  useEffect(() => {
    const reading = new AbortController();
    const { signal } = reading;
    const done = () => {
      for (const old of [...known.keys()].slice(0, Math.max(0, known.size - KEPT))) known.delete(old);
      if (!signal.aborted) redraw((n) => n + 1);
    };
    // An outage shows in the pill, and the next change reads again.
    read(rows, signal).then(done, () => undefined);
    return () => reading.abort();
  }, [key]);
  return new Map(rows.flatMap(({ run_id }) => (known.has(run_id) ? [[run_id, known.get(run_id)!.run]] : [])));
}
