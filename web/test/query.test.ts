import { describe, expect, it } from "vitest";
import {
  asksParams,
  completed,
  completions,
  filtersOf,
  matches,
  parsed,
  resolved,
  runIdIn,
  textOf,
  timeOf,
} from "../src/runs/query";
import { readViews, viewOf } from "../src/runs/views";
import { aRun } from "./builders";

const NOW = 1_800_000_000;

describe("params in a query", () => {
  const run = { ...aRun("r", 1), params: { x: 1, month: "2027-01", on: true, customer: { id: 7 }, none: null } };

  it.each([
    ["param.x:1", true],
    ["param.x:10", false],
    ["param.month:2027-01", true],
    ["param.on:true param.none:null", true],
    ["param.customer.id:7", true],
    ["param.customer:7", false],
    ["param.nothing:1", false],
    ["-param.nothing:1", true],
    ["-param.x:1", false],
    ["param.toString:1", false],
  ])("%s", (q, isWanted) => {
    expect(matches(run, { q })).toBe(isWanted);
    expect(asksParams({ q })).toBe(true);
  });

  it("are asked for only where they are needed", () => {
    expect([{}, { q: "error:x" }, { flow: "param.x" }].map(asksParams)).toEqual([false, false, false]);
  });

  it("are suggested", () => {
    const none = { flow: [], tag: [], worker: [] };
    expect(completions("-par", none)).toEqual([{ word: "-param.", isKey: true }]);
  });
});

describe("a query", () => {
  it.each([
    ["", {}, []],
    ["flow:orders status:failed", { flow: "orders", status: "FAILED" }, []],
    ['flow:"two words" since:24h', { flow: "two words", since: "24h" }, []],
    ["-tag:gpu worker:node-1", { q: "-tag:gpu worker:node-1" }, []],
    ['error:"no rate" rate', { q: 'error:"no rate" rate' }, []],
    ["flow:a flow:b", { flow: "a", q: "flow:b" }, []],
    ["FLOW:a", { flow: "a" }, []],
    ["status:fine params.x:1 flow:a since:soon", { flow: "a" }, ["status:fine", "params.x:1", "since:soon"]],
    ["param.x:1 -param.Customer.id:7", { q: "param.x:1 -param.Customer.id:7" }, []],
    ["param.:1 param:2", {}, ["param.:1", "param:2"]],
    ["-since:24h flow:", {}, ["-since:24h", "flow:"]],
    ['"flow:a"', { q: '"flow:a"' }, []],
  ])("%s", (text, filters, wrong) => {
    expect(parsed(text)).toEqual({ filters, wrong });
    expect(parsed(textOf(parsed(text).filters))).toEqual({ filters, wrong: [] });
  });

  it("comes from the address; what means nothing is left out", () => {
    expect(
      filtersOf({ status: "FAILED", flow: "etl", tag: "", since: "24h", until: "x", q: "-flow:a since:x" }),
    ).toEqual({
      status: "FAILED",
      flow: "etl",
      since: "24h",
      q: "-flow:a",
    });
    expect(filtersOf({ status: "<b>" }).status).toBeUndefined();
  });

  it.each([
    ["90", 90],
    ["24h", NOW - 86_400],
    ["7d", NOW - 7 * 86_400],
    ["2026-01-31T10:00:00Z", Date.UTC(2026, 0, 31, 10) / 1000],
    ["2026-01-31", new Date(2026, 0, 31).getTime() / 1000],
    ["31.1.2026", null],
    ["5x", null],
  ])("the time %s", (text, at) => expect(timeOf(text, NOW)).toBe(at));

  it("ends now, in steps: a list is not read again with every second", () => {
    const at = (now: number) => resolved({ since: "24h" }, now).since;
    expect(Number(at(NOW))).toBeLessThanOrEqual(NOW - 86_400);
    expect(Number(at(NOW))).toBeGreaterThan(NOW - 86_400 - 1440);
    const later = Array.from({ length: 60 }, (_, n) => at(NOW + n));
    expect(new Set(later).size).toBeLessThanOrEqual(2);
    expect(resolved({ since: "90" }, NOW).since).toBe("90");
  });

  it("is for a run where it is nothing but an id", () => {
    const id = "01a1f263-3fd8-70c1-933c-14c83d95d883";
    expect([id, ` id:${id} `, `flow:${id}`, "14c83d95d883"].map(runIdIn)).toEqual([id, id, null, null]);
  });
});

describe("a run matches", () => {
  const run = aRun("01a1-ec25", 5, {
    flow_name: "fx",
    tag: "cpu",
    tags: ["eu"],
    worker_id: "node-1",
    error: "No rate",
  });
  it.each([
    ["tag:cpu", true],
    ["tag:eu", true],
    ["tag:us", false],
    ["-tag:eu", false],
    ["-tag:us", true],
    ["worker:node-1", true],
    ["worker:node", false],
    ["error:rate", true],
    ['error:"no RATE"', true],
    ["id:ec25", true],
    ["rate fx", true],
    ["rate -fx", false],
    ["-status:running", false],
    ["since:4 until:6", true],
    ["since:5", false],
  ])("%s: %s", (text, isThere) => expect(matches(run, parsed(text).filters)).toBe(isThere));
});

describe("completions", () => {
  const names = { flow: ["orders", "two words"], tag: ["gpu"], worker: ["node-1"] };
  it.each([
    ["st", ["status:"]],
    ["ers", ["flow:orders"]],
    ["-fl", ["-flow:"]],
    ["flow:", ["flow:orders", 'flow:"two words"']],
    ['status:failed flow:"two w', ['flow:"two words"']],
    ["status:can", ["status:CANCELLING", "status:CANCELLED"]],
    ["-worker:", ["-worker:node-1"]],
    ["error:x", []],
  ])("of %s", (text, words) => expect(completions(text, names).map((one) => one.word)).toEqual(words));

  it("stand for the last word", () => {
    expect(completed("tag:gpu flow:", { word: 'flow:"two words"', isKey: false })).toBe('tag:gpu flow:"two words" ');
    expect(completed("tag:gpu fl", { word: "flow:", isKey: true })).toBe("tag:gpu flow:");
  });
});

describe("saved views", () => {
  it("that cannot be read are none", () => {
    for (const text of [null, "{", "7", '[{"name": 5}, null]']) expect(readViews(text)).toEqual([]);
  });

  it("are found by what they show", () => {
    const views = readViews('[{"name": "mine", "filters": {"flow": "a", "status": "FAILED", "bad": "x"}}]');
    expect(viewOf(views, { status: "FAILED", flow: "a" })?.name).toBe("mine");
    expect(viewOf(views, { status: "FAILED" })).toBeUndefined();
  });
});
