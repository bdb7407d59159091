/** What a flow printed, from two sources: what is stored, and what comes live. */
import type { LogLine } from "../api/client";

/** Rows at once; more when somebody asks for them. */
export const SHOWN = 5000;

/** Lines of both, each once, in the order they were printed. */
export function merged(known: readonly LogLine[], coming: readonly LogLine[]): LogLine[] {
  if (coming.length === 0) return [...known];
  const last = known.at(-1);
  const isBehind = last === undefined || compare(last, coming[0]!) < 0;
  if (isBehind && coming.every((line, at) => at === 0 || compare(coming[at - 1]!, line) < 0)) {
    return [...known, ...coming];
  }
  const byPlace = new Map<string, LogLine>();
  for (const line of [...known, ...coming]) {
    const place = `${line.attempt}/${line.n}`;
    if (!line.is_excerpt || !byPlace.has(place)) byPlace.set(place, line);
  }
  return [...byPlace.values()].sort(compare);
}

function compare(a: LogLine, b: LogLine): number {
  return a.attempt - b.attempt || a.n - b.n;
}

/** What is stored: a run that has ended has no other lines. */
export function stored(lines: readonly LogLine[]): LogLine[] {
  return lines.filter((line) => !line.is_excerpt);
}

export function ofTask(lines: readonly LogLine[], task: string | null): LogLine[] {
  return task === null ? [...lines] : lines.filter((line) => line.task === task);
}

/** Lines before which others are missing that may still come: a task prints more than is stored at once. */
export function behindGaps(lines: readonly LogLine[]): ReadonlySet<LogLine> {
  const follows = (line: LogLine, before: LogLine | undefined) =>
    before?.attempt === line.attempt && before.n === line.n - 1;
  return new Set(lines.filter((line, at) => line.is_excerpt && !follows(line, lines[at - 1])));
}

export function isCut(line: LogLine): boolean {
  return (line.cut_bytes ?? 0) > 0;
}

/** What a task has logged beside the text: `rows=3`, `source="a.csv"`. */
export function fieldsOf({ fields = {} }: Pick<LogLine, "fields">): string[] {
  return Object.entries(fields).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
}

/** The line with its fields. */
function wholeText(line: LogLine): string {
  const fields = fieldsOf(line);
  return fields.length === 0 ? line.text : `${[line.text.replace(/\n$/, ""), ...fields].join(" ")}\n`;
}

export function asText(lines: readonly LogLine[], gaps: ReadonlySet<LogLine>): string {
  return lines.map((line) => (gaps.has(line) ? "…\n" : "") + wholeText(line)).join("");
}

/** Names a line in an address. */
export function placeOf(line: Pick<LogLine, "attempt" | "n">): string {
  return `${line.attempt}.${line.n + 1}`;
}

export const KINDS = ["all", "stderr", "warnings", "errors"] as const;
export type Kind = (typeof KINDS)[number];

const ERRORS = /\b(?:ERROR|CRITICAL|FATAL)\b/;
const WARNINGS = /\b(?:WARN|WARNING|ERROR|CRITICAL|FATAL)\b/;
/** In a printed line the level stands at the beginning, behind a time and a name. */
const LEVEL_WITHIN = 120;

function isOf(kind: Kind, line: LogLine): boolean {
  if (kind === "all") return true;
  if (kind === "stderr") return line.stream === "stderr";
  const level = line.level?.toUpperCase() ?? line.text.slice(0, LEVEL_WITHIN);
  return (kind === "errors" ? ERRORS : WARNINGS).test(level);
}

const TONES: Record<string, string> = { critical: "bad", error: "bad", warning: "warn" };

/** Null: a level that is not worth a word, or none. */
export function levelOf({ level }: Pick<LogLine, "level">): { level: string; tone: string } | null {
  return level === undefined || level === "info" ? null : { level, tone: TONES[level] ?? "quiet" };
}

/** Lines of a kind with a text in them. Where lines were cut it shows either way. */
export function sought(lines: readonly LogLine[], text: string, kind: Kind): LogLine[] {
  const wanted = text.toLowerCase();
  return lines.filter((line) => isCut(line) || (isOf(kind, line) && wholeText(line).toLowerCase().includes(wanted)));
}

/** The text in pieces; every second one is what is sought. */
export function marked(text: string, wanted: string): string[] {
  const escaped = wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return text.split(new RegExp(`(${escaped})`, "i"));
}
