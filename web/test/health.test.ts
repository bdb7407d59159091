import { describe, expect, it } from "vitest";
import { healthOf } from "../src/app/health";
import { standingOf } from "../src/app/standing";
import { delaySec, lateSec, track, unconfirmed } from "../src/live/freshness";

describe("what /ready means", () => {
  it.each([
    [200, { nats: "ok", read_model: "ok" }, "ok"],
    [503, { nats: "unavailable", read_model: "ok" }, "nats"],
    [503, { nats: "ok", read_model: "catching up" }, "starting"],
    [503, { nats: "ok", read_model: "ok", storage: "full" }, "nats"],
    [503, {}, "server"], // of a proxy without a server
    [502, {}, "server"],
    [null, {}, "server"],
    [404, {}, "ok"], // an older server has no /ready
  ] as const)("%s %o is %s", (status, facts, health) => {
    expect(healthOf(status, facts)).toBe(health);
  });
});

describe("whether the page is live", () => {
  it.each([
    ["ok", 0, 0, "live"],
    ["ok", 0, 1, "connecting"],
    ["ok", 7, 1, "delayed"],
    ["nats", 7, 1, "nats"],
    ["server", 0, 0, "server"],
  ] as const)("%s, %i s late, %i not confirmed: %s", (health, late, waiting, standing) => {
    expect(standingOf(health, late, waiting)).toBe(standing);
  });

  it("is a matter of the oldest of what is shown, once it is older than it may be", () => {
    const fresh = { at: 99_000, allowedMs: 5000 };
    expect(lateSec([fresh], 100_000)).toBe(0);
    expect(lateSec([fresh, { at: 88_000, allowedMs: 5000 }], 100_000)).toBe(12);
    expect(lateSec([{ at: 88_000, allowedMs: 15_000 }], 100_000)).toBe(0);
  });

  it("follows what is confirmed, lost and not wanted any more", () => {
    const stream = track(5000);
    expect(unconfirmed.value).toBe(1);
    stream.confirm();
    expect([unconfirmed.value, delaySec.value]).toEqual([0, 0]);
    stream.lose();
    expect(unconfirmed.value).toBe(1);
    stream.stop();
    expect(unconfirmed.value).toBe(0);
  });
});
