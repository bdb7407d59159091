/** Server-sent events over fetch: unlike EventSource it can carry the API key in a header. */
import { ApiError, type CallOptions, request } from "../api/client";

export interface ServerEvent {
  name: string;
  data: string;
  id: string | null;
}

/** Splits a stream's text into events. A block may come in any number of pieces. */
export class EventParser {
  private text = "";

  push(chunk: string): ServerEvent[] {
    this.text += chunk;
    const blocks = this.text.split(/\r\n\r\n|\n\n|\r\r/);
    this.text = blocks.pop() ?? "";
    return blocks.map(readBlock).filter((event) => event !== null);
  }
}

function readBlock(block: string): ServerEvent | null {
  const event: ServerEvent = { name: "message", data: "", id: null };
  const data: string[] = [];
  for (const line of block.split(/\r\n|\n|\r/)) {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event.name = value;
    else if (field === "data") data.push(value);
    else if (field === "id") event.id = value;
  }
  if (data.length === 0) return null;
  event.data = data.join("\n");
  return event;
}

export interface Following {
  onEvent: (name: string, data: unknown) => void;
  /** The last event that was seen: a stream that is connected again goes on behind it. */
  lastId?: () => string;
  /** Connected (again): what was read before may have changed meanwhile. */
  onOpen?: () => void;
  /** Connected, or something came: an event, or a sign that the stream is alive. */
  onBeat?: () => void;
  onLost?: () => void;
  /** The stream came to its end by itself. False: it is not wanted again. */
  onEnd?: () => boolean;
  onRefused?: (error: ApiError) => void;
}

const SILENCE_MS = 8000;
const RETRY_MS = [300, 1000, 2000, 5000];

/**
 * Follows a stream until the returned function is called, and reconnects as long as it makes sense. A page in
 * the background is not connected: browsers allow few connections per server.
 */
export function follow(path: string, options: CallOptions, following: Following): () => void {
  let stopped = false;
  let failures = 0;
  let controller: AbortController | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;

  async function connect(): Promise<void> {
    if (stopped || document.hidden) return;
    const current = new AbortController();
    controller = current;
    try {
      await read(current).finally(following.onLost);
      if (!stopped && following.onEnd?.() === false) stopped = true;
    } catch (error) {
      if (error instanceof ApiError && error.status < 500) {
        stopped = true;
        following.onRefused?.(error);
      }
    }
    if (stopped || controller !== current) return;
    timer = setTimeout(() => void connect(), RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
  }

  async function read(current: AbortController): Promise<void> {
    const lastId = following.lastId?.();
    const headers: Record<string, string> = lastId ? { "Last-Event-ID": lastId } : {};
    const response = await request("get", path, { ...options, signal: current.signal }, headers);
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    failures = 0;
    following.onOpen?.();
    following.onBeat?.();
    for (;;) {
      const silence = setTimeout(() => current.abort(), SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      following.onBeat?.();
      for (const event of parser.push(value)) following.onEvent(event.name, JSON.parse(event.data));
    }
  }

  function onVisibility(): void {
    if (document.hidden) {
      clearTimeout(timer);
      controller?.abort();
      controller = null;
    } else if (controller === null) {
      void connect();
    }
  }

  document.addEventListener("visibilitychange", onVisibility);
  void connect();
  return () => {
    stopped = true;
    clearTimeout(timer);
    controller?.abort();
    document.removeEventListener("visibilitychange", onVisibility);
  };
}
