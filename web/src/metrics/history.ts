/** Readings of the server's figures over time, kept by the page since it was opened. */
import { signal } from "@preact/signals";
import { request } from "../api/client";
import { repeat } from "../live/repeat";
import { type Buckets, buckets, parse, quantile, type Sample, since, total } from "./prometheus";

export interface Reading {
  at: number;
  running: number;
  pending: number;
  workers: number;
  deadLetters: number;
  ended: { completed: number; failed: number; cancelled: number };
  durations: Buckets;
  waits: Buckets;
  http: Buckets;
}

export interface Point {
  at: number;
  value: number | null;
}

export const EVERY_MS = 3000;
const KEPT = 600;
const WINDOW_SEC = 60;
const DURATION = "pyoco_run_duration_seconds";

export const readings = signal<readonly Reading[]>([]);
export const readingError = signal<Error | null>(null);

export function reading(samples: readonly Sample[], at: number): Reading {
  const runs = (status: string) => total(samples, "pyoco_runs_total", { status });
  const ended = (status: string) => total(samples, `${DURATION}_count`, { status });
  return {
    at,
    running: runs("RUNNING") + runs("CANCELLING"),
    pending: runs("PENDING"),
    workers: total(samples, "pyoco_workers_alive_total"),
    deadLetters: total(samples, "pyoco_dlq_messages_total"),
    ended: { completed: ended("COMPLETED"), failed: ended("FAILED"), cancelled: ended("CANCELLED") },
    durations: buckets(samples, DURATION),
    waits: buckets(samples, "pyoco_run_queue_wait_seconds"),
    http: buckets(samples, "pyoco_http_request_duration_seconds"),
  };
}

/** Ended per minute between each reading and the one before it. */
export function rates(all: readonly Reading[], of: keyof Reading["ended"]): Point[] {
  return all.slice(1).map((later, n) => {
    const earlier = all[n]!;
    const more = later.ended[of] - earlier.ended[of];
    // A gateway that was started anew counts from zero.
    const count = more < 0 ? later.ended[of] : more;
    return { at: later.at, value: (count / Math.max(later.at - earlier.at, 0.001)) * 60 };
  });
}

/** A quantile of what was observed in the minute before each reading. */
export function quantiles(all: readonly Reading[], of: "durations" | "waits" | "http", q: number): Point[] {
  let start = 0;
  return all.slice(1).map((later) => {
    while (start + 1 < all.length && all[start + 1]!.at <= later.at - WINDOW_SEC) start += 1;
    return { at: later.at, value: quantile(q, since(later[of], all[start]![of])) };
  });
}

async function read(): Promise<void> {
  try {
    const text = await (await request("get", "/metrics")).text();
    readings.value = [...readings.value, reading(parse(text), Date.now() / 1000)].slice(-KEPT);
    readingError.value = null;
  } catch (error) {
    readingError.value = error as Error;
  }
}

/** Until the returned function is called. A page in the background does not read. */
export function collect(): () => void {
  void read();
  return repeat(EVERY_MS, read);
}
