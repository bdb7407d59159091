/** What may be answered to a node that waits. */
import type { Definition } from "../graphs/definition";

/** What the graph reads of a node's output: names of fields, and "" where it reads the whole. */
export function fieldsRead(definition: Definition | null, nodeId: string): string[] {
  const texts = [...(definition?.edges ?? []).map((edge) => edge.when ?? ""), JSON.stringify(definition?.nodes ?? {})];
  const name = nodeId.replaceAll(/[^\w]/g, "\\$&");
  const reading = new RegExp(
    `nodes(?:\\.${name}|\\[\\\\?["']${name}\\\\?["']\\])\\.output(?:\\.([A-Za-z_]\\w*))?`,
    "g",
  );
  const found = texts.flatMap((text) => [...text.matchAll(reading)].map((match) => match[1] ?? ""));
  return [...new Set(found)];
}

/** Yes or no, as the graph wants to read it. Null: it wants to know more than that. */
export function yesOrNo(fields: readonly string[], isYes: boolean): unknown {
  if (fields.length > 1) return null;
  const [field = "ok"] = fields;
  return field === "" ? isYes : { [field]: isYes };
}

/** A text to begin with, where yes or no does not do. */
export function skeleton(fields: readonly string[], asked: unknown): string {
  if (asked != null) return JSON.stringify(asked, null, 2);
  const names = fields.filter(Boolean);
  return JSON.stringify(names.length ? Object.fromEntries(names.map((name) => [name, null])) : { ok: true }, null, 2);
}

/** For the badge: `3`, or `99+`. */
export function badge(count: number, isMore: boolean): string {
  return isMore || count > 99 ? "99+" : String(count);
}
