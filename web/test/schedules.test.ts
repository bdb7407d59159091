import { describe, expect, it } from "vitest";
import type { Schedule, Tick } from "../src/api/client";
import { knownZone, zonedTime } from "../src/format";
import { fill } from "../src/i18n";
import en from "../src/i18n/en.json";
import ja from "../src/i18n/ja.json";
import { laidOver, type Pages, withNext } from "../src/live/paged";
import { definitionOf as bodyOf, textsOf, timingOf } from "../src/schedules/form";
import { aimOf, dayPath, definitionOf, isLate, keyOf, reasonOf, standing } from "../src/schedules/schedule";
import { whenOf } from "../src/schedules/when";

function words(schedule: { cron?: string; every_sec?: number }, language: "en" | "ja" = "en"): string | null {
  const found = whenOf({ cron: null, every_sec: null, ...schedule }, language);
  return found && fill({ en, ja }[language][found.key], found.values);
}

describe("the form", () => {
  const known = {
    id: "nightly",
    target: { flow: "report", params: { rows: 4 }, delay_sec: 5, retry: { max_attempts: 3, factor: 4 } },
    cron: "30 2 * * *",
    every_sec: null,
    timezone: "Asia/Tokyo",
    starts_at: 1_800_000_000.25,
    ends_at: null,
    overlap: "queue",
    catch_up: "all",
    catch_up_window_sec: 3600,
    jitter_sec: 0,
    pause_after_failures: 3,
    description: null,
  } as unknown as Schedule;

  it("gives back what it was given, with what it has no field for", () => {
    expect(bodyOf(textsOf(known, "UTC"), known, "")).toEqual({
      target: known.target,
      cron: "30 2 * * *",
      timezone: "Asia/Tokyo",
      starts_at: 1_800_000_000.25,
      overlap: "queue",
      catch_up: "all",
      catch_up_window_sec: 3600,
      pause_after_failures: 3,
    });
  });

  it("leaves out what another kind of target has", () => {
    const texts = { ...textsOf(known, "UTC"), kind: "graph" as const, name: " close ", input: '{"ym": 1}' };
    expect(bodyOf(texts, known, "").target).toEqual({ graph: "close", input: { ym: 1 } });
  });

  it("takes either times or an interval", () => {
    const texts = { ...textsOf(null, "UTC"), rhythm: "every" as const, every_sec: "90" };
    expect(timingOf(texts, null)).toEqual({ every_sec: 90, timezone: "UTC" });
    expect(timingOf({ ...texts, rhythm: "cron" }, null)).toEqual({ cron: "0 9 * * *", timezone: "UTC" });
  });

  it("refuses params that are no object, and takes any data for a template", () => {
    const texts = { ...textsOf(null, "UTC"), name: "x", input: "[1]" };
    expect(() => bodyOf(texts, null, "expected {…}")).toThrow("expected {…}");
    expect(bodyOf({ ...texts, kind: "template" }, null, "").target).toEqual({ template: "x", data: [1] });
  });
});

describe("the times of a schedule, in words", () => {
  it.each([
    ["30 2 * * *", "Every day at 02:30", "毎日 02:30"],
    ["@daily", "Every day at 00:00", "毎日 00:00"],
    ["0 9,18 * * *", "Every day at 09:00, 18:00", "毎日 09:00, 18:00"],
    ["0 0 9 * * MON-fri", "Mon–Fri at 09:00", "毎週 月〜金 09:00"],
    ["5 9 * * 0,6", "Sun, Sat at 09:05", "毎週 日・土 09:05"],
    ["5 9 * * 7", "Sun at 09:05", "毎週 日 09:05"],
    ["0 6 L * *", "Last day of every month at 06:00", "毎月末日 06:00"],
    ["@monthly", "Day 1 of every month at 00:00", "毎月 1 日 00:00"],
    ["0 6 31 dec *", "Every year on Dec 31 at 06:00", "毎年 12月31日 06:00"],
    ["* * * * *", "Every minute", "毎分"],
    ["*/15 * * * *", "Every 15 minutes", "15 分ごと"],
    ["7 * * * *", "Every hour at :07", "毎時 07 分"],
    ["0 */6 * * *", "Every 6 hours at :00", "6 時間ごと（00 分）"],
  ])("%s", (cron, en, ja) => {
    expect(words({ cron })).toBe(en);
    expect(words({ cron }, "ja")).toBe(ja);
  });

  it.each([
    "*/7 * * * *", // the last step of an hour is shorter
    "0 */5 * * *",
    "0 0 1 * 1", // the first, and every Monday
    "0 9 * * 5L",
    "0 9 * * MON#1",
    "0 9 1-7 * *",
    "0 9 * 1,7 *",
    "0,30 9 * * *",
    "0 9-17 * * *",
    "0 1,2,3,4,5 * * *",
    "30 0 9 * * *", // seconds
    "0 9 * * 1-5 2027",
    "nonsense",
    "",
  ])("has none for %s", (cron) => expect(words({ cron })).toBeNull());

  it.each([
    [900, "Every 15 minutes", "15 分ごと"],
    [1, "Every second", "1 秒ごと"],
    [5400, "Every 90 minutes", "90 分ごと"],
    [86_400, "Every day", "1 日ごと"],
    [1.5, "Every 1.5 seconds", "1.5 秒ごと"],
  ])("every %s s", (every_sec, en, ja) => {
    expect(words({ every_sec })).toBe(en);
    expect(words({ every_sec }, "ja")).toBe(ja);
  });
});

describe("a time in a zone", () => {
  const at = Date.UTC(2026, 10, 17, 17, 30) / 1000;

  it("is that of the zone, whatever the viewer's is", () => {
    expect(zonedTime(at, "Asia/Tokyo", "en")).toBe("Wed, Nov 18, 2026, 02:30");
    expect(zonedTime(at, "UTC", "en")).toBe("Tue, Nov 17, 2026, 17:30");
    expect(zonedTime(at + 5, "Asia/Tokyo", "en")).toBe("Wed, Nov 18, 2026, 02:30:05");
    expect(zonedTime(at, "Asia/Tokyo", "ja")).toBe("2026年11月18日(水) 02:30");
  });

  it("falls back where the browser does not know the zone", () => {
    expect(knownZone("Asia/Tokyo")).toBe("Asia/Tokyo");
    expect(knownZone("Mars/Olympus")).toBeUndefined();
  });
});

describe("a schedule", () => {
  const schedule: Schedule = {
    id: "nightly",
    target: { flow: "report", timeout_sec: 30 } as Schedule["target"],
    cron: "30 2 * * *",
    every_sec: null,
    timezone: "Asia/Tokyo",
    starts_at: null,
    ends_at: null,
    overlap: "skip",
    catch_up: "latest",
    catch_up_window_sec: 86_400,
    jitter_sec: 0,
    pause_after_failures: null,
    description: null,
    paused: false,
    paused_reason: null,
    next_due_at: 5,
    last_tick: null,
    waiting: 0,
    failures: 0,
    version: 1,
    created_at: 0,
    updated_at: 0,
  };

  it("is active, paused or over", () => {
    expect(standing(schedule)).toBe("SCHEDULED");
    expect(standing({ ...schedule, paused: true, next_due_at: null })).toBe("PAUSED");
    expect(standing({ ...schedule, next_due_at: null })).toBe("OVER");
    expect(standing({ ...schedule, next_due_at: null, waiting: 1 })).toBe("SCHEDULED");
  });

  it("starts a flow, a graph or a template", () => {
    expect(aimOf(schedule)).toEqual({ kind: "flow", name: "report" });
    expect(aimOf({ target: { graph: "close" } })).toEqual({ kind: "graph", name: "close" });
    expect(aimOf({ target: { template: "t" } })).toEqual({ kind: "template", name: "t" });
  });

  it("is shown as what was put", () => {
    expect(definitionOf(schedule)).toEqual({
      target: { flow: "report", timeout_sec: 30 },
      cron: "30 2 * * *",
      timezone: "Asia/Tokyo",
      overlap: "skip",
      catch_up: "latest",
      catch_up_window_sec: 86_400,
    });
  });
});

describe("ticks", () => {
  const tick = (due_at: number, more: Partial<Tick> = {}): Tick => ({
    due_at,
    status: "STARTED",
    fired_at: due_at,
    late_sec: 0,
    ...more,
  });

  it("are skipped for reasons with words, or for others", () => {
    expect(["overlap", "paused", "outside window", "limit"].map(reasonOf)).not.toContain(null);
    expect(reasonOf("graph not found: x")).toBeNull();
    expect(reasonOf("toString")).toBeNull();
  });

  it("are late when the server would say so", () => {
    expect([tick(0, { late_sec: 5 }), tick(0, { late_sec: 5.1 })].map(isLate)).toEqual([false, true]);
    expect(isLate(tick(0, { late_sec: 99, status: "SKIPPED" }))).toBe(false);
  });

  it("that are read again keep the pages below them", () => {
    const known: Pages<Tick> = { rows: [4, 3, 2, 1].map((at) => tick(at)), cursor: "behind 1", isLoaded: true };
    const page = (times: number[], next_cursor: string | null) => ({ items: times.map((at) => tick(at)), next_cursor });
    const due = (pages: Pages<Tick>) => pages.rows.map((row) => row.due_at);

    const next = laidOver(known, page([6, 5, 4, 3], "behind 3"), keyOf);
    expect([due(next), next.cursor]).toEqual([[6, 5, 4, 3, 2, 1], "behind 1"]);
    const all = laidOver(known, page([9, 8], "behind 8"), keyOf);
    expect([due(all), all.cursor]).toEqual([[9, 8], "behind 8"]);
    expect(due(laidOver(known, page([4, 3], null), keyOf))).toEqual([4, 3]);
    expect(laidOver(known, page([], null), keyOf)).toEqual({ rows: [], cursor: null, isLoaded: true });
    const more = withNext(known, page([1, 0], null), keyOf);
    expect([due(more), more.cursor]).toEqual([[4, 3, 2, 1, 0], null]);
  });
});

describe("the next day", () => {
  it("has a mark per tick, and one for those that would lie on each other", () => {
    expect(dayPath([1000, 1000 + 43_200, 1000 + 43_201], 1000)).toBe("M0 2V14M120 2V14");
    expect(dayPath([], 0)).toBe("");
  });
});
