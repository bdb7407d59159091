import { useEffect, useState } from "preact/hooks";
import { get, type RunStatus, type RunSummary, type Schemas } from "../api/client";
import { follow } from "../live/stream";
import { applied, EMPTY, firstPage, type ListChange, LIVE_ROWS, released, type RunFilters, type RunList, withPage } from "./list";

export type Counts = Partial<Record<RunStatus, number>>;

interface ListEvent extends ListChange {
  counts: Counts;
  /** More has changed than the event tells. */
  is_partial: boolean;
}

export interface LiveList {
  list: RunList;
  counts: Counts;
  isLoaded: boolean;
  isLive: boolean;
  error: Error | null;
  more: () => Promise<void>;
  release: () => void;
}

const PAGE = 50;
const READING_BELOW_PX = 240;

async function page(
  filters: RunFilters,
  cursor: string | null,
  limit = PAGE,
): Promise<{ items: RunSummary[]; next_cursor: string | null }> {
  // `updated_after` asks for pages; without it the answer is a bare array.
  const query = { ...filters, cursor, limit, updated_after: 0, stale: "ok" as const };
  const found = (await get("/runs", { query })) as Schemas["RunPage"];
  return { items: found.items as RunSummary[], next_cursor: found.next_cursor };
}

/** The list of runs: read once, and kept up with what the server tells. */
export function useRunList(filters: RunFilters): LiveList {
  const key = JSON.stringify(filters);
  const [list, setList] = useState(EMPTY);
  const [counts, setCounts] = useState<Counts>({});
  const [isLoaded, setLoaded] = useState(false);
  const [isLive, setLive] = useState(false);
  const [error, setError] = useState<Error | null>(null);

  useEffect(() => {
    let isWanted = true;
    let loading: Promise<void> | null = null;
    /** What changed while the list was on its way: it may have been read before that. */
    let meanwhile: ListChange[] = [];

    function load(): Promise<void> {
      loading ??= read().finally(() => {
        loading = null;
      });
      return loading;
    }

    async function read(): Promise<void> {
      meanwhile = [];
      try {
        const first = await page(filters, null);
        if (!isWanted) return;
        const fresh = firstPage(first.items, first.next_cursor);
        setList(meanwhile.reduce((known, change) => applied(known, change, filters, false), fresh));
        setLoaded(true);
        setError(null);
      } catch (problem) {
        if (isWanted) setError(problem as Error);
      }
    }

    function onEvent(event: ListEvent): void {
      setCounts(event.counts);
      if (event.is_partial) void load();
      if (event.items.length === 0 && event.removed.length === 0) return;
      if (loading) meanwhile.push(event);
      const hold = window.scrollY > READING_BELOW_PX;
      setList((known) => applied(known, event, filters, hold));
    }

    const first = load(); // to be seen at once
    const stop = follow("/runs/watch", {}, {
      // A list that is read after the stream has begun misses nothing.
      onOpen: () => void first.then(load),
      onState: setLive,
      onEvent: (_, data) => onEvent(data as ListEvent),
    });
    return () => {
      isWanted = false;
      stop();
    };
  }, [key]);

  async function more(): Promise<void> {
    try {
      if (list.isTrimmed) {
        // Where the rows were cut there is no cursor: the list is read again, with one page more than is shown.
        const again = await page(filters, null, LIVE_ROWS + PAGE);
        setList((known) => (known.isTrimmed ? firstPage(again.items, again.next_cursor) : known));
        return;
      }
      const next = await page(filters, list.cursor);
      setList((known) => (known.cursor === list.cursor ? withPage(known, next.items, next.next_cursor) : known));
    } catch (problem) {
      setError(problem as Error);
    }
  }

  return { list, counts, isLoaded, isLive, error, more, release: () => setList((known) => released(known, filters)) };
}
