import { useRef } from "preact/hooks";
import { useLive } from "./useLive";

export interface Polled<T> {
  value: T | null;
  error: Error | null;
  refresh: () => Promise<void>;
}

/** An answer that is read every so often; with another key the last one is shown until the next is there. */
export function usePolling<T>(ask: (signal: AbortSignal) => Promise<T>, everyMs: number, key: string): Polled<T> {
  const asking = useRef(ask);
  asking.current = ask;
  const live = useLive<T | null>(
    `${everyMs} ${key}`,
    {
      everyMs,
      read: async ({ signal, change }) => {
        const value = await asking.current(signal);
        change(() => value);
      },
    },
    (shown) => shown,
  );
  return { value: live.state, error: live.error, refresh: live.refresh };
}
