import { useEffect, useState } from "preact/hooks";
import { ApiError, get, type LogLine, type Run, type RunStatus } from "../api/client";
import { follow } from "../live/stream";
import { merged, stored } from "./logs";

const TERMINAL: readonly RunStatus[] = ["COMPLETED", "FAILED", "CANCELLED"];

export function isEnded(run: Pick<Run, "status">): boolean {
  return TERMINAL.includes(run.status);
}

/** The newer of two sights of a run. They come by two ways, and may overtake each other. */
export function newer(known: Run | null, found: Run): Run {
  if (known === null) return found;
  const isOlder = found.updated_at < known.updated_at || (isEnded(known) && !isEnded(found));
  // What is known of the worker comes with a read only; a pushed snapshot does not say.
  return isOlder ? known : { ...known, ...found };
}

export interface FollowedRun {
  run: Run | null;
  lines: LogLine[];
  isLive: boolean;
  error: Error | null;
}

/** The most that the server gives at once. */
const PAGE_LINES = 10_000;
/** Whether its worker is alive is not pushed. */
const WORKER_MS = 10_000;

/** A run with its records and its log, kept up to date until it has ended. */
export function useRun(id: string): FollowedRun {
  const [run, setRun] = useState<Run | null>(null);
  const [lines, setLines] = useState<LogLine[]>([]);
  const [isLive, setLive] = useState(false);
  const [error, setError] = useState<Error | null>(null);

  useEffect(() => {
    const controller = new AbortController();
    const path = { run_id: id };
    let latest: Run | null = null;
    setRun(null);
    setLines([]);
    setError(null);

    function take(found: Run): void {
      latest = newer(latest, found);
      setRun(latest);
      setError(null);
    }

    let cursor = "0";

    /** What was stored since the last time, to its end. */
    async function readLines(): Promise<void> {
      for (let hasMore = true; hasMore; ) {
        const query = { limit: PAGE_LINES, cursor };
        const found = await get("/runs/{run_id}/logs", { path, query, signal: controller.signal });
        cursor = found.next_cursor;
        hasMore = found.has_more;
        setLines((known) => merged(known, found.lines));
      }
      if (latest !== null && isEnded(latest)) setLines(stored);
    }

    async function readRun(): Promise<void> {
      const query = { include: ["records" as const] };
      take(await get("/runs/{run_id}", { path, query, signal: controller.signal }));
    }

    async function read(): Promise<void> {
      try {
        await readRun();
        await readLines();
      } catch (problem) {
        if (!controller.signal.aborted) setError(problem as Error);
      }
    }

    void read();
    const looking = setInterval(() => {
      if (latest && !isEnded(latest) && !document.hidden) void readRun().catch(() => undefined);
    }, WORKER_MS);
    const stop = follow("/runs/{run_id}/watch", { path, query: { include: "records" } }, {
      onOpen: () => void readLines().catch(() => undefined),
      onState: setLive,
      onEvent: (name, data) => {
        if (name === "snapshot") take((data as { snapshot: Run }).snapshot);
        if (name === "log") setLines((known) => merged(known, (data as { lines: LogLine[] }).lines));
      },
      onEnd: () => {
        const isOver = latest !== null && isEnded(latest);
        if (isOver) void read(); // the last lines may have been on their way
        return !isOver;
      },
      onRefused: (refused: ApiError) => setError(refused),
    });
    return () => {
      controller.abort();
      clearInterval(looking);
      stop();
    };
  }, [id]);

  return { run, lines, isLive, error };
}
