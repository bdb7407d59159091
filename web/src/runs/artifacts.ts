/** Files that tasks have saved: how each can be shown. Nothing of them becomes HTML of this page. */
import type { Schemas } from "../api/client";

export type Artifact = Schemas["RunArtifact"];
export type Kind = "image" | "html" | "table" | "json" | "markdown" | "text" | "none";

const TEXTS = /^(?:text\/|application\/(?:(?:[\w.]+\+)?(?:xml|yaml)|x-yaml|toml|sql|(?:x-)?ndjson|jsonl|javascript))/;
const TEXT_NAMES = /\.(?:txt|log|ya?ml|toml|ini|cfg|env|(?:nd)?jsonl?|sql|py|sh|diff|patch)$/i;

export function kindOf({ name, type }: Pick<Artifact, "name" | "type">): Kind {
  const media = type.split(";")[0]!.trim().toLowerCase();
  if (media.startsWith("image/")) return "image";
  if (media === "text/html" || media === "application/xhtml+xml") return "html";
  if (media === "text/csv" || media === "text/tab-separated-values") return "table";
  if (media === "application/json" || media.endsWith("+json")) return "json";
  if (media === "text/markdown" || /\.md$/i.test(name)) return "markdown";
  return TEXTS.test(media) || TEXT_NAMES.test(name) ? "text" : "none";
}

/** Of a text the beginning is enough to look at; a picture or a page is nothing without its end. */
export const SHOWN_BYTES = 256 * 1024;
const WHOLE_BYTES = 16 * 1024 * 1024;

export function isWhole(kind: Kind): boolean {
  return kind === "image" || kind === "html";
}

export function isTooLarge(artifact: Artifact): boolean {
  return isWhole(kindOf(artifact)) && artifact.size > WHOLE_BYTES;
}

/** A text in the encoding that its type names. */
export function decoded(content: ArrayBuffer, type: string): string {
  const charset = /charset=([\w.:-]+)/i.exec(type)?.[1];
  try {
    return new TextDecoder(charset).decode(content);
  } catch {
    return new TextDecoder().decode(content); // no encoding that the browser knows
  }
}

/** Lines of a table in their cells, as RFC 4180 has it; at most `most`. */
export function cells(text: string, most: number): string[][] {
  const delimiter = delimiterOf(text);
  const rows: string[][] = [[]];
  const field = new RegExp(`(?:"((?:[^"]|"")*)"|([^${delimiter}\r\n]*))(${delimiter}|\r?\n|\r|$)`, "gy");
  for (const [whole, quoted, plain, end] of text.matchAll(field)) {
    if (whole === "" && rows.at(-1)!.length === 0) break;
    rows.at(-1)!.push(quoted === undefined ? plain! : quoted.replaceAll('""', '"'));
    if (end === "" || (end !== delimiter && rows.length === most)) break;
    if (end !== delimiter) rows.push([]);
  }
  return rows.filter((row) => row.length > 0);
}

/** That which is most often in the first line. */
function delimiterOf(text: string): string {
  const first = text.slice(0, Math.max(0, text.search(/[\r\n]|$/)));
  const often = (one: string) => first.split(one).length;
  return [",", ";", "\t"].reduce((best, one) => (often(one) > often(best) ? one : best));
}
