/** The query of the list of runs as text: `flow:orders status:FAILED since:24h -worker:node-3 "no rate"`. */
import type { RunStatus, RunSummary } from "../api/client";
import { isUtc } from "../app/zone";

export const KEYS = ["flow", "status", "tag", "since", "until", "worker", "error", "id"] as const;
export type QueryKey = (typeof KEYS)[number];

export const STATUSES: readonly RunStatus[] = ["FAILED", "RUNNING", "PENDING", "CANCELLING", "CANCELLED", "COMPLETED"];

export interface RunFilters {
  status?: RunStatus | undefined;
  flow?: string | undefined;
  tag?: string | undefined;
  /** Changed within this time, which for ended runs is when they ended: `24h`, a date, or Unix seconds. */
  since?: string | undefined;
  until?: string | undefined;
  /** Terms that the server does not know, as text: the page reads runs and leaves out what does not match. */
  q?: string | undefined;
}

/** One of the params, by its path: `param.customer.id`. */
export type ParamKey = `param.${string}`;

export interface Term {
  /** Null: anywhere. */
  key: QueryKey | ParamKey | null;
  value: string;
  isNot: boolean;
}

export interface Query {
  filters: RunFilters;
  /** Terms that mean nothing. */
  wrong: string[];
}

/** Applied by the server where they are wanted, and not excluded. */
const SERVED = ["flow", "status", "tag", "since", "until"] as const satisfies readonly QueryKey[];
const TERM = /(-?)(?:([\w.]+):)?(?:"([^"]*)"?|(\S+)|(?<=\w:))/g;
const UNITS = { m: 60, h: 3600, d: 86_400 } as const;
const SPAN = /^(\d+)([mhd])$/;
const SECONDS = /^\d+(\.\d+)?$/;
const DAY = /^\d{4}-\d\d-\d\d$/;
const RUN_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

function isKey(text: string): text is QueryKey {
  return (KEYS as readonly string[]).includes(text);
}

/** Unix seconds, by the viewer's clock; null: it is no time. */
export function timeOf(text: string, now: number): number | null {
  if (SECONDS.test(text)) return Number(text);
  const span = SPAN.exec(text);
  if (span) return now - Number(span[1]) * UNITS[span[2] as keyof typeof UNITS];
  const whole = DAY.test(text) ? `${text}T00:00` : text;
  const at = Date.parse(isUtc.value && /T[\d:.]+$/.test(whole) ? `${whole}Z` : whole);
  return /^\d{4}-/.test(text) && Number.isFinite(at) ? at / 1000 : null;
}

export function statusOf(text: string | undefined): RunStatus | undefined {
  return STATUSES.find((status) => status === text?.toUpperCase());
}

function isParam(key: string | null): key is ParamKey {
  return /^param\.[^.]/.test(key ?? "");
}

/** Whether whole runs are needed to know what matches. */
export function asksParams({ q }: RunFilters): boolean {
  return q !== undefined && restOf(q).some(({ key }) => isParam(key));
}

function isMeant({ key, value }: Term): boolean {
  if (value === "") return false;
  if (key === "status") return statusOf(value) !== undefined;
  return key === "since" || key === "until" ? timeOf(value, 0) !== null : true;
}

function termsIn(text: string): { term: Term; whole: string; isKnown: boolean }[] {
  const found = [...text.matchAll(TERM)].filter(([whole]) => whole !== "");
  return found.map(([whole, minus, key = "", quoted, plain]) => {
    const isKnown = key === "" || isKey(key.toLowerCase()) || isParam(key);
    const name = isParam(key) ? key : (key.toLowerCase() as QueryKey);
    const term = { key: key === "" ? null : name, value: quoted ?? plain ?? "" };
    return { term: { ...term, isNot: minus === "-" }, whole, isKnown };
  });
}

export function parsed(text: string): Query {
  const filters: RunFilters = {};
  const rest: Term[] = [];
  const wrong: string[] = [];
  for (const { term, whole, isKnown } of termsIn(text)) {
    const key = SERVED.find((one) => one === term.key);
    const isTime = key === "since" || key === "until";
    if (!isKnown || !isMeant(term) || (isTime && term.isNot)) wrong.push(whole);
    else if (key === undefined || term.isNot || (filters[key] !== undefined && !isTime)) rest.push(term);
    else if (key === "status") filters.status = statusOf(term.value);
    else filters[key] = term.value;
  }
  if (rest.length > 0) filters.q = rest.map(termText).join(" ");
  return { filters, wrong };
}

function termText({ key, value, isNot }: Term): string {
  const text = /[\s"]|^-|:/.test(value) ? `"${value.replaceAll('"', "")}"` : value;
  return `${isNot ? "-" : ""}${key === null ? "" : `${key}:`}${text}`;
}

export function textOf({ q, ...filters }: RunFilters): string {
  const served = SERVED.filter((key) => filters[key]).map((key) =>
    termText({ key, value: filters[key]!, isNot: false }),
  );
  return [...served, ...(q ? [q] : [])].join(" ");
}

/** From an address: what means nothing is left out. */
export function filtersOf(query: Record<string, string>): RunFilters {
  const time = (text: string | undefined) => (text && timeOf(text, 0) !== null ? text : undefined);
  return {
    status: statusOf(query.status),
    flow: query.flow || undefined,
    tag: query.tag || undefined,
    since: time(query.since),
    until: time(query.until),
    q: (query.q && parsed(query.q).filters.q) || undefined,
  };
}

/** With times that a server takes. A span ends now, and moves on in steps, or the list would begin anew each second. */
export function resolved(filters: RunFilters, now: number): RunFilters {
  const at = (text: string | undefined) => {
    if (text === undefined) return undefined;
    const span = SPAN.exec(text);
    const step = span ? Math.max(60, (now - timeOf(text, now)!) / 60) : 1;
    return String(timeOf(text, span ? Math.floor(now / step) * step : now));
  };
  return { ...filters, since: at(filters.since), until: at(filters.until) };
}

/** As the server's lists and operations take them. */
export function queryOf({ since, until, q: _, ...rest }: RunFilters) {
  return {
    ...rest,
    ...(since ? { updated_after: Number(since) } : {}),
    ...(until ? { updated_before: Number(until) } : {}),
  };
}

let last: { q: string; terms: Term[] } = { q: "", terms: [] };

function restOf(q: string): Term[] {
  if (q !== last.q) last = { q, terms: termsIn(q).map(({ term }) => term) };
  return last.terms;
}

function tagsOf(run: RunSummary): string[] {
  return [run.tag ?? "", ...(run.tags ?? [])];
}

/** A run in the list; its params only where they are asked for. */
export type ListedRun = RunSummary & { params?: unknown };

function paramOf(run: ListedRun, path: string): unknown {
  const inside = (known: unknown, name: string) =>
    typeof known === "object" && known !== null && Object.hasOwn(known, name)
      ? (known as Record<string, unknown>)[name]
      : undefined;
  return path.split(".").reduce(inside, run.params);
}

/** Names are meant as a whole, texts in part. */
function has(run: ListedRun, { key, value }: Term): boolean {
  if (isParam(key)) {
    const found = paramOf(run, key.slice("param.".length));
    return found !== undefined && (typeof found === "string" ? found : JSON.stringify(found)) === value;
  }
  const within = (text: string | null) => (text ?? "").toLowerCase().includes(value.toLowerCase());
  if (key === "flow") return run.flow_name === value;
  if (key === "status") return run.status === statusOf(value);
  if (key === "tag") return tagsOf(run).includes(value);
  if (key === "worker") return run.worker_id === value;
  if (key === "error") return within(run.error);
  if (key === "id") return within(run.run_id);
  return within(run.flow_name) || within(run.error) || within(run.run_id);
}

/** `filters`: with times as the server takes them. */
export function matches(run: ListedRun, filters: RunFilters): boolean {
  return (
    (!filters.status || run.status === filters.status) &&
    (!filters.flow || run.flow_name === filters.flow) &&
    (!filters.tag || tagsOf(run).includes(filters.tag)) &&
    (!filters.since || run.updated_at > Number(filters.since)) &&
    (!filters.until || run.updated_at < Number(filters.until)) &&
    (!filters.q || restOf(filters.q).every((term) => has(run, term) !== term.isNot))
  );
}

/** The run that is asked for, where nothing but its whole id is typed. */
export function runIdIn(text: string): string | null {
  const id = text.trim().replace(/^id:/i, "");
  return RUN_ID.test(id) ? id.toLowerCase() : null;
}

export interface Names {
  flow: readonly string[];
  tag: readonly string[];
  worker: readonly string[];
}

export interface Completion {
  /** What stands for the last word. */
  word: string;
  /** A key, whose value comes next. */
  isKey: boolean;
}

const SPANS = ["1h", "24h", "7d", "30d"];
const MOST = 10;

/** How the last word may go on. */
export function completions(text: string, names: Names): Completion[] {
  const word = /(?:[^\s"]|"[^"]*"?)*$/.exec(text)![0];
  const [, minus = "", key, value = ""] = /^(-?)(?:([\w.]+):)?(.*)$/s.exec(word)!;
  const isLike = (one: string) => one.toLowerCase().includes(value.replaceAll('"', "").toLowerCase());
  const of = (name: QueryKey, values: readonly string[]) =>
    values
      .filter((one) => isLike(one) && one !== value)
      .map((one) => ({ word: termText({ key: name, value: one, isNot: minus === "-" }), isKey: false }));
  if (key === undefined) {
    const keys = [...KEYS.map((one) => `${one}:`), "param."].filter((one) => one.startsWith(value.toLowerCase()));
    const flows = value === "" ? [] : of("flow", names.flow);
    return [...keys.map((one) => ({ word: minus + one, isKey: true })), ...flows].slice(0, MOST);
  }
  if (key === "status") return of(key, STATUSES);
  if (key === "since") return of(key, SPANS);
  if (key === "flow" || key === "tag" || key === "worker") return of(key, names[key]).slice(0, MOST);
  return [];
}

/** The text with a completion in place of its last word. */
export function completed(text: string, { word, isKey }: Completion): string {
  return text.replace(/(?:[^\s"]|"[^"]*"?)*$/, () => word) + (isKey ? "" : " ");
}
