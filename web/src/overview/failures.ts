/** Failed runs, those with the same error together. */
import type { RunSummary } from "../api/client";

export interface Failures {
  /** Of the newest one. */
  error: string;
  newest: RunSummary;
  flows: string[];
  n: number;
}

const NUMBERS = /\b(?:0x)?[0-9a-f-]*\d[0-9a-f-]*\b/gi;
const SIGNIFICANT = 160;

/** What is the same in "order 1043 not found" and "order 1044 not found". */
export function signature(error: string): string {
  return (error.split("\n", 1)[0] ?? "").replace(NUMBERS, "#").slice(0, SIGNIFICANT);
}

/** The newest failure first. */
export function grouped(newestFirst: readonly RunSummary[]): Failures[] {
  const found = new Map<string, Failures>();
  for (const run of newestFirst) {
    const error = run.error ?? "";
    const key = signature(error);
    const known = found.get(key);
    if (known === undefined) found.set(key, { error, newest: run, flows: [run.flow_name], n: 1 });
    else {
      known.n += 1;
      if (!known.flows.includes(run.flow_name)) known.flows.push(run.flow_name);
    }
  }
  return [...found.values()];
}
