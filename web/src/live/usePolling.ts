import { useEffect, useRef, useState } from "preact/hooks";

export interface Polled<T> {
  value: T | null;
  error: Error | null;
  refresh: () => Promise<void>;
}

/** Asks again and again while the page is in front; the next question waits for the answer to the last. */
export function usePolling<T>(ask: (signal: AbortSignal) => Promise<T>, everyMs: number, key: string): Polled<T> {
  const [value, setValue] = useState<T | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const asking = useRef(ask);
  asking.current = ask;
  const refresh = useRef<() => Promise<void>>(() => Promise.resolve());

  useEffect(() => {
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;

    async function once(): Promise<void> {
      try {
        setValue(await asking.current(controller.signal));
        setError(null);
      } catch (problem) {
        if (!controller.signal.aborted) setError(problem as Error);
      }
    }

    async function keep(): Promise<void> {
      if (!document.hidden) await once();
      if (!controller.signal.aborted) timer = setTimeout(() => void keep(), everyMs);
    }

    function onVisible(): void {
      if (!document.hidden) void once();
    }

    refresh.current = once;
    document.addEventListener("visibilitychange", onVisible);
    void keep();
    return () => {
      controller.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [everyMs, key]);

  return { value, error, refresh: () => refresh.current() };
}
