import { useEffect, useRef, useState } from "preact/hooks";
import { type Kept, keepLive, type Read, type Subject, type View } from "./live";

export interface Live<S> extends View<S> {
  refresh: () => Promise<void>;
  also: (read: Read<S>) => Promise<void>;
  change: (change: (state: S) => S) => void;
}

/**
 * A state that stays up to date while the component is mounted. `key` names everything that the subject depends on;
 * with another key, the new subject starts from `start(shown)`: what is shown, or something empty.
 */
export function useLive<S>(key: string, subject: Subject<S>, start: (shown: S | null) => S): Live<S> {
  const [view, setView] = useState<View<S>>(() => ({ state: start(null), error: null }));
  const shown = useRef<S | null>(null);
  const kept = useRef<Kept<S> | null>(null);

  // Subject and start are new with every drawing; the key identifies them.
  useEffect(() => {
    function onView(next: View<S>): void {
      shown.current = next.state;
      setView(next);
    }
    const state = start(shown.current);
    onView({ state, error: null });
    const current = keepLive(subject, state, onView);
    kept.current = current;
    return current.stop;
  }, [key]);

  return {
    ...view,
    refresh: async () => kept.current?.refresh(),
    also: async (read) => kept.current?.also(read),
    change: (change) => kept.current?.change(change),
  };
}
