/** Which workers the page shows, and in which order. */
import type { Worker } from "../api/client";

/** A worker that was lost longer ago than this was replaced: it is shown with the stopped ones. */
const LOST_SEC = 24 * 3600;

/** Those alive and those lost lately; with `all`, stopped and long lost ones too. Lost ones need somebody: first. */
export function shownWorkers(alive: readonly Worker[], others: readonly Worker[], all: boolean, now: number): Worker[] {
  const known = new Map([...others, ...alive].map((worker) => [worker.worker_id, worker]));
  return [...known.values()]
    .filter((worker) => all || worker.state !== "DISCONNECTED" || now - worker.last_heartbeat_at < LOST_SEC)
    .sort((a, b) => Number(isLost(b)) - Number(isLost(a)) || (a.worker_id < b.worker_id ? -1 : 1));
}

export function isLost(worker: Pick<Worker, "state">): boolean {
  return worker.state === "DISCONNECTED";
}
