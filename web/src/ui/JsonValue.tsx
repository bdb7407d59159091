import type { ComponentChild } from "preact";
import { visible } from "../format";
import { t } from "../i18n";
import { CopyButton } from "./texts";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const COLOURED_BELOW = 60_000;

/** JSON text in pieces, each with what it is. */
export function tokens(text: string): { kind: string; text: string }[] {
  const found: { kind: string; text: string }[] = [];
  let at = 0;
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > at) found.push({ kind: "", text: text.slice(at, match.index) });
    const [whole, string, colon, word] = match;
    if (string && colon) {
      found.push({ kind: "key", text: string }, { kind: "", text: colon });
    } else {
      found.push({ kind: string ? "string" : word ? "word" : "number", text: whole });
    }
    at = match.index + whole.length;
  }
  if (at < text.length) found.push({ kind: "", text: text.slice(at) });
  return found;
}

function coloured(text: string): ComponentChild {
  if (text.length > COLOURED_BELOW) return visible(text);
  return tokens(text).map((token) =>
    token.kind ? <span class={`json-${token.kind}`}>{visible(token.text)}</span> : visible(token.text),
  );
}

export function JsonValue({ value, label }: { value: unknown; label: string }) {
  const text = JSON.stringify(value, null, 2) ?? "null";
  return (
    <div class="json">
      <CopyButton text={() => text} label={t("copy.json")} />
      <pre tabIndex={0} aria-label={label}>
        {coloured(text)}
      </pre>
    </div>
  );
}
