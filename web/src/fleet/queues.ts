/** The queues of tags, with the workers that serve them. */
import type { Queue, Worker } from "../api/client";
import type { AnyState } from "../ui/Status";
import { isLost } from "./workers";

export interface ServedQueue extends Queue {
  /** Runs that its live workers can run at once; null: an older one does not report it. */
  slots: number | null;
  /** Workers of the tag that were lost lately. */
  lost: readonly string[];
}

/** What needs somebody comes first: runs that nobody takes, then pauses. */
export function servedQueues(queues: readonly Queue[], workers: readonly Worker[]): ServedQueue[] {
  return queues
    .map((queue) => served(queue, workers))
    .sort((a, b) => urgency(b) - urgency(a) || (a.tag < b.tag ? -1 : 1));
}

function served(queue: Queue, workers: readonly Worker[]): ServedQueue {
  const ofTag = workers.filter((worker) => worker.tags.includes(queue.tag));
  const slots = ofTag.filter(isAlive).map((worker) => worker.slots);
  return {
    ...queue,
    slots: slots.reduce<number | null>((sum, one) => (sum === null || one === null ? null : sum + one), 0),
    lost: ofTag.filter(isLost).map((worker) => worker.worker_id),
  };
}

function isAlive(worker: Worker): boolean {
  return worker.state === "IDLE" || worker.state === "RUNNING";
}

/** Runs wait, and no worker has their tag. */
export function isUnserved(queue: Pick<Queue, "waiting" | "workers">): boolean {
  return queue.workers === 0 && queue.waiting > 0;
}

export function stateOf(queue: Pick<Queue, "paused" | "workers" | "waiting">): AnyState {
  if (queue.paused) return "PAUSED";
  if (queue.workers > 0) return "SERVED";
  return isUnserved(queue) ? "UNSERVED" : "UNUSED";
}

function urgency(queue: Queue): number {
  return isUnserved(queue) ? 2 : queue.paused ? 1 : 0;
}
