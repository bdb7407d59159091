/** What a flow is doing, and its defaults as a form. */
import type { FlowDetails, Priority, RunSummary, Schemas } from "../api/client";
import type { Tone } from "../ui/Status";

const WELL = 0.95;
const POOR = 0.8;

export function toneOfRate(rate: number): Tone {
  return rate >= WELL ? "good" : rate >= POOR ? "warn" : "bad";
}

/** 0.996 is not 100 %: what failed must show. */
export function percent(rate: number): string {
  return `${rate >= 1 ? 100 : Math.min(99, Math.round(rate * 100))} %`;
}

export interface Bar {
  run: RunSummary;
  /** 0 to 1, of the longest. */
  height: number;
}

/** Oldest first. Bars are as high as the run was long; of a run that has not begun there is a stub. */
export function bars(newestFirst: readonly RunSummary[], now: number): Bar[] {
  const took = (run: RunSummary) => (run.start_time === null ? 0 : Math.max(0, (run.end_time ?? now) - run.start_time));
  const longest = Math.max(...newestFirst.map(took), Number.MIN_VALUE);
  return newestFirst.map((run) => ({ run, height: took(run) / longest })).reverse();
}

export const PRIORITIES: readonly Priority[] = ["high", "normal", "low"];

/** The defaults as texts of a form. */
export interface DefaultTexts {
  description: string;
  owner: string;
  priority: string;
  timeout_sec: string;
  start_within_sec: string;
  max_attempts: string;
  backoff_sec: string;
  params_schema: string;
}

export function textsOf(flow: FlowDetails): DefaultTexts {
  const text = (value: number | string | null | undefined) => (value == null ? "" : String(value));
  return {
    description: text(flow.description),
    owner: text(flow.owner),
    priority: text(flow.priority),
    timeout_sec: text(flow.timeout_sec),
    start_within_sec: text(flow.start_within_sec),
    max_attempts: text(flow.retry?.max_attempts),
    backoff_sec: text(flow.retry?.backoff_sec),
    params_schema: flow.params_schema === null ? "" : JSON.stringify(flow.params_schema, null, 2),
  };
}

/** What `PUT /flows/{name}` takes. What the form has no field for stays. Throws where the schema is no JSON. */
export function defaultsOf(texts: DefaultTexts, flow: FlowDetails): { [name: string]: unknown } {
  const number = (text: string) => (text.trim() === "" ? null : Number(text));
  return {
    description: texts.description.trim() || null,
    owner: texts.owner.trim() || null,
    priority: texts.priority || null,
    timeout_sec: number(texts.timeout_sec),
    start_within_sec: number(texts.start_within_sec),
    retry: retryOf(flow.retry, number(texts.max_attempts), number(texts.backoff_sec)),
    params_schema: texts.params_schema.trim() === "" ? null : (JSON.parse(texts.params_schema) as unknown),
  };
}

function retryOf(known: Schemas["RunRetry"] | null, max_attempts: number | null, backoff_sec: number | null) {
  if (max_attempts === null) return null;
  return { ...known, max_attempts, backoff_sec: backoff_sec ?? undefined };
}
