/** What may be answered to a node that waits. */
import type { Wait } from "../../api/client";
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

/** With what somebody wants to add. An answer that is no object has no place for it. */
export function withComment(answer: unknown, comment: string): unknown {
  const isObject = typeof answer === "object" && answer !== null;
  return isObject && comment.trim() ? { ...answer, comment: comment.trim() } : answer;
}

const SOON_SEC = 86_400;
const GROUPS = ["overdue", "soon", "later", "none"] as const;
export type Group = (typeof GROUPS)[number];

function groupOf(deadline: number | null, now: number): Group {
  if (deadline === null) return "none";
  return deadline <= now ? "overdue" : deadline - now <= SOON_SEC ? "soon" : "later";
}

/** By their deadlines, the next first; without one, the oldest first. */
export function groupsOf(waits: readonly Wait[], now: number): { group: Group; waits: Wait[] }[] {
  const end = (wait: Wait) => wait.deadline ?? Number.POSITIVE_INFINITY;
  const sorted = [...waits].sort((a, b) => end(a) - end(b) || a.waiting_at - b.waiting_at);
  const of = (group: Group) => sorted.filter((wait) => groupOf(wait.deadline, now) === group);
  return GROUPS.map((group) => ({ group, waits: of(group) })).filter(({ waits }) => waits.length > 0);
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
