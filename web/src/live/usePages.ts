import { laidOver, type Page, type Pages, withNext } from "./paged";
import { useLive } from "./useLive";

const PAGE = 50;
/** The most that the server returns at once. */
const MAX_PAGE = 200;

export interface Asking {
  limit: number;
  cursor: string | null;
}

/** A list in pages; those that are shown are read again every so often, up to a full page of the server's. */
export function usePages<T>(
  key: string,
  ask: (asking: Asking, signal: AbortSignal) => Promise<Page<T>>,
  keyOf: (row: T) => string,
  everyMs: number,
) {
  const live = useLive<Pages<T>>(
    key,
    {
      everyMs,
      read: async ({ signal, state, change }) => {
        const limit = Math.min(MAX_PAGE, Math.max(PAGE, state().rows.length));
        const page = await ask({ limit, cursor: null }, signal);
        change((known) => laidOver(known, page, keyOf));
      },
    },
    () => ({ rows: [], cursor: null, isLoaded: false }),
  );
  return {
    rows: live.state.rows,
    isLoaded: live.state.isLoaded,
    isMore: live.state.cursor !== null,
    error: live.error,
    refresh: live.refresh,
    more: () =>
      live.also(async ({ signal, state, change }) => {
        const page = await ask({ limit: PAGE, cursor: state().cursor }, signal);
        change((known) => withNext(known, page, keyOf));
      }),
  };
}
