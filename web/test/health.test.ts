import { describe, expect, it } from "vitest";
import { healthOf } from "../src/app/health";

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
