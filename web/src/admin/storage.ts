/** What is kept for how long, and what takes the space. */
import type { Retention } from "../app/settings";
import type { Sample } from "./prometheus";

export const KEPT: readonly { name: keyof Retention; setting: string }[] = [
  { name: "runs", setting: "PYOCO_RUNS_RETENTION_SEC" },
  { name: "executions", setting: "PYOCO_EXECUTIONS_RETENTION_SEC" },
  { name: "ticks", setting: "PYOCO_TICKS_RETENTION_SEC" },
  { name: "audit", setting: "PYOCO_AUDIT_MAX_AGE_SEC" },
  { name: "dead_letters", setting: "PYOCO_DLQ_MAX_AGE_SEC" },
  { name: "logs", setting: "PYOCO_LOGS_MAX_AGE_SEC" },
];

export interface Stored {
  stream: string;
  bytes: number;
}

/** The largest first. */
export function storedIn(samples: readonly Sample[]): Stored[] {
  return samples
    .filter((one) => one.name === "pyoco_storage_bytes")
    .map((one) => ({ stream: one.labels.stream ?? "", bytes: one.value }))
    .sort((a, b) => b.bytes - a.bytes);
}
