/** The list of runs as a value: a page is added, changes are applied, nothing is read twice. */
import type { RunSummary } from "../api/client";
import { matches, type RunFilters } from "./query";

export interface RunList {
  rows: readonly RunSummary[];
  /** Leads to the next page; null when everything is here, or when the last rows were cut off. */
  cursor: string | null;
  /** Rows at the end were cut off to make room for new ones: the next page begins somewhere among them. */
  isTrimmed: boolean;
  /** Changes that would move rows, kept back while somebody reads further down. */
  held: ReadonlyMap<string, RunSummary>;
}

export interface ListChange {
  items: RunSummary[];
  removed: string[];
}

/** A list that grows by itself stays this short; with more, a page that is open for hours becomes slow. */
export const LIVE_ROWS = 100;

export const EMPTY: RunList = { rows: [], cursor: null, isTrimmed: false, held: new Map() };

/** Newest first, ties by id: the order of the server's pages. */
export function compare(a: RunSummary, b: RunSummary): number {
  if (a.updated_at !== b.updated_at) return b.updated_at - a.updated_at;
  return a.run_id < b.run_id ? 1 : -1;
}

export function firstPage(rows: RunSummary[], cursor: string | null): RunList {
  return { rows, cursor, isTrimmed: false, held: new Map() };
}

export function isMore(list: RunList): boolean {
  return list.cursor !== null || list.isTrimmed;
}

/** A run that changed meanwhile may be on both pages: the one that is here already is newer. */
export function withPage(list: RunList, rows: RunSummary[], cursor: string | null): RunList {
  const known = new Set(list.rows.map((run) => run.run_id));
  return { ...list, rows: [...list.rows, ...rows.filter((run) => !known.has(run.run_id))], cursor };
}

/**
 * The list after a change. With `hold`, rows keep their places: what is shown is brought up to date where it
 * stands, and what would come in is kept back.
 */
export function applied(list: RunList, change: ListChange, filters: RunFilters, hold: boolean): RunList {
  const known = new Map(list.rows.map((run) => [run.run_id, run.updated_at]));
  // A list may have been read after the change that it receives.
  const items = change.items.filter((run) => run.updated_at >= (known.get(run.run_id) ?? 0));
  const news = new Map(items.map((run) => [run.run_id, run]));
  const removed = new Set(change.removed);
  if (hold) return heldBack(list, news, removed, filters);
  const last = list.rows.at(-1);
  const kept = list.rows.filter((run) => !news.has(run.run_id) && !removed.has(run.run_id));
  const coming = items.filter(
    // What lies behind the last row belongs to a page that has not been asked for.
    (run) => matches(run, filters) && (!isMore(list) || last === undefined || compare(run, last) < 0),
  );
  return trimmed({ ...list, rows: [...kept, ...coming].sort(compare) }, coming.length > 0);
}

function trimmed(list: RunList, hasGrown: boolean): RunList {
  if (!hasGrown || list.rows.length <= LIVE_ROWS) return list;
  return { ...list, rows: list.rows.slice(0, LIVE_ROWS), cursor: null, isTrimmed: true };
}

function heldBack(list: RunList, news: Map<string, RunSummary>, removed: Set<string>, filters: RunFilters): RunList {
  const rows = list.rows.filter((run) => !removed.has(run.run_id)).map((run) => news.get(run.run_id) ?? run);
  const shown = new Set(rows.map((run) => run.run_id));
  const held = new Map(list.held);
  for (const [id, run] of news) {
    if (!shown.has(id) && matches(run, filters)) held.set(id, run);
    else held.delete(id);
  }
  for (const id of removed) held.delete(id);
  return { ...list, rows, held: newest(held) };
}

/** Of what is kept back, only as much as fits into a list. */
function newest(held: Map<string, RunSummary>): Map<string, RunSummary> {
  if (held.size <= LIVE_ROWS) return held;
  return new Map([...held].sort(([, a], [, b]) => compare(a, b)).slice(0, LIVE_ROWS));
}

/** Everything in its place again. */
export function released(list: RunList, filters: RunFilters): RunList {
  const free = { ...list, held: new Map() };
  const rows = list.rows.filter((run) => matches(run, filters)).sort(compare);
  return applied({ ...free, rows }, { items: [...list.held.values()], removed: [] }, filters, false);
}
