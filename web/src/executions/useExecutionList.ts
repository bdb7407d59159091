import { type ExecutionSummary, get } from "../api/client";
import type { Read, Subject } from "../live/live";
import { useLive } from "../live/useLive";
import { type ExecutionFilters, refreshed, withOlder } from "./list";

const REFRESH_MS = 2000;
const PAGE = 50;
const MAX_PAGE = 200;

interface ExecutionListState {
  rows: readonly ExecutionSummary[];
  counts: Record<string, number>;
  cursor: string | null;
  isLoaded: boolean;
}

const EMPTY: ExecutionListState = { rows: [], counts: {}, cursor: null, isLoaded: false };

function queryOf(filters: ExecutionFilters) {
  return { status: filters.status, graph_id: filters.graph, archived: filters.archived === "1", stale: "ok" as const };
}

/** The rows that are shown are read again every time, up to a full page of the server's. */
function listSubject(filters: ExecutionFilters): Subject<ExecutionListState> {
  return {
    everyMs: REFRESH_MS,
    read: async ({ signal, state, change }) => {
      const limit = Math.min(MAX_PAGE, Math.max(PAGE, state().rows.length));
      const query = { ...queryOf(filters), include: ["counts" as const], limit };
      const page = await get("/executions", { query, signal });
      change((known) => ({
        rows: refreshed(known.rows, page.items),
        counts: page.counts ?? {},
        // Older rows than these are shown: the next page begins behind them.
        cursor: known.rows.length > page.items.length ? known.cursor : page.next_cursor,
        isLoaded: true,
      }));
    },
  };
}

function nextPage(filters: ExecutionFilters): Read<ExecutionListState> {
  return async ({ signal, state, change }) => {
    const query = { ...queryOf(filters), limit: PAGE, cursor: state().cursor };
    const page = await get("/executions", { query, signal });
    change((known) => ({ ...known, rows: withOlder(known.rows, page.items), cursor: page.next_cursor }));
  };
}

/** The list of executions with its counts, read every two seconds. */
export function useExecutionList(filters: ExecutionFilters) {
  const live = useLive(JSON.stringify(filters), listSubject(filters), () => EMPTY);
  const { rows, counts, cursor, isLoaded } = live.state;
  return {
    rows,
    counts,
    isLoaded,
    isMore: cursor !== null,
    error: live.error,
    more: () => live.also(nextPage(filters)),
  };
}
