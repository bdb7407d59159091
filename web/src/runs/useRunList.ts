import { useEffect, useRef } from "preact/hooks";
import { get, type Run, type RunStatus, type RunSummary, type Schemas } from "../api/client";
import { returnedTo } from "../app/router";
import type { LiveEvent, Read, Subject } from "../live/live";
import { useLive } from "../live/useLive";
import { applied, EMPTY, firstPage, LIVE_ROWS, type ListChange, type RunList, released, withPage } from "./list";
import { asksParams, type ListedRun, matches, queryOf, type RunFilters } from "./query";

export type Counts = Partial<Record<RunStatus, number>>;

interface ListEvent extends ListChange {
  counts: Counts;
  /** More has changed than the event contains. */
  is_partial: boolean;
}

interface RunListState {
  list: RunList;
  counts: Counts;
  isLoaded: boolean;
}

const START: RunListState = { list: EMPTY, counts: {}, isLoaded: false };
const PAGE = 50;
const READING_BELOW_PX = 240;
/** The most that the server returns at once. */
const MAX_PAGE = 200;

/** How often new runs are searched for params. */
const PARAMS_MS = 15_000;
/** So many pages are searched at once for what the server does not know. */
const SEARCHED_PAGES = 5;

/** The list as it was left: whoever comes back to it finds the rows that were there. */
let left: { key: string; state: RunListState } | null = null;

function startFor(key: string): RunListState {
  return left?.key === key && returnedTo.peek() !== null ? left.state : START;
}

interface RunPage {
  items: RunSummary[];
  next_cursor: string | null;
}

async function served(
  filters: RunFilters,
  cursor: string | null,
  signal: AbortSignal,
  limit: number,
): Promise<RunPage> {
  // With `updated_after` the answer is a page; without it, a bare array.
  const include = asksParams(filters) ? ["full" as const] : [];
  const query = { updated_after: 0, ...queryOf(filters), cursor, limit, include, stale: "ok" as const };
  const found = (await get("/runs", { query, signal })) as Schemas["RunPage"];
  const items = include.length > 0 ? (found.items as unknown as Run[]).map(listed) : (found.items as RunSummary[]);
  return { items, next_cursor: found.next_cursor };
}

/** Without what is large. */
function listed({ result: _, task_records: __, tasks, ...run }: Run): ListedRun {
  const states = Object.values(tasks);
  const tasks_done = states.filter((state) => state === "SUCCEEDED").length;
  return { ...(run as unknown as ListedRun), tasks_total: states.length, tasks_done };
}

/** Changes come without params: those of runs that are shown are known, and others are found when the list is read. */
function sentTo(rows: readonly ListedRun[], data: unknown, filters: RunFilters): ListEvent {
  const event = data as ListEvent;
  if (!asksParams(filters)) return event;
  const known = new Map(rows.map((run) => [run.run_id, run.params]));
  const items = event.items.filter((run) => known.has(run.run_id));
  return { ...event, items: items.map((run) => ({ ...run, params: known.get(run.run_id) })) };
}

async function page(filters: RunFilters, cursor: string | null, signal: AbortSignal, limit = PAGE): Promise<RunPage> {
  if (!filters.q) return served(filters, cursor, signal, limit);
  const items: RunSummary[] = [];
  let next = cursor;
  for (let n = 0; n < SEARCHED_PAGES && items.length < limit; n++) {
    const read = await served(filters, next, signal, MAX_PAGE);
    items.push(...read.items.filter((run) => matches(run, filters)));
    next = read.next_cursor;
    if (next === null) break;
  }
  return { items, next_cursor: next };
}

function listSubject(filters: RunFilters): Subject<RunListState> {
  return {
    ...(asksParams(filters) ? { everyMs: PARAMS_MS } : {}),
    read: async ({ signal, state, change, meanwhile }) => {
      const shown = Math.min(MAX_PAGE, Math.max(PAGE, state().list.rows.length));
      const first = await page(filters, null, signal, shown);
      const fresh = firstPage(first.items, first.next_cursor);
      const list = meanwhile().reduce(
        (known, { data }) => applied(known, sentTo(known.rows, data, filters), filters, false),
        fresh,
      );
      change((known) => ({ ...known, list, isLoaded: true }));
    },
    watch: {
      path: "/runs/watch",
      options: { query: queryOf({ ...filters, status: undefined }) },
      apply: (known, { data }: LiveEvent) => {
        const event = sentTo(known.list.rows, data, filters);
        const hasChanges = event.items.length > 0 || event.removed.length > 0;
        const hold = window.scrollY > READING_BELOW_PX;
        const list = hasChanges ? applied(known.list, event, filters, hold) : known.list;
        return { ...known, list, counts: event.counts };
      },
      needsRead: (_, { data }) => (data as ListEvent).is_partial,
    },
  };
}

function nextPage(filters: RunFilters): Read<RunListState> {
  return async ({ signal, state, change }) => {
    const { cursor, isTrimmed } = state().list;
    if (isTrimmed) {
      // Where the rows were cut there is no cursor: the list is read again, with one page more than is shown.
      const again = await page(filters, null, signal, LIVE_ROWS + PAGE);
      const longer = firstPage(again.items, again.next_cursor);
      change((known) => (known.list.isTrimmed ? { ...known, list: longer } : known));
      return;
    }
    const next = await page(filters, cursor, signal);
    change((known) =>
      known.list.cursor === cursor ? { ...known, list: withPage(known.list, next.items, next.next_cursor) } : known,
    );
  };
}

/** The list of runs, kept up to date. The rows of other filters stay until the new ones are there. */
export function useRunList(filters: RunFilters) {
  const key = JSON.stringify(filters);
  const live = useLive(key, listSubject(filters), (shown) => shown ?? startFor(key));
  const last = useRef({ key, state: live.state });
  last.current = { key, state: live.state };
  useEffect(
    () => () => {
      left = last.current;
    },
    [],
  );
  return {
    ...live.state,
    error: live.error,
    more: () => live.also(nextPage(filters)),
    release: () => live.change((known) => ({ ...known, list: released(known.list, filters) })),
  };
}
