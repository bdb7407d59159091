import { describe, expect, it } from "vitest";
import type { Step } from "../src/api/client";
import { bars, columns, isMonth, monthOf, monthsFrom, monthsUpTo } from "../src/events/months";
import { bodyOf, changedStep, draftOf, movedStep, newDraft, withoutStep, withStep } from "../src/events/templates";

describe("months", () => {
  it("go over the ends of years", () => {
    expect(monthsFrom("2026-01", -1)).toBe("2025-12");
    expect(monthsFrom("2026-12", 1)).toBe("2027-01");
    expect(monthsFrom("2026-11", -23)).toBe("2024-12");
    expect(monthsUpTo("2026-02", 3)).toEqual(["2025-12", "2026-01", "2026-02"]);
  });

  it("are those of the server's clock, and nothing else is one", () => {
    expect(monthOf(Date.UTC(2026, 10, 30, 23, 59) / 1000)).toBe("2026-11");
    expect(isMonth("2026-11")).toBe(true);
    for (const text of [undefined, "", "2026-13", "2026-1", "2026-11-01"]) expect(isMonth(text)).toBe(false);
  });

  it("are columns whose parts stand on each other", () => {
    const [small, large] = columns([
      { ym: "2026-10", total: 2, by_status: { success: 1, failed: 1 } },
      { ym: "2026-11", total: 8, by_status: { success: 6, rejected: 2, skipped: 0 } },
    ]);
    expect(large!.parts).toEqual([
      { status: "success", count: 6, from: 0, height: 0.75 },
      { status: "rejected", count: 2, from: 0.75, height: 0.25 },
    ]);
    expect(small!.parts.map((part) => part.height)).toEqual([0.125, 0.125]);
    expect(columns([{ ym: "2026-10", total: 0, by_status: {} }])[0]!.parts).toEqual([]);
  });

  it("have reasons, the most frequent first", () => {
    expect(bars({ a: 1, b: 4 })).toEqual([
      { name: "b", count: 4, share: 1 },
      { name: "a", count: 1, share: 0.25 },
    ]);
    expect(bars({})).toEqual([]);
  });
});

describe("the steps of a template", () => {
  const kinds = (steps: readonly Step[]) => steps.map((step) => step.trigger_kind);

  it("begin with an event, and follow each other", () => {
    const steps = withStep(withStep(newDraft().steps));
    expect(kinds(steps)).toEqual(["external_event", "after_previous", "after_previous"]);
    expect(steps.map((step) => step.id)).toEqual(["step-1", "step-2", "step-3"]);
  });

  it("have ids of their own, also after one was removed", () => {
    const steps = withStep(withoutStep(withStep(withStep(newDraft().steps)), 1));
    expect(new Set(steps.map((step) => step.id)).size).toBe(3);
  });

  it("begin as their place allows when they are moved or removed", () => {
    const steps = changedStep(withStep(newDraft().steps), 1, { trigger_kind: "after_previous", action: "b" });
    const moved = movedStep(steps, 1, -1);
    expect(moved.map((step) => step.action)).toEqual(["b", ""]);
    expect(kinds(moved)).toEqual(["external_event", "after_previous"]);
    expect(kinds(withoutStep(steps, 0))).toEqual(["external_event"]);
    expect(movedStep(steps, 0, -1)).toEqual(steps);
    const byHand = changedStep(steps, 1, { trigger_kind: "manual_start" });
    expect(kinds(movedStep(byHand, 1, -1))).toEqual(["manual_start", "after_previous"]);
  });

  it("are sent without what was left empty, and read back the same", () => {
    const draft = { ...newDraft(), id: "t", name: " Close ", notes: " ", year: "2026", month: "11" };
    const body = bodyOf(draft);
    expect(body).toMatchObject({ name: "Close", year: 2026, month: 11, notes: null, mfcloud_url: null });
    expect(bodyOf(newDraft())).toMatchObject({ year: 0, month: 0 });
    expect(bodyOf(draftOf({ ...body, id: "t", updated_at: "u" }))).toEqual(body);
    expect(draftOf({ ...body, id: "t", updated_at: "u" }).updated_at).toBe("u");
  });

  it("keep whether they need a month, unless year and month say the same", () => {
    const read = (year: number, needs_month: boolean) =>
      draftOf({ ...bodyOf(newDraft()), id: "t", updated_at: "u", year, month: year && 2, needs_month });
    expect([read(2026, true), read(0, false)].map((draft) => draft.needs_month)).toEqual([null, null]);
    expect([read(2026, true), read(0, false)].map((draft) => bodyOf(draft).needs_month)).toEqual([true, false]);
    expect([read(2026, false), read(0, true)].map((draft) => bodyOf(draft).needs_month)).toEqual([false, true]);
  });
});
