/** A state that stays up to date: it is read, changed by the events of a stream, and read again when that is not enough. */
import { ApiError, type CallOptions } from "../api/client";
import { type Tracked, track } from "./freshness";
import { repeat } from "./repeat";
import { follow } from "./stream";

export interface LiveEvent {
  name: string;
  data: unknown;
}

export interface Reading<S> {
  signal: AbortSignal;
  state: () => S;
  /** Has no effect once the state is not wanted any more. */
  change: (change: (state: S) => S) => void;
  /** The events since this reading began: its answers may be older. */
  meanwhile: () => readonly LiveEvent[];
  /** No further events will come. */
  isStreamOver: () => boolean;
}

export type Read<S> = (reading: Reading<S>) => Promise<void>;

export interface Watch<S> {
  path: string;
  options: CallOptions;
  apply: (state: S, event: LiveEvent) => S;
  /** More has changed than the event contains. */
  needsRead?: (state: S, event: LiveEvent) => boolean;
  /** For streams that continue after a given event. The state is read again whenever any other is connected. */
  lastId?: (state: S) => string;
  /** Nothing will change any more: a stream that ends is not connected again. */
  isOver?: (state: S) => boolean;
}

/** What is kept up to date: by a stream, by reading it every so often, or both. */
export interface Subject<S> {
  read: Read<S>;
  watch?: Watch<S>;
  everyMs?: number;
}

export interface View<S> {
  state: S;
  error: Error | null;
}

export interface Kept<S> {
  refresh: () => Promise<void>;
  /** A reading of another kind, such as the next page. */
  also: (read: Read<S>) => Promise<void>;
  change: (change: (state: S) => S) => void;
  stop: () => void;
}

/** Several events come at once, and one reading covers them all. */
const GATHER_MS = 120;
/** Streams send something at least every other second. */
const STREAM_MS = 5000;
/** What a reading may take beyond its turn. */
const READING_MS = 5000;

export function keepLive<S>(subject: Subject<S>, start: S, onView: (view: View<S>) => void): Kept<S> {
  const controller = new AbortController();
  const { signal } = controller;
  const { read, watch, everyMs } = subject;
  const listening = new Set<LiveEvent[]>();
  let view: View<S> = { state: start, error: null };
  let refreshing: Promise<void> | null = null;
  let isStale = false;
  let isQuiet = true;
  let isStreamOver = watch === undefined;
  const allowedMs = watch ? STREAM_MS : everyMs && everyMs + READING_MS;
  const age: Tracked | null = allowedMs ? track(allowedMs) : null;

  function show(part: Partial<View<S>>): void {
    if (signal.aborted) return;
    view = { ...view, ...part };
    onView(view);
  }

  function change(by: (state: S) => S): void {
    const state = by(view.state);
    if (state !== view.state) show({ state });
  }

  async function attempt(reader: Read<S>, isSilent: boolean): Promise<void> {
    const events: LiveEvent[] = [];
    listening.add(events);
    try {
      await reader({
        signal,
        state: () => view.state,
        change,
        meanwhile: () => events,
        isStreamOver: () => isStreamOver,
      });
      if (view.error !== null) show({ error: null });
      if (!watch) age?.confirm();
    } catch (problem) {
      if (!isSilent) show({ error: problem as Error });
      if (!watch) note(problem);
    } finally {
      listening.delete(events);
    }
  }

  /** A refusal is an answer too: the server is there. */
  function note(problem: unknown): void {
    if (problem instanceof ApiError && problem.status < 500) age?.confirm();
    else age?.lose();
  }

  /** Reads once for any number of calls, and once more for calls that come meanwhile. */
  function refresh(isSilent = false): Promise<void> {
    isStale = true;
    isQuiet &&= isSilent;
    refreshing ??= readUntilFresh().finally(() => {
      refreshing = null;
    });
    return refreshing;
  }

  async function readUntilFresh(): Promise<void> {
    while (isStale && !signal.aborted) {
      const isSilent = isQuiet;
      isStale = false;
      isQuiet = true;
      await attempt(read, isSilent);
      if (!isStreamOver) await new Promise((resolve) => setTimeout(resolve, GATHER_MS));
    }
  }

  function isOver(): boolean {
    return watch?.isOver?.(view.state) ?? false;
  }

  function onEvent(watched: Watch<S>, event: LiveEvent): void {
    for (const events of listening) events.push(event);
    change((state) => watched.apply(state, event));
    if (watched.needsRead?.(view.state, event)) void refresh();
  }

  function connect(watched: Watch<S>): () => void {
    const { lastId } = watched;
    return follow(watched.path, watched.options, {
      ...(lastId ? { lastId: () => lastId(view.state) } : {}),
      // What is read once the stream is open misses nothing.
      onOpen: () => void (lastId || refresh()),
      onBeat: () => age?.confirm(),
      onLost: () => age?.lose(),
      onEvent: (name, data) => onEvent(watched, { name, data }),
      onEnd: () => {
        isStreamOver = isOver();
        if (isStreamOver) age?.stop();
        // The last changes may still have been on their way.
        if (watched.isOver) void refresh();
        return !isStreamOver;
      },
      onRefused: (error) => {
        isStreamOver = true;
        age?.stop();
        show({ error });
      },
    });
  }

  void refresh();
  const stops = [
    () => controller.abort(),
    () => age?.stop(),
    ...(watch ? [connect(watch)] : []),
    // Beside a stream a failed reading is not shown: the next one comes soon, and the stream shows an outage.
    ...(everyMs ? [repeat(everyMs, async () => void (isOver() || (await refresh(watch !== undefined))))] : []),
  ];
  return {
    refresh: () => refresh(),
    also: (reader) => attempt(reader, false),
    change,
    stop: () => {
      for (const stop of stops) stop();
    },
  };
}
