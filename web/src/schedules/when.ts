/**
 * The times of a schedule in words. Only the common shapes of cron have some; of others the expression itself shows
 * more than words that nearly fit.
 */
import type { Schedule } from "../api/client";
import type { Language } from "../app/settings";
import type { Key } from "../i18n";

export interface Words {
  key: Key;
  values: Record<string, string | number>;
}

const SHORTHANDS: Record<string, string> = {
  "@hourly": "0 * * * *",
  "@daily": "0 0 * * *",
  "@midnight": "0 0 * * *",
  "@weekly": "0 0 * * 0",
  "@monthly": "0 0 1 * *",
  "@yearly": "0 0 1 1 *",
  "@annually": "0 0 1 1 *",
};
const DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const UNITS = [
  [86_400, "day"],
  [3600, "hour"],
  [60, "minute"],
  [1, "second"],
] as const;
/** More times a day than these are no easier to read than the expression. */
const MOST_HOURS = 4;

export function whenOf(schedule: Pick<Schedule, "cron" | "every_sec">, language: Language): Words | null {
  if (schedule.every_sec !== null)
    return { key: "when.every", values: { time: interval(schedule.every_sec, language) } };
  return cronWords(schedule.cron ?? "", language);
}

/** `15 minutes`, or in English `day`, behind `every` or `the last`: in the largest unit of which it is a whole number. */
export function interval(seconds: number, language: Language): string {
  const [size, unit] = UNITS.find(([size]) => seconds % size === 0) ?? [1, "second"];
  if (seconds === size && language === "en") return unit;
  return new Intl.NumberFormat(language, { style: "unit", unit, unitDisplay: "long" }).format(seconds / size);
}

function cronWords(cron: string, language: Language): Words | null {
  const fields = (SHORTHANDS[cron.trim().toLowerCase()] ?? cron).trim().toUpperCase().split(/\s+/);
  if (fields.length === 6 && fields.shift() !== "0") return null;
  if (fields.length !== 5) return null;
  const [minute, hour, day, month, weekday] = fields as [string, string, string, string, string];
  const isEveryDay = day === "*" && month === "*" && weekday === "*";
  const time = timeOf(minute, hour);
  if (time === null) return isEveryDay ? rhythm(minute, hour) : null;
  if (isEveryDay) return { key: "when.day", values: { time } };
  if (day === "*" && month === "*") {
    const days = weekdays(weekday, language);
    return days === null ? null : { key: "when.week", values: { days, time } };
  }
  return weekday === "*" ? dated(day, month, time, language) : null;
}

/** Times that do not depend on the day: every so many minutes or hours. */
function rhythm(minute: string, hour: string): Words | null {
  const minutes = step(minute, 60);
  if (hour === "*" && minutes === 1) return { key: "when.minute", values: {} };
  if (hour === "*" && minutes !== null) return { key: "when.minutes", values: { n: minutes } };
  const at = number(minute, 0, 59);
  const hours = step(hour, 24);
  if (at === null || hours === null) return null;
  const values = { n: hours, minute: twoDigits(at) };
  return hours === 1 ? { key: "when.hour", values } : { key: "when.hours", values };
}

/** `*` is a step of 1. Null: the steps of the last round and the next are not equally long. */
function step(field: string, of: number): number | null {
  if (field === "*") return 1;
  const found = number(/^\*\/(\d+)$/.exec(field)?.[1] ?? "", 1, of - 1);
  return found !== null && of % found === 0 ? found : null;
}

function timeOf(minute: string, hour: string): string | null {
  const at = number(minute, 0, 59);
  const hours = hour.split(",").map((one) => number(one, 0, 23));
  if (at === null || hours.length > MOST_HOURS || hours.includes(null)) return null;
  return hours.map((one) => `${twoDigits(one!)}:${twoDigits(at)}`).join(", ");
}

function weekdays(field: string, language: Language): string | null {
  const format = new Intl.DateTimeFormat(language, { weekday: "short", timeZone: "UTC" });
  // The first day of 2023 was a Sunday.
  const name = (day: number) => format.format(Date.UTC(2023, 0, 1 + (day % 7)));
  const parts = field.split(",").map((part) => {
    const ends = part.split("-").map((end) => named(end, DAYS, 0, 7));
    if (ends.length > 2 || ends.includes(null)) return null;
    return ends.map((end) => name(end!)).join(language === "ja" ? "〜" : "–");
  });
  return parts.includes(null) ? null : parts.join(language === "ja" ? "・" : ", ");
}

function dated(day: string, month: string, time: string, language: Language): Words | null {
  if (day === "L" && month === "*") return { key: "when.monthEnd", values: { time } };
  const date = number(day, 1, 31);
  if (date === null) return null;
  if (month === "*") return { key: "when.month", values: { day: date, time } };
  const found = named(month, MONTHS, 1, 12);
  if (found === null) return null;
  const format = new Intl.DateTimeFormat(language, { month: "short", day: "numeric", timeZone: "UTC" });
  return { key: "when.year", values: { date: format.format(Date.UTC(2024, found - 1, date)), time } };
}

function named(text: string, names: readonly string[], from: number, to: number): number | null {
  const at = names.indexOf(text);
  return at < 0 ? number(text, from, to) : at + from;
}

function number(text: string, from: number, to: number): number | null {
  const value = /^\d+$/.test(text) ? Number(text) : Number.NaN;
  return value >= from && value <= to ? value : null;
}

function twoDigits(value: number): string {
  return String(value).padStart(2, "0");
}
