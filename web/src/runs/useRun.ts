import { get, type LogLine, type Run, type RunStatus } from "../api/client";
import type { LiveEvent, Reading, Subject } from "../live/live";
import { useLive } from "../live/useLive";
import { merged, stored } from "./logs";

const TERMINAL: readonly RunStatus[] = ["COMPLETED", "FAILED", "CANCELLED"];

export function isEnded(run: Pick<Run, "status">): boolean {
  return TERMINAL.includes(run.status);
}

/** The newer of two snapshots of a run. They come by two ways, and may overtake each other. */
export function newer(known: Run | null, found: Run): Run {
  if (known === null) return found;
  const isOlder = found.updated_at < known.updated_at || (isEnded(known) && !isEnded(found));
  if (isOlder) return known;
  // Whether its worker is alive and why it waits are only read; a pushed snapshot does not contain them.
  const waitsNoMore = found.updated_at > known.updated_at;
  return { ...known, ...(waitsNoMore && { waiting_for: undefined }), ...found };
}

interface RunState {
  run: Run | null;
  lines: LogLine[];
  /** Behind the last stored line that was read. */
  cursor: string;
}

/** The most that the server returns at once. */
const PAGE_LINES = 10_000;
/** Whether its worker is alive is not pushed. */
const WORKER_MS = 10_000;
const EMPTY: RunState = { run: null, lines: [], cursor: "0" };

function isOver({ run }: RunState): boolean {
  return run !== null && isEnded(run);
}

function apply(known: RunState, { name, data }: LiveEvent): RunState {
  if (name === "snapshot") return { ...known, run: newer(known.run, (data as { snapshot: Run }).snapshot) };
  if (name === "log") return { ...known, lines: merged(known.lines, (data as { lines: LogLine[] }).lines) };
  return known;
}

function runSubject(id: string): Subject<RunState> {
  const path = { run_id: id };

  async function readRun({ signal, change }: Reading<RunState>): Promise<void> {
    const run = await get("/runs/{run_id}", { path, query: { include: ["records" as const] }, signal });
    change((known) => ({ ...known, run: newer(known.run, run) }));
  }

  /** The lines stored since the last time, to the end. */
  async function readLines({ signal, state, change }: Reading<RunState>): Promise<void> {
    for (let hasMore = true; hasMore; ) {
      const query = { limit: PAGE_LINES, cursor: state().cursor };
      const found = await get("/runs/{run_id}/logs", { path, query, signal });
      hasMore = found.has_more;
      change((known) => ({ ...known, cursor: found.next_cursor, lines: merged(known.lines, found.lines) }));
    }
    change((known) => (isOver(known) ? { ...known, lines: stored(known.lines) } : known));
  }

  return {
    everyMs: WORKER_MS,
    read: async (reading) => {
      await readRun(reading);
      await readLines(reading);
    },
    watch: { path: "/runs/{run_id}/watch", options: { path, query: { include: "records" } }, apply, isOver },
  };
}

/** A run with its records and its log, kept up to date until it has ended. */
export function useRun(id: string) {
  const { state, error } = useLive(id, runSubject(id), () => EMPTY);
  return { run: state.run, lines: state.lines, error };
}
