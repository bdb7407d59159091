import { describe, expect, it } from "vitest";
import type { LogLine } from "../src/api/client";
import { pieces } from "../src/runs/ansi";
import { asText, behindGaps, isCut, levelOf, merged, ofTask, SHOWN, sought, stored } from "../src/runs/logs";

function line(n: number, more: Partial<LogLine> = {}): LogLine {
  return { attempt: 1, n, task: "t", stream: "stdout", text: `${n}\n`, ts: 0, ...more } as LogLine;
}

const numbers = (lines: readonly LogLine[]) => lines.map((one) => one.n);
const lines = (from: number, to: number) => Array.from({ length: to - from }, (_, at) => line(from + at));

describe("a log from two sources (W03)", () => {
  it("keeps every line, however many there are", () => {
    const whole = merged(lines(0, 3 * SHOWN), lines(3 * SHOWN, 5 * SHOWN));
    expect(whole).toHaveLength(5 * SHOWN);
    expect(whole[0]!.n).toBe(0);
  });

  it("has each line once and in order, whatever order they come in", () => {
    expect(numbers(merged([line(0), line(4)], [line(3), line(1), line(4)]))).toEqual([0, 1, 3, 4]);
    expect(numbers(merged([], [line(2), line(1)]))).toEqual([1, 2]);
    const second = line(0, { attempt: 2 });
    expect(merged([line(5)], [second])).toEqual([line(5), second]);
  });

  it("shows a stored line rather than its excerpt", () => {
    const excerpt = line(7, { is_excerpt: true });
    expect(merged([line(1), excerpt], [line(7)])).toEqual([line(1), line(7)]);
    expect(merged([line(1), line(7)], [excerpt])).toEqual([line(1), line(7)]);
    expect(stored([line(1), excerpt])).toEqual([line(1)]);
  });
});

describe("what is missing (W03)", () => {
  const mark = line(2, { text: "… 97 lines (1,000 bytes) were cut here …\n", cut_lines: 97, cut_bytes: 1000 });

  it("is marked where it was cut, and in the download", () => {
    const all = [line(0), line(1), mark, line(99)];
    expect(all.filter(isCut)).toEqual([mark]);
    expect(asText(all, behindGaps(all))).toContain("97 lines (1,000 bytes) were cut here");
    expect(ofTask(all, "t")).toContain(mark);
  });

  it("is marked before excerpts, and only there", () => {
    const first = line(50, { is_excerpt: true });
    const all = [line(0), line(1), first, line(51, { is_excerpt: true }), line(90)];
    expect([...behindGaps(all)]).toEqual([first]);
    expect(asText(all, behindGaps(all))).toBe("0\n1\n…\n50\n51\n90\n");
  });
});

describe("what was printed for a terminal", () => {
  const ESC = "\u001b";

  it("has colours, and no commands", () => {
    expect(pieces(`a ${ESC}[1;32mok${ESC}[0m b`)).toEqual([
      { text: "a ", style: "" },
      { text: "ok", style: "ansi-2 ansi-bold" },
      { text: " b", style: "" },
    ]);
    expect(pieces(`${ESC}[2K${ESC}[91m!${ESC}[39m${ESC}[38;5;4m?`)).toEqual([
      { text: "!", style: "ansi-1" },
      { text: "?", style: "" },
    ]);
  });

  it("is left alone where it is no command", () => {
    expect(pieces(`${ESC}]0;title`)).toEqual([{ text: `${ESC}]0;title`, style: "" }]);
    expect(pieces("")).toEqual([]);
  });
});

describe("a line that a task has logged", () => {
  const fields = { rows: 3, source: "a.csv" } as never;
  const logged = (level: string) => line(0, { text: "loaded\n", level, fields });

  it("is downloaded and found with its fields", () => {
    expect(asText([logged("info"), line(1)], new Set())).toBe('loaded rows=3 source="a.csv"\n1\n');
    expect(sought([logged("info"), line(1)], "ROWS=3", "all")).toHaveLength(1);
  });

  it("is filtered by its level, whatever it says", () => {
    const all = [logged("info"), logged("warning"), logged("error"), line(1, { text: "ERROR printed\n" })];
    expect(sought([{ ...logged("debug"), text: "no ERROR" }], "", "warnings")).toEqual([]);
    expect(sought(all, "", "warnings")).toHaveLength(3);
    expect(sought(all, "", "errors")).toHaveLength(2);
  });

  it("shows levels that are worth a word", () => {
    expect(levelOf(logged("info"))).toBeNull();
    expect(levelOf(line(1))).toBeNull();
    expect(levelOf(logged("warning"))).toEqual({ level: "warning", tone: "warn" });
    expect(levelOf(logged("debug"))?.tone).toBe("quiet");
  });
});
