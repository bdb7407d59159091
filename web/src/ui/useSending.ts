import { useState } from "preact/hooks";

export interface Sending {
  error: Error | null;
  isBusy: boolean;
  send: (work: () => Promise<unknown>) => void;
}

/** For forms: one request at a time, and what was wrong with the last one. */
export function useSending(): Sending {
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);

  async function attempt(work: () => Promise<unknown>): Promise<void> {
    setBusy(true);
    setError(null);
    try {
      await work();
    } catch (problem) {
      setError(problem as Error);
    } finally {
      setBusy(false);
    }
  }

  return {
    error,
    isBusy,
    send: (work) => {
      if (!isBusy) void attempt(work);
    },
  };
}
