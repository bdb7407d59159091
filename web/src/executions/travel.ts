/** Time travel: which moment of an execution's log is shown. */
import type { ExecutionEvent } from "../api/client";
import { hasText, type Key } from "../i18n";

/** A number is the event after which it is shown; null is now. */
export type Moment = number | null;

/** From the address. Whatever is no moment of this log is now. */
export function momentOf(text: string | undefined, last: number): Moment {
  const at = Number(text);
  return text && Number.isInteger(at) && at >= 1 && at < last ? at : null;
}

/** So many events further, or back. Behind the last one is now. */
export function moved(at: Moment, last: number, by: number): Moment {
  const to = Math.max(1, (at ?? last) + by);
  return to >= last ? null : to;
}

/** The log with what came: in order, each event once, without gaps at its beginning. */
export function appended(known: readonly ExecutionEvent[], found: readonly ExecutionEvent[]): ExecutionEvent[] {
  const last = known.at(-1)?.sequence ?? 0;
  const news = found.filter((event) => event.sequence > last).sort((a, b) => a.sequence - b.sequence);
  return news.length ? [...known, ...news] : (known as ExecutionEvent[]);
}

/** The node that an event is about; null: the execution itself. */
export function nodeOf(event: ExecutionEvent): string | null {
  const id = event.payload.node_id ?? event.payload.failed_node_id;
  return typeof id === "string" ? id : null;
}

const TELLING = [
  "prompt",
  "name",
  "message",
  "reason",
  "error",
  "progress",
  "attempt",
  "output",
  "data",
  "result",
  "branch_ids",
  "policy",
] as const;

/** The content of an event beyond its type, in one line. */
export function saying(event: ExecutionEvent): string {
  const ended: unknown = event.payload.ended;
  if (Array.isArray(ended)) return `+${ended.length}`;
  for (const name of TELLING) {
    const value = event.payload[name];
    if (value === undefined || value === null) continue;
    if (name === "error") return String((value as { message?: unknown }).message ?? "");
    if (name === "progress") return `${String(value)} %`;
    if (name === "attempt") return `#${String(value)}`;
    return typeof value === "string" ? value : JSON.stringify(value);
  }
  return "";
}

export type EventTone = "waiting" | "bad" | "warn" | "good" | "quiet";

export function toneOfEvent(type: string): EventTone {
  if (type === "NODE_WAITING") return "waiting";
  if (type.includes("FAIL")) return "bad";
  if (type.includes("CANCEL") || type.includes("INTERRUPT")) return "warn";
  if (type.endsWith("SUCCEEDED") || type.endsWith("COMPLETED")) return "good";
  return "quiet";
}

export type EventType = Key extends infer K ? (K extends `event.${infer T}` ? T : never) : never;

/** A newer server may tell of things that this page has no word for. */
export function isKnown(type: string): type is EventType {
  return hasText(`event.${type}`);
}
