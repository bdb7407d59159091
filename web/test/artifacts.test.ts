import { describe, expect, it } from "vitest";
import { cells, decoded, isTooLarge, kindOf } from "../src/runs/artifacts";
import { blocks, spans } from "../src/runs/markdown";

describe("an artifact", () => {
  it.each([
    ["a.png", "image/png", "image"],
    ["a.svg", "image/svg+xml", "image"],
    ["a.html", "text/html; charset=utf-8", "html"],
    ["a.csv", "text/csv", "table"],
    ["a.tsv", "text/tab-separated-values", "table"],
    ["a.json", "application/json", "json"],
    ["a.geojson", "application/geo+json", "json"],
    ["a.md", "text/markdown", "markdown"],
    ["README.md", "application/octet-stream", "markdown"],
    ["a.xml", "application/xml", "text"],
    ["a.yaml", "application/yaml", "text"],
    ["run.log", "application/octet-stream", "text"],
    ["lines.jsonl", "application/octet-stream", "text"],
    ["a.bin", "application/octet-stream", "none"],
    ["a.pdf", "application/pdf", "none"],
  ])("%s of the type %s is shown as %s", (name, type, kind) => {
    expect(kindOf({ name, type })).toBe(kind);
  });

  it("is not loaded as a whole where it is too large", () => {
    const of = (type: string) => ({ name: "a", type, size: 17 * 1024 * 1024, sha256: "", task: null, created_at: 0 });
    expect([of("image/png"), of("text/html"), of("text/plain")].map(isTooLarge)).toEqual([true, true, false]);
  });

  it("has the encoding that its type names, else UTF-8", () => {
    const bytes = (...values: number[]) => new Uint8Array(values).buffer as ArrayBuffer;
    expect(decoded(bytes(0x93, 0xfa), "text/csv; charset=shift_jis")).toBe("日");
    expect(decoded(bytes(0xe6, 0x97, 0xa5), "text/csv")).toBe("日");
    expect(decoded(bytes(0x61), "text/csv; charset=nonsense")).toBe("a");
  });
});

describe("a table", () => {
  it("has quotes, commas and ends of lines in its cells", () => {
    expect(cells('a,b\r\n"x, y","say ""hi"""\n"two\nlines",\n', 9)).toEqual([
      ["a", "b"],
      ["x, y", 'say "hi"'],
      ["two\nlines", ""],
    ]);
    expect(cells("", 9)).toEqual([]);
    expect(cells("a\n,\n", 9)).toEqual([["a"], ["", ""]]);
  });

  it("may be delimited otherwise", () => {
    expect(cells("a;b;c,d\n1;2;3", 9)).toEqual([
      ["a", "b", "c,d"],
      ["1", "2", "3"],
    ]);
    expect(cells("a\tb\n1\t2", 9)).toEqual([
      ["a", "b"],
      ["1", "2"],
    ]);
  });

  it("keeps what follows an open or misplaced quote as text", () => {
    expect(cells('a,"b\nc', 9)).toEqual([["a", '"b'], ["c"]]);
    expect(cells('a "b" c,d', 9)).toEqual([['a "b" c', "d"]]);
    expect(cells('"a" b,c', 9)).toEqual([['"a" b', "c"]]);
  });

  it("is read no further than it is shown", () => {
    expect(cells("a\n".repeat(100_000), 3)).toHaveLength(3);
  });
});

describe("Markdown", () => {
  it("is read in blocks", () => {
    const text =
      "# Title #\n\nOne\ntwo\n\n- a\n- b\n  more\n\n1. x\n\n> said\n\n```py\n# code\n```\n---\n| m | n |\n|---|--:|\n| 1 | 2 |";
    expect(blocks(text)).toEqual([
      { kind: "heading", text: "Title" },
      { kind: "text", text: "One\ntwo" },
      { kind: "bullets", items: ["a", "b more"] },
      { kind: "numbers", items: ["x"] },
      { kind: "quote", text: "said" },
      { kind: "code", text: "# code" },
      { kind: "rule" },
      {
        kind: "table",
        rows: [
          ["m", "n"],
          ["1", "2"],
        ],
      },
    ]);
  });

  it("keeps code that does not end", () => {
    expect(blocks("~~~\na\n\nb")).toEqual([{ kind: "code", text: "a\n\nb" }]);
  });

  it("has words in bold, in italics and as code", () => {
    expect(spans("a **b** *c* `d*` snake_case_name 2 * 3 * 4")).toEqual([
      { kind: "text", text: "a " },
      { kind: "strong", text: "b" },
      { kind: "text", text: " " },
      { kind: "em", text: "c" },
      { kind: "text", text: " " },
      { kind: "code", text: "d*" },
      { kind: "text", text: " snake_case_name 2 * 3 * 4" },
    ]);
  });

  it("links to pages and to nothing else", () => {
    expect(spans("[a](https://x.org/b)")).toEqual([{ kind: "link", text: "a", to: "https://x.org/b" }]);
    expect(spans("[a](javascript:alert(1))")[0]).toEqual({ kind: "text", text: "a" });
    expect(spans("![cat](https://x.org/cat.png)")[0]?.text).toBe("cat");
    expect(spans("<b onclick=x>hi</b>")).toEqual([{ kind: "text", text: "<b onclick=x>hi</b>" }]);
  });

  it("is quick with a text that looks like nothing but marks", () => {
    expect(spans("*a ".repeat(100_000))).toHaveLength(1);
    expect(spans("`".repeat(19_000)).length).toBeLessThan(5);
  });
});
