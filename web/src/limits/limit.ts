/** A limit in words, and as a form. */
import type { Limit, Schemas } from "../api/client";
import { count, tickLabel } from "../format";
import { language, t } from "../i18n";

export const ON_FULL: readonly Schemas["OnFull"][] = ["queue", "reject", "cancel_oldest", "drop_oldest_waiting"];
export const MATCHES = ["flow", "tag", "graph", "tenant"] as const;

/** `3 at once`, `10 every 1 s, up to 20 at first`. */
export function allowance(limit: Pick<Limit, "max_running" | "rate">): string[] {
  const n = (value: number) => count(value, language.value);
  const { max_running, rate } = limit;
  return [
    ...(max_running === null ? [] : [t("limit.atOnce", { n: n(max_running) })]),
    ...(rate === null ? [] : [t("limit.every", { n: n(rate.count), time: tickLabel(rate.per_sec) })]),
    ...(rate?.burst == null ? [] : [t("limit.burst", { n: n(rate.burst) })]),
  ];
}

/** Without a key all runs share the places: then it can be seen how many are left. */
export function fullness(limit: Pick<Limit, "max_running" | "key" | "holders">): number | null {
  return limit.max_running === null || limit.key !== null ? null : Math.min(1, limit.holders / limit.max_running);
}

export interface LimitTexts {
  name: string;
  description: string;
  flow: string;
  tag: string;
  graph: string;
  tenant: string;
  key: string;
  max_running: string;
  count: string;
  per_sec: string;
  burst: string;
  on_full: string;
  max_waiting: string;
}

const NONE: LimitTexts = {
  name: "",
  description: "",
  flow: "",
  tag: "",
  graph: "",
  tenant: "",
  key: "",
  max_running: "",
  count: "",
  per_sec: "",
  burst: "",
  on_full: "queue",
  max_waiting: "",
};

export function textsOf(limit: Limit | null): LimitTexts {
  if (limit === null) return NONE;
  const text = (value: number | string | null | undefined) => (value == null ? "" : String(value));
  const { match, rate } = limit;
  return {
    name: limit.name,
    description: text(limit.description),
    flow: text(match.flow),
    tag: text(match.tag),
    graph: text(match.graph),
    tenant: text(match.tenant),
    key: text(limit.key),
    max_running: text(limit.max_running),
    count: text(rate?.count),
    per_sec: text(rate?.per_sec),
    burst: text(rate?.burst),
    on_full: limit.on_full,
    max_waiting: text(limit.max_waiting),
  };
}

/** The body of `PUT /limits/{name}`; the server validates it. */
export function definitionOf(texts: LimitTexts): { [name: string]: unknown } {
  const number = (text: string) => (text.trim() === "" ? null : Number(text));
  const filled = MATCHES.map((name) => [name, texts[name].trim()]).filter(([, text]) => text !== "");
  const rate = { count: number(texts.count), per_sec: number(texts.per_sec), burst: number(texts.burst) };
  const hasRate = Object.values(rate).some((value) => value !== null);
  return {
    description: texts.description.trim() || null,
    match: Object.fromEntries(filled),
    key: texts.key.trim() || null,
    max_running: number(texts.max_running),
    rate: hasRate ? rate : null,
    on_full: texts.on_full,
    max_waiting: number(texts.max_waiting),
  };
}
