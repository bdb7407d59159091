/** What a flow printed, from two sources: what was kept, and what comes live. */
import type { LogLine } from "../api/client";

export const SHOWN = 5000;

/** Lines of both, each once, in the order they were printed. */
export function merged(known: readonly LogLine[], coming: readonly LogLine[]): LogLine[] {
  if (coming.length === 0) return [...known];
  const last = known.at(-1);
  if (last === undefined || compare(last, coming[0]!) < 0) return [...known, ...coming].slice(-2 * SHOWN);
  const byPlace = new Map([...known, ...coming].map((line) => [`${line.attempt}/${line.n}`, line]));
  return [...byPlace.values()].sort(compare).slice(-2 * SHOWN);
}

function compare(a: LogLine, b: LogLine): number {
  return a.attempt - b.attempt || a.n - b.n;
}

export function ofTask(lines: readonly LogLine[], task: string | null): LogLine[] {
  return task === null ? [...lines] : lines.filter((line) => line.task === task);
}

export function asText(lines: readonly LogLine[]): string {
  return lines.map((line) => line.text).join("");
}
