/** Figures and texts as people read them. */
import type { Language } from "./app/settings";
import { shownZone } from "./app/zone";
import { language } from "./i18n";

const UNITS = [
  [86_400, "d", "日"],
  [3600, "h", "時間"],
  [60, "m", "分"],
  [1, "s", "秒"],
] as const;

/** `840 ms`, `3.2 s`, `4m 05s`, `2h 10m`, `3d 04h`; `3.2秒`, `4分5秒`: two units at most. */
export function duration(seconds: number, shown: Language = language.value): string {
  const value = Math.max(0, seconds);
  if (value > 0 && value < 0.0005) return "<1 ms";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return inSeconds(value.toFixed(1), shown);
  if (value < 59.5) return inSeconds(String(Math.round(value)), shown);
  const whole = Math.round(value);
  const at = UNITS.findIndex(([size]) => whole >= size);
  const [size, name, word] = UNITS[at]!;
  const [nextSize, nextName, nextWord] = UNITS[at + 1]!;
  const [first, rest] = [Math.floor(whole / size), Math.floor((whole % size) / nextSize)];
  if (shown === "ja") return `${first}${word}${rest === 0 ? "" : `${rest}${nextWord}`}`;
  return `${first}${name} ${String(rest).padStart(2, "0")}${nextName}`;
}

function inSeconds(text: string, shown: Language): string {
  return shown === "ja" ? `${text}秒` : `${text} s`;
}

/** On an axis, where the figures are round: `2 s` and not `2.0 s`. */
export function tickLabel(seconds: number, shown: Language = language.value): string {
  if (seconds === 0) return "0";
  return seconds >= 1 && seconds < 60 ? inSeconds(String(Number(seconds.toFixed(1))), shown) : duration(seconds, shown);
}

/** `5 s ago`, in the language's words. */
export function ago(seconds: number, language: Language): string {
  const format = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "narrow" });
  const value = Math.max(0, seconds);
  if (value < 60) return format.format(-Math.floor(value), "second");
  if (value < 3600) return format.format(-Math.floor(value / 60), "minute");
  if (value < 86_400) return format.format(-Math.floor(value / 3600), "hour");
  return format.format(-Math.floor(value / 86_400), "day");
}

export type Urgency = "late" | "soon" | "calm";

const SOON_SEC = 3600;

/** How long there is until a deadline. */
export function countdown(deadline: number, now: number): { text: string; urgency: Urgency } {
  const left = deadline - now;
  const urgency = left <= 0 ? "late" : left < SOON_SEC ? "soon" : "calm";
  return { text: tickLabel(Math.floor(Math.abs(left))), urgency };
}

export function dateTime(unixSeconds: number, language: Language): string {
  const timeZone = shownZone();
  const format = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium", timeZone });
  return timeZone ? `${format.format(unixSeconds * 1000)} ${timeZone}` : format.format(unixSeconds * 1000);
}

/** `14:03:22 UTC`, `23:03:22 GMT+9`. */
export function zonedClock(unixSeconds: number, timeZone: string | undefined): string {
  const parts = { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" } as const;
  return new Intl.DateTimeFormat("en", { ...parts, hourCycle: "h23", timeZone }).format(unixSeconds * 1000);
}

/** In a time zone that may not be the viewer's; seconds only where there are some. */
export function zonedTime(unixSeconds: number, timeZone: string, language: Language): string {
  const hasSeconds = Math.floor(unixSeconds) % 60 !== 0;
  return new Intl.DateTimeFormat(language, {
    timeZone,
    weekday: "short",
    year: "numeric",
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    ...(hasSeconds ? { second: "2-digit" } : {}),
    hourCycle: "h23",
  }).format(unixSeconds * 1000);
}

/** The zone, unless this browser does not know it. */
export function knownZone(timeZone: string): string | undefined {
  try {
    new Intl.DateTimeFormat("en", { timeZone });
    return timeZone;
  } catch {
    return undefined;
  }
}

export function clockTime(unixSeconds: number, withSeconds = true): string {
  const date = new Date(unixSeconds * 1000);
  const [hours, minutes, seconds] = shownZone()
    ? [date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds()]
    : [date.getHours(), date.getMinutes(), date.getSeconds()];
  const parts = [hours, minutes, ...(withSeconds ? [seconds] : [])];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

export function bytes(count: number): string {
  if (count < 1000) return `${count} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = count;
  let unit = -1;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function count(value: number, language: Language): string {
  return new Intl.NumberFormat(language).format(value);
}

/** `1.2k`, for where there is little room. */
export function compact(value: number): string {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** Of an id that the server made, the end, which is what differs between ids of one day. Others are names. */
export function shortId(id: string): string {
  return UUID.test(id) ? id.slice(-12) : id;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: finding them is its purpose
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** Anybody's text, with what would be invisible or turn the line around made visible. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (character) => {
    const code = character.codePointAt(0)!.toString(16);
    return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
  });
}

/** One argument of a POSIX shell. */
export function shellQuoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
