/** The common part of Markdown as values. What is none of it stays text. */
export type Block =
  | { kind: "heading" | "text" | "quote" | "code"; text: string }
  | { kind: "bullets" | "numbers"; items: string[] }
  | { kind: "table"; rows: string[][] }
  | { kind: "rule" };

export interface Span {
  kind: "text" | "code" | "strong" | "em" | "link";
  text: string;
  to?: string;
}

/** In the order in which a line is tried. */
const LINES = [
  ["rule", /^ {0,3}([-*_])(?: *\1){2,} *$/],
  ["heading", /^ {0,3}#{1,6} +(.*?)[ #]*$/],
  ["bullets", /^ *[-*+] +(.*)$/],
  ["numbers", /^ *\d{1,9}[.)] +(.*)$/],
  ["quote", /^ {0,3}> ?(.*)$/],
  ["table", /^ *\|(.*?)\|? *$/],
  ["text", /^(.*)$/],
] as const;
const FENCE = /^ {0,3}(```|~~~)/;
const TABLE_RULE = /^[ :|-]+$/;

export function blocks(text: string): Block[] {
  const found: Block[] = [];
  const lines = text.split(/\r?\n/);
  for (let at = 0; at < lines.length; at++) {
    const fence = FENCE.exec(lines[at]!)?.[1];
    if (fence !== undefined) {
      const end = lines.findIndex((line, n) => n > at && line.trimStart().startsWith(fence));
      const last = end < 0 ? lines.length : end;
      found.push({ kind: "code", text: lines.slice(at + 1, last).join("\n") });
      at = last;
    } else add(found, lines[at]!, at > 0 && lines[at - 1]!.trim() === "");
  }
  return found;
}

/** A line continues what is before it, unless there is an empty line between them. */
function add(found: Block[], line: string, isApart: boolean): void {
  if (line.trim() === "") return;
  const last = found.at(-1);
  for (const [kind, pattern] of LINES) {
    const text = pattern.exec(line)?.[1];
    if (text === undefined) continue;
    if (kind === "rule") found.push({ kind });
    else if (kind === "bullets" || kind === "numbers") {
      if (last?.kind === kind) last.items.push(text);
      else found.push({ kind, items: [text] });
    } else if (kind === "table") {
      const row = text.split("|").map((cell) => cell.trim());
      if (last?.kind !== kind || isApart) found.push({ kind, rows: [row] });
      else if (!TABLE_RULE.test(text)) last.rows.push(row);
    } else if (kind === "text" && last && "items" in last && !isApart)
      last.items.push(`${last.items.pop()} ${text.trim()}`);
    else if (kind !== "heading" && last?.kind === kind && !isApart) last.text += `\n${text}`;
    else found.push({ kind, text });
    return;
  }
}

const SPANS = /(`+)(.+?)\1|\*\*(\S.*?)\*\*|(?<!\w)([*_])(\S.*?)\4(?!\w)|!?\[([^\]]*)\]\(([^)\s]*)[^)]*\)/gs;
/** In a longer text nothing is sought: this takes the square of its length. */
const MOST = 20_000;

export function spans(text: string): Span[] {
  const found: Span[] = [];
  let at = 0;
  for (const match of text.length > MOST ? [] : text.matchAll(SPANS)) {
    const [whole, , code, strong, , em, words, to] = match;
    if (match.index > at) found.push({ kind: "text", text: text.slice(at, match.index) });
    if (code !== undefined) found.push({ kind: "code", text: code });
    else if (strong !== undefined) found.push({ kind: "strong", text: strong });
    else if (em !== undefined) found.push({ kind: "em", text: em });
    else found.push(/^https?:/i.test(to!) ? { kind: "link", text: words!, to: to! } : { kind: "text", text: words! });
    at = match.index + whole.length;
  }
  if (at < text.length) found.push({ kind: "text", text: text.slice(at) });
  return found;
}
