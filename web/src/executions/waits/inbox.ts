/** What waits for somebody: asked for in one place, shown in the navigation and on its own page. */

import { useEffect } from "preact/hooks";
import { get, type Wait } from "../../api/client";
import { signal } from "../../app/signals";
import { repeat } from "../../live/repeat";

export interface Inbox {
  items: readonly Wait[];
  cursor: string | null;
}

export const inbox = signal<Inbox | null>(null);
export const inboxError = signal<Error | null>(null);

const REFRESH_MS = 3000;
const SHOWN = 100;

export async function refreshInbox(aborting?: AbortSignal): Promise<void> {
  try {
    const page = await get("/waits", { query: { limit: SHOWN, stale: "ok" }, signal: aborting });
    inbox.value = { items: page.items, cursor: page.next_cursor };
    inboxError.value = null;
  } catch (problem) {
    if (!aborting?.aborted) inboxError.value = problem as Error;
  }
}

/** Keeps the inbox up to date while the page is visible. */
export function useInbox(): void {
  useEffect(() => {
    const controller = new AbortController();
    const read = () => refreshInbox(controller.signal);
    void read();
    const stop = repeat(REFRESH_MS, read);
    return () => {
      stop();
      controller.abort();
      inbox.value = null;
    };
  }, []);
}
