/** Stored series (`GET /stats`) as the figures, lines and bars of the overview. */
import type { Schemas } from "../api/client";

export type Stats = Schemas["Stats"];
export type StatsPoint = Schemas["StatsPoint"];

export interface Range {
  sec: number;
  bucket: Stats["bucket"];
  /** Seconds of one bar. */
  step: number;
}

export const RANGES = {
  "1h": { sec: 3600, bucket: "minute", step: 60 },
  "24h": { sec: 86_400, bucket: "hour", step: 3600 },
  "7d": { sec: 604_800, bucket: "hour", step: 14_400 },
} as const satisfies Record<string, Range>;

export type RangeName = keyof typeof RANGES;

export function rangeOf(text: string | undefined): RangeName {
  return text !== undefined && Object.hasOwn(RANGES, text) ? (text as RangeName) : "1h";
}

/** Bottom first. */
export const ENDED = ["COMPLETED", "CANCELLED", "FAILED"] as const;
export type Ended = (typeof ENDED)[number];

export interface Slot extends Record<Ended, number> {
  at: number;
  all: number;
  /** Seconds; null: no run ended. */
  wait: number | null;
}

/** Of the bars up to now: the last one is not full yet. */
export function firstBar({ sec, step }: Range, now: number): number {
  return (Math.floor(now / step) + 1) * step - sec;
}

export function slotsOf(stats: Stats, { sec, step }: Range, from: number): Slot[] {
  return Array.from({ length: sec / step }, (_, n) => slot(stats, from + n * step, from + (n + 1) * step));
}

function slot(stats: Stats, from: number, to: number): Slot {
  const points = (key: string) =>
    (stats.series.find((one) => one.key === key)?.points ?? []).filter(({ at }) => at >= from && at < to);
  const counts = Object.fromEntries(ENDED.map((key) => [key, total(points(key))])) as Record<Ended, number>;
  const all = ENDED.reduce((sum, key) => sum + counts[key], 0);
  return { at: from, ...counts, all, wait: p95Of(ENDED.flatMap(points)) };
}

export function total(points: readonly StatsPoint[]): number {
  return points.reduce((sum, point) => sum + point.count, 0);
}

/** How much of a bucket each of its quantiles stands for. */
const SHARES = [
  ["p50", 0.5],
  ["p95", 0.45],
  ["p99", 0.05],
] as const;

/** Of several buckets together. Of one it is exact; between them each stands for its quantiles. */
export function p95Of(points: readonly StatsPoint[]): number | null {
  const samples = points
    .flatMap(({ count, wait }) => SHARES.map(([name, share]) => ({ value: wait[name], weight: count * share })))
    .filter((one): one is { value: number; weight: number } => one.value !== null)
    .sort((a, b) => a.value - b.value);
  const wanted = 0.95 * samples.reduce((sum, one) => sum + one.weight, 0);
  let below = 0;
  for (const one of samples) {
    below += one.weight;
    if (below >= wanted - 1e-9) return one.value;
  }
  return null;
}

export interface Figures {
  all: number;
  failed: number;
  /** 0 to 1; cancelled runs neither succeeded nor failed. */
  success: number | null;
  perMin: number;
  wait: number | null;
}

/** Of the runs that ended within a stretch of time. */
export function figuresOf(stats: Stats, from: number, to: number): Figures {
  const sum = slot(stats, from, to);
  const judged = sum.COMPLETED + sum.FAILED;
  return {
    all: sum.all,
    failed: sum.FAILED,
    success: judged === 0 ? null : sum.COMPLETED / judged,
    perMin: sum.all / ((to - from) / 60),
    wait: sum.wait,
  };
}

export function successOf(one: Slot): number | null {
  const judged = one.COMPLETED + one.FAILED;
  return judged === 0 ? null : one.COMPLETED / judged;
}

export interface Change {
  /** `+12 %`, `−3 pt`. */
  text: string;
  isGood: boolean | null;
}

/** Against the same stretch before; null: there is nothing to compare with. */
export function changeOf(now: number | null, before: number | null, better: "more" | "less" | null): Change | null {
  if (now === null || before === null || before === 0) return null;
  return change(((now - before) / before) * 100, "%", better);
}

/** Of shares: in points, because 99 % instead of 98 % is not "1 % better". */
export function pointsOf(now: number | null, before: number | null): Change | null {
  return now === null || before === null ? null : change((now - before) * 100, "pt", "more");
}

function change(by: number, unit: string, better: "more" | "less" | null): Change {
  const shown = Math.abs(by) < 9.95 ? Math.abs(by).toFixed(1).replace(/\.0$/, "") : String(Math.round(Math.abs(by)));
  const isSame = Number(shown) === 0;
  const sign = isSame ? "±" : by > 0 ? "+" : "−";
  return { text: `${sign}${shown} ${unit}`, isGood: isSame || better === null ? null : by > 0 === (better === "more") };
}

export interface FlowFailures {
  flow: string;
  failed: number;
  all: number;
}

/** Of the many flows beyond those that the server counts apart: it is no name. */
const OTHER = "(other)";

/** The flows with the most failures since a time first; those without any are left out. */
export function failuresByFlow(all: Stats, failed: Stats, since: number): FlowFailures[] {
  const later = ({ at }: StatsPoint) => at >= since;
  const count = (of: Stats, flow: string) =>
    total((of.series.find((one) => one.key === flow)?.points ?? []).filter(later));
  return failed.series
    .map(({ key }) => ({ flow: key, failed: count(failed, key), all: count(all, key) }))
    .filter((one) => one.failed > 0 && one.flow !== OTHER)
    .sort((a, b) => b.failed - a.failed || (a.flow < b.flow ? -1 : 1));
}

/** The points of a key, one value per bar. */
export function countsOf(stats: Stats, key: string, { sec, step }: Range, from: number): number[] {
  const points = stats.series.find((one) => one.key === key)?.points ?? [];
  return Array.from({ length: sec / step }, (_, n) =>
    total(points.filter(({ at }) => at >= from + n * step && at < from + (n + 1) * step)),
  );
}
