import { useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, type Execution, type ExecutionEvent, get } from "../api/client";
import { follow } from "../live/stream";
import { type Definition, definitionOf } from "./graphs/definition";
import { appended, type Moment } from "./travel";

export interface FollowedExecution {
  execution: Execution | null;
  definition: Definition | null;
  events: readonly ExecutionEvent[];
  isLive: boolean;
  error: Error | null;
  refresh: () => Promise<void>;
}

/** Several events come at once, and one look shows them all. */
const GATHER_MS = 120;
const EDGES = { include: ["edges" as const] };

/** An execution with its log and its graph, kept up to date until it has ended. */
export function useExecution(id: string): FollowedExecution {
  const [execution, setExecution] = useState<Execution | null>(null);
  const [definition, setDefinition] = useState<Definition | null>(null);
  const [events, setEvents] = useState<readonly ExecutionEvent[]>([]);
  const [isLive, setLive] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const refresh = useRef<() => Promise<void>>(() => Promise.resolve());

  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const path = { execution_id: id };
    let latest: Execution | null = null;
    let log: ExecutionEvent[] = [];
    let looking: Promise<void> | null = null;
    let isStale = false;
    setExecution(null);
    setDefinition(null);
    setEvents([]);
    setError(null);

    function take(found: readonly ExecutionEvent[]): void {
      log = appended(log, found);
      setEvents(log);
    }

    async function read(): Promise<void> {
      const found = await get("/executions/{execution_id}", { path, query: EDGES, signal });
      if (latest && found.version < latest.version) return;
      const isFirst = latest === null;
      latest = found;
      setExecution(found);
      setError(null);
      if (!isFirst) return;
      const query = { version: found.graph_version };
      setDefinition(definitionOf(await get("/graphs/{graph_id}", { path: { graph_id: found.graph_id }, query, signal })));
    }

    /** Looks once for any number of calls, and once more if there was another meanwhile. */
    function look(): Promise<void> {
      isStale = true;
      looking ??= lookOnce().finally(() => {
        looking = null;
      });
      return looking;
    }

    async function lookOnce(): Promise<void> {
      while (isStale && !signal.aborted) {
        isStale = false;
        try {
          await read();
        } catch (problem) {
          if (!signal.aborted) setError(problem as Error);
        }
        await new Promise((resolve) => setTimeout(resolve, GATHER_MS));
      }
    }

    async function readAll(): Promise<void> {
      await look();
      // A stream that has come to its end does not tell what happened after it, say that it was archived.
      const query = { after: log.at(-1)?.sequence ?? 0 };
      take((await get("/executions/{execution_id}/events", { path, query, signal })).items);
    }

    refresh.current = readAll;
    void look();
    const stop = follow("/executions/{execution_id}/watch", { path }, {
      lastId: () => String(log.at(-1)?.sequence ?? ""),
      onState: setLive,
      onEvent: (name, data) => {
        if (name === "heartbeat") return;
        take([data as ExecutionEvent]);
        if ((data as ExecutionEvent).sequence > (latest?.version ?? 0)) void look();
      },
      onEnd: () => {
        const isOver = latest !== null && latest.status !== "ACTIVE";
        if (!isOver) void look();
        return !isOver;
      },
      onRefused: (refused: ApiError) => setError(refused),
    });
    return () => {
      controller.abort();
      stop();
    };
  }, [id]);

  return { execution, definition, events, isLive, error, refresh: () => refresh.current() };
}

/** The state after an earlier event. It never changes, so it is asked for once. */
export function usePast(id: string, at: Moment): { past: Execution | null; error: Error | null } {
  const known = useRef(new Map<string, Execution>());
  const [past, setPast] = useState<Execution | null>(null);
  const [error, setError] = useState<Error | null>(null);

  useEffect(() => {
    if (at === null) {
      setPast(null);
      return;
    }
    const key = `${id} ${at}`;
    const found = known.current.get(key);
    setError(null);
    if (found) {
      setPast(found);
      return;
    }
    const controller = new AbortController();
    const query = { at_sequence: at, ...EDGES };
    get("/executions/{execution_id}", { path: { execution_id: id }, query, signal: controller.signal }).then(
      (state) => {
        known.current.set(key, state);
        setPast(state);
      },
      (problem: Error) => {
        if (!controller.signal.aborted) setError(problem);
      },
    );
    return () => controller.abort();
  }, [id, at]);

  return { past: at === null ? null : past, error };
}
