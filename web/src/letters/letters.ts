/** Filters of dead letters, in the address and for the server. */
import type { Schemas } from "../api/client";

type Reason = Schemas["DlqReason"];

export const REASONS: readonly Reason[] = ["execution_error", "flow_not_found", "max_deliver", "invalid_job"];
export const SPANS = [
  { value: "1h", sec: 3600 },
  { value: "24h", sec: 86_400 },
  { value: "7d", sec: 7 * 86_400 },
] as const;

/** Without what is empty or unknown. */
export function filterOf(query: Record<string, string>, now: number) {
  const reason = REASONS.find((one) => one === query.reason);
  const span = SPANS.find((one) => one.value === query.since);
  return {
    ...(reason ? { reason } : {}),
    ...(query.tag ? { tag: query.tag } : {}),
    ...(query.flow ? { flow: query.flow } : {}),
    ...(span ? { since: String(Math.floor(now - span.sec)) } : {}),
  };
}

/** As `POST /bulk` takes it: there a time is a number. */
export function asFilter({ since, ...filter }: ReturnType<typeof filterOf>) {
  return { ...filter, ...(since ? { since: Number(since) } : {}) };
}
