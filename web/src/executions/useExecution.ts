import { useEffect, useRef, useState } from "preact/hooks";
import { type Execution, type ExecutionEvent, get } from "../api/client";
import type { LiveEvent, Subject } from "../live/live";
import { useLive } from "../live/useLive";
import { type Definition, definitionOf } from "./graphs/definition";
import { appended, type Moment } from "./travel";

interface ExecutionView {
  execution: Execution | null;
  definition: Definition | null;
  events: readonly ExecutionEvent[];
}

const EMPTY: ExecutionView = { execution: null, definition: null, events: [] };
const EDGES = { include: ["edges" as const] };

function lastSequence({ events }: ExecutionView): number {
  return events.at(-1)?.sequence ?? 0;
}

function withEvents(known: ExecutionView, found: readonly ExecutionEvent[]): ExecutionView {
  return { ...known, events: appended(known.events, found) };
}

/** Answers may overtake each other: the newer version stays. */
function withExecution(known: ExecutionView, found: Execution): ExecutionView {
  return known.execution && found.version < known.execution.version ? known : { ...known, execution: found };
}

function apply(known: ExecutionView, { name, data }: LiveEvent): ExecutionView {
  return name === "heartbeat" ? known : withEvents(known, [data as ExecutionEvent]);
}

async function readDefinition(execution: Execution, signal: AbortSignal): Promise<Definition> {
  const path = { graph_id: execution.graph_id };
  const query = { version: execution.graph_version };
  return definitionOf(await get("/graphs/{graph_id}", { path, query, signal }));
}

function executionSubject(id: string): Subject<ExecutionView> {
  const path = { execution_id: id };
  return {
    read: async ({ signal, state, change, isStreamOver }) => {
      const found = await get("/executions/{execution_id}", { path, query: EDGES, signal });
      change((known) => withExecution(known, found));
      if (state().definition === null) {
        const definition = await readDefinition(found, signal);
        change((known) => ({ ...known, definition }));
      }
      if (!isStreamOver()) return;
      // What happens after the end of the stream, such as archiving, is only read.
      const query = { after: lastSequence(state()) };
      const { items } = await get("/executions/{execution_id}/events", { path, query, signal });
      change((known) => withEvents(known, items));
    },
    watch: {
      path: "/executions/{execution_id}/watch",
      options: { path },
      apply,
      needsRead: (known) => lastSequence(known) > (known.execution?.version ?? 0),
      lastId: (known) => String(lastSequence(known) || ""),
      isOver: ({ execution }) => execution !== null && execution.status !== "ACTIVE",
    },
  };
}

/** An execution with its log and its graph, kept up to date until it has ended. */
export function useExecution(id: string) {
  const { state, error, refresh } = useLive(id, executionSubject(id), () => EMPTY);
  return { ...state, error, refresh };
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
