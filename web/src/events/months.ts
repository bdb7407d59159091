/** Months as the server names them (`2026-11`), and what their events come to. */
import type { EventSummary } from "../api/client";

/** Events are counted in the month of UTC where they do not name one. */
export function monthOf(unixSeconds: number): string {
  return new Date(unixSeconds * 1000).toISOString().slice(0, 7);
}

export function isMonth(text: string | undefined): text is string {
  return /^\d{4}-(0[1-9]|1[0-2])$/.test(text ?? "");
}

export function monthsFrom(month: string, by: number): string {
  const [year = 0, number = 1] = month.split("-").map(Number);
  const at = year * 12 + (number - 1) + by;
  return `${String(Math.floor(at / 12)).padStart(4, "0")}-${String((at % 12) + 1).padStart(2, "0")}`;
}

/** The last of them is `month`. */
export function monthsUpTo(month: string, count: number): string[] {
  return Array.from({ length: count }, (_, n) => monthsFrom(month, n - count + 1));
}

export const STATUSES = ["success", "skipped", "rejected", "failed"] as const;
export type DeliveryStatus = (typeof STATUSES)[number];

export interface Column {
  month: string;
  total: number;
  /** From the bottom to the top, as fractions of the highest column. */
  parts: { status: DeliveryStatus; count: number; from: number; height: number }[];
}

export function columns(summaries: readonly Pick<EventSummary, "ym" | "total" | "by_status">[]): Column[] {
  const highest = Math.max(1, ...summaries.map((summary) => summary.total));
  return summaries.map((summary) => {
    let from = 0;
    const parts = STATUSES.map((status) => {
      const count = summary.by_status[status] ?? 0;
      const part = { status, count, from, height: count / highest };
      from += part.height;
      return part;
    });
    return { month: summary.ym, total: summary.total, parts: parts.filter((part) => part.count > 0) };
  });
}

/** The largest first, with their share of the largest. */
export function bars(counts: Record<string, number>): { name: string; count: number; share: number }[] {
  const sorted = Object.entries(counts).sort(([, a], [, b]) => b - a);
  const largest = Math.max(1, sorted[0]?.[1] ?? 1);
  return sorted.map(([name, count]) => ({ name, count, share: count / largest }));
}
