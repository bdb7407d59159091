import { describe, expect, it } from "vitest";
import { ago, bytes, duration, shellQuoted, shortId, tickLabel, visible } from "../src/format";

describe("durations", () => {
  it.each([
    [-1, "0 ms"],
    [0, "0 ms"],
    [0.0001, "<1 ms"],
    [0.84, "840 ms"],
    [0.9996, "1.0 s"],
    [3.21, "3.2 s"],
    [9.96, "10 s"],
    [42.4, "42 s"],
    [59.6, "1m 00s"],
    [245, "4m 05s"],
    [7800, "2h 10m"],
    [3 * 86_400 + 4 * 3600, "3d 04h"],
  ])("%s s is %s", (seconds, text) => expect(duration(seconds)).toBe(text));

  it.each([
    [0.84, "840 ms"],
    [3.21, "3.2秒"],
    [42.4, "42秒"],
    [60, "1分"],
    [245, "4分5秒"],
    [7800, "2時間10分"],
    [3 * 86_400 + 4 * 3600, "3日4時間"],
  ])("%s s is %s in Japanese", (seconds, text) => expect(duration(seconds, "ja")).toBe(text));

  it("on an axis have no needless zeros", () => {
    expect([0, 0.5, 1, 2.5, 90].map((sec) => tickLabel(sec))).toEqual(["0", "500 ms", "1 s", "2.5 s", "1m 30s"]);
    expect(tickLabel(2, "ja")).toBe("2秒");
  });
});

describe("ages", () => {
  it("are in the words of the language, and never in the future", () => {
    expect(ago(5, "en")).toBe("5s ago");
    expect(ago(-30, "en")).toBe("now");
    expect(ago(7200, "ja")).toBe("2時間前");
  });
});

describe("sizes", () => {
  it.each([
    [999, "999 B"],
    [1000, "1.0 kB"],
    [999_600, "1.0 MB"],
    [53_500_000, "54 MB"],
  ])("%i is %s", (count, text) => expect(bytes(count)).toBe(text));
});

describe("anybody's text", () => {
  it("shows what would move the cursor or turn the line around", () => {
    expect(visible("\u001b[31mred\u001b[0m")).toBe("\\x1b[31mred\\x1b[0m");
    expect(visible("\u202egnp.exe")).toBe("\\u202egnp.exe");
    expect(visible("a\u0000b\u200bc\u2066d\ufeff")).toBe("a\\x00b\\u200bc\\u2066d\\ufeff");
  });

  it("keeps lines, tabs, markup and every script of the world as they are", () => {
    for (const text of ["a\nb\tc", "<img onerror=alert(1)></script>", "日本語 עברית emoji 🐣"]) {
      expect(visible(text)).toBe(text);
    }
  });
});

describe("arguments of a shell", () => {
  it.each([
    ["plain-1.0", "plain-1.0"],
    ["", "''"],
    ["two words", "'two words'"],
    ["it's", `'it'\\''s'`],
    ["$(reboot)`x`", "'$(reboot)`x`'"],
  ])("%s", (text, quoted) => expect(shellQuoted(text)).toBe(quoted));
});

describe("ids", () => {
  it("that the server made are cut, names are not", () => {
    expect(shortId("0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001")).toBe("eeeeffff0001");
    expect(shortId("monthly-close-2025-12")).toBe("monthly-close-2025-12");
  });
});
