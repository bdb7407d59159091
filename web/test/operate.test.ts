import { describe, expect, it } from "vitest";
import { filterOf as auditFilter, changes } from "../src/admin/audit";
import { bodyOf as keyBody, keyIdOf, standingOf } from "../src/admin/keys";
import { parse } from "../src/admin/prometheus";
import { storedIn } from "../src/admin/storage";
import { scriptOf } from "../src/app/outdated";
import { bodyOf, secondsLeft, share } from "../src/bulk/bulk";
import { asFilter, filterOf } from "../src/letters/letters";
import { matching, toggled } from "../src/runs/selection";

describe("a bulk operation", () => {
  it("names ids, or a filter without what is empty; an empty one is meant", () => {
    expect(bodyOf({ action: "cancel", ids: ["a"] })).toEqual({ action: "cancel", ids: ["a"] });
    expect(bodyOf({ action: "retry", filter: { status: "FAILED", flow: undefined } }, { dry_run: true })).toEqual({
      action: "retry",
      filter: { status: "FAILED" },
      dry_run: true,
    });
    expect(bodyOf({ action: "delete", filter: { flow: undefined } })).toEqual({ action: "delete", all: true });
  });

  it("is at 100 % only when it is over", () => {
    expect(share({ done: 998, failed: 1, total: 1000 })).toBe(99);
    expect(share({ done: 990, failed: 10, total: 1000 })).toBe(100);
    expect(share({ done: 0, failed: 0, total: 0 })).toBe(100);
  });

  it("is estimated by its speed so far, once there is one", () => {
    const at = { done: 90, failed: 10, left: 300, created_at: 1000 };
    expect(secondsLeft(at, 1010)).toBe(30);
    expect(secondsLeft(at, 1001)).toBeNull();
    expect(secondsLeft({ ...at, done: 0, failed: 0 }, 1010)).toBeNull();
  });
});

describe("a selection", () => {
  it("is changed by some at a time", () => {
    expect([...toggled(new Set(["a"]), ["b", "c"], true)]).toEqual(["a", "b", "c"]);
    expect([...toggled(new Set(["a", "b"]), ["a"], false)]).toEqual(["b"]);
  });

  it("of all that match has as many as the chips count", () => {
    expect(matching({ FAILED: 3, COMPLETED: 1200 }, undefined)).toBe(1203);
    expect(matching({ FAILED: 3, COMPLETED: 1200 }, "FAILED")).toBe(3);
    expect(matching({}, "FAILED")).toBe(0);
  });
});

describe("dead letters", () => {
  it("are filtered by what the server knows", () => {
    expect(filterOf({ reason: "max_deliver", since: "1h", flow: "etl", tag: "" }, 10_000)).toEqual({
      reason: "max_deliver",
      flow: "etl",
      since: "6400",
    });
    expect(filterOf({ reason: "nonsense", since: "2y" }, 10_000)).toEqual({});
    expect(asFilter({ since: "6400" })).toEqual({ since: 6400 });
  });
});

describe("an API key", () => {
  it("is valid until it expires or is revoked", () => {
    expect(standingOf({ revoked_at: null, expires_at: null }, 100)).toBe("VALID");
    expect(standingOf({ revoked_at: null, expires_at: 100 }, 100)).toBe("EXPIRED");
    expect(standingOf({ revoked_at: 50, expires_at: 40 }, 100)).toBe("REVOKED");
  });

  it("shows its id, and never its secret", () => {
    expect(keyIdOf("pyoco_abc123.s3cret")).toBe("abc123");
    expect(keyIdOf("something else")).toBeNull();
  });

  it("is asked for without what is not wanted", () => {
    expect(keyBody({ scopes: ["read"], days: 0, description: " " }, 1000)).toEqual({ scopes: ["read"] });
    expect(keyBody({ scopes: ["read"], days: 1, description: " CI " }, 1000)).toEqual({
      scopes: ["read"],
      expires_at: 87_400,
      description: "CI",
    });
  });
});

describe("a change", () => {
  it("is the fields that differ, by their path", () => {
    const before = { cron: "0 1 * * *", target: { flow: "a", params: { n: 1 } }, tags: ["x"] };
    const after = { cron: "0 2 * * *", target: { flow: "a", params: {} }, tags: ["x"], jitter: 5 };
    expect(changes(before, after)).toEqual([
      { path: "cron", before: "0 1 * * *", after: "0 2 * * *" },
      { path: "target.params.n", before: 1, after: undefined },
      { path: "jitter", before: undefined, after: 5 },
    ]);
    expect(changes(null, { a: 1 })).toEqual([{ path: "", before: null, after: { a: 1 } }]);
    expect(changes(after, after)).toEqual([]);
  });

  it("is looked for in whole days of the person who asks", () => {
    const { since, until } = auditFilter({ since: "2026-03-01", until: "2026-03-01", action: "" });
    expect(Number(until) - Number(since)).toBeCloseTo(86_399.999, 3);
    expect(auditFilter({ since: "soon", target: "queue" })).toEqual({ target: "queue" });
  });
});

it("storage is listed with the largest first", () => {
  const text = 'pyoco_storage_bytes{stream="A"} 5\npyoco_storage_bytes{stream="B"} 7\nother 9\n';
  expect(storedIn(parse(text))).toEqual([
    { stream: "B", bytes: 7 },
    { stream: "A", bytes: 5 },
  ]);
});

it("a page is known by the script that it starts with", () => {
  const page = '<script type="module" crossorigin src="/static/assets/index-C_3oFY3l.js"></script>';
  expect(scriptOf(page)).toBe("/static/assets/index-C_3oFY3l.js");
  expect(scriptOf("<h1>502</h1>")).toBeNull();
});
