import { useRef, useState } from "preact/hooks";
import { canAct } from "../app/standing";

export interface Sending {
  error: Error | null;
  /** Nothing can be sent now: a request is under way, or the page is out of date. */
  isBusy: boolean;
  send: (work: () => Promise<unknown>) => void;
}

/** For forms: one request at a time, and what was wrong with the last one. */
export function useSending(): Sending {
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  // The state reaches the button with the next drawing; the second click of a double click comes before it.
  const isSending = useRef(false);

  async function attempt(work: () => Promise<unknown>): Promise<void> {
    isSending.current = true;
    setBusy(true);
    setError(null);
    try {
      await work();
    } catch (problem) {
      setError(problem as Error);
    } finally {
      isSending.current = false;
      setBusy(false);
    }
  }

  return {
    error,
    isBusy: isBusy || !canAct.value,
    send: (work) => {
      if (!isSending.current) void attempt(work);
    },
  };
}

function newKey(): string {
  // Not `randomUUID`: browsers offer that only to pages from https and localhost.
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** An `Idempotency-Key` for a request: the same while it asks for the same, so that a repeat acts once. */
export function useIdempotencyKey(): (wanted: unknown) => Record<string, string> {
  const last = useRef({ wanted: "", key: "" });
  return (wanted) => {
    const text = JSON.stringify(wanted);
    if (text !== last.current.wanted) last.current = { wanted: text, key: newKey() };
    return { "Idempotency-Key": last.current.key };
  };
}
