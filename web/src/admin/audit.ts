/** Changes as values: what is different before and after, and the filters of the trail. */
import type { Json } from "../api/client";

export interface Change {
  path: string;
  before: Json | undefined;
  after: Json | undefined;
}

type Fields = { [key: string]: Json };

function isFields(value: Json | undefined): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The fields that differ, by their path; what is inside of a list is not compared by its place. */
export function changes(before: Json | undefined, after: Json | undefined, path = ""): Change[] {
  if (isFields(before) && isFields(after)) {
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
    return names.flatMap((name) => changes(before[name], after[name], path ? `${path}.${name}` : name));
  }
  return JSON.stringify(before) === JSON.stringify(after) ? [] : [{ path, before, after }];
}

export const FILTERS = ["action", "target", "key_id"] as const;

/** Days in the address; the whole of the last day counts. */
export function filterOf(query: Record<string, string>): Record<string, string> {
  const found: Record<string, string> = {};
  for (const name of FILTERS) if (query[name]) found[name] = query[name];
  const since = moment(query.since, "00:00:00.000");
  const until = moment(query.until, "23:59:59.999");
  if (since !== null) found.since = String(since);
  if (until !== null) found.until = String(until);
  return found;
}

/** Unix seconds of a day in the time of the person who asks. */
function moment(day: string | undefined, time: string): number | null {
  const at = day ? Date.parse(`${day}T${time}`) : Number.NaN;
  return Number.isNaN(at) ? null : at / 1000;
}
