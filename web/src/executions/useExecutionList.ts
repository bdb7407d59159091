import { useEffect, useState } from "preact/hooks";
import { type ExecutionSummary, get } from "../api/client";
import { usePolling } from "../live/usePolling";
import { type ExecutionFilters, refreshed, withOlder } from "./list";

const REFRESH_MS = 2000;
const PAGE = 50;
const MAX_PAGE = 200;

export interface ExecutionList {
  rows: readonly ExecutionSummary[];
  counts: Record<string, number>;
  isLoaded: boolean;
  isMore: boolean;
  error: Error | null;
  more: () => Promise<void>;
}

function queryOf(filters: ExecutionFilters) {
  return { status: filters.status, graph_id: filters.graph, archived: filters.archived === "1", stale: "ok" as const };
}

/** The rows that are shown are asked for again and again, up to a full page of the server's. */
export function useExecutionList(filters: ExecutionFilters): ExecutionList {
  const key = JSON.stringify(filters);
  const [rows, setRows] = useState<readonly ExecutionSummary[]>([]);
  const [cursor, setCursor] = useState<{ at: string | null } | null>(null);
  const [isLoaded, setLoaded] = useState(false);
  const limit = Math.min(MAX_PAGE, Math.max(PAGE, rows.length));
  const polled = usePolling(
    async (signal) => {
      const query = { ...queryOf(filters), include: ["counts" as const], limit };
      return { key, page: await get("/executions", { query, signal }) };
    },
    REFRESH_MS,
    key,
  );

  useEffect(() => {
    setRows([]);
    setCursor(null);
    setLoaded(false);
  }, [key]);

  useEffect(() => {
    if (polled.value?.key !== key) return;
    const { page } = polled.value;
    setRows((known) => refreshed(known, page.items));
    setCursor((known) => (known && rows.length > page.items.length ? known : { at: page.next_cursor }));
    setLoaded(true);
  }, [polled.value, key]);

  async function more(): Promise<void> {
    const query = { ...queryOf(filters), limit: PAGE, cursor: cursor?.at ?? null };
    const page = await get("/executions", { query });
    setRows((known) => withOlder(known, page.items));
    setCursor({ at: page.next_cursor });
  }

  return {
    rows,
    counts: polled.value?.key === key ? (polled.value.page.counts ?? {}) : {},
    isLoaded,
    isMore: Boolean(cursor?.at),
    error: polled.error,
    more,
  };
}
