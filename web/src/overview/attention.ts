/** What needs somebody now, the most urgent first. */
import type { Schemas, Wait, Worker } from "../api/client";
import { isUnserved, type ServedQueue } from "../fleet/queues";
import { isLost } from "../fleet/workers";
import type { FlowFailures } from "./series";

export type Need =
  | { kind: "flow"; flow: string; failed: number; all: number }
  | { kind: "queue"; tag: string; n: number; oldest: number }
  | { kind: "paused"; tag: string; n: number }
  | { kind: "worker"; worker: string; at: number }
  | { kind: "waits"; n: number; isMore: boolean; oldest: number }
  | { kind: "delivery"; n: number; channel: string; error: string };

export interface Standing {
  /** Of the last hour. */
  flows: readonly FlowFailures[];
  queues: readonly ServedQueue[];
  workers: readonly Worker[];
  waits: { items: readonly Wait[]; cursor: string | null } | null;
  /** Messages of alerts that nobody got. */
  undelivered: readonly Schemas["DeliveryView"][];
}

/** Fewer failures may be chance. */
const FAILING = { least: 3, share: 0.25 };

export function isFailing({ failed, all }: FlowFailures): boolean {
  return failed >= FAILING.least && failed >= all * FAILING.share;
}

export function needsOf({ flows, queues, workers, waits, undelivered }: Standing): Need[] {
  return [
    ...flows.filter(isFailing).map((one) => ({ kind: "flow" as const, ...one })),
    ...queues
      .filter((queue) => isUnserved(queue) && !queue.paused)
      .map(({ tag, waiting, oldest_wait_sec }) => ({
        kind: "queue" as const,
        tag,
        n: waiting,
        oldest: oldest_wait_sec,
      })),
    ...workers.filter(isLost).map(({ worker_id, last_heartbeat_at }) => ({
      kind: "worker" as const,
      worker: worker_id,
      at: last_heartbeat_at,
    })),
    ...channelsOf(undelivered),
    ...queues
      .filter((queue) => queue.paused && queue.waiting > 0)
      .map(({ tag, waiting }) => ({ kind: "paused" as const, tag, n: waiting })),
    ...(waits?.items.length
      ? [
          {
            kind: "waits" as const,
            n: waits.items.length,
            isMore: waits.cursor !== null,
            oldest: Math.min(...waits.items.map((wait) => wait.waiting_at)),
          },
        ]
      : []),
  ];
}

/** One line per channel: it is what has to be repaired. The newest error is the reason. */
function channelsOf(undelivered: Standing["undelivered"]): Need[] {
  const found = new Map<string, Need & { kind: "delivery" }>();
  for (const { channel, last_error } of undelivered) {
    const known = found.get(channel);
    if (known) known.n += 1;
    else found.set(channel, { kind: "delivery", n: 1, channel, error: last_error ?? "" });
  }
  return [...found.values()];
}
