/** What a schedule is doing, what it starts, and what became of its ticks. */
import type { Schedule, Tick } from "../api/client";
import type { AnyState } from "../ui/Status";

export function standing(schedule: Pick<Schedule, "paused" | "next_due_at" | "waiting">): AnyState {
  if (schedule.paused) return "PAUSED";
  return schedule.next_due_at === null && schedule.waiting === 0 ? "OVER" : "SCHEDULED";
}

export interface Aim {
  kind: "flow" | "graph" | "template";
  name: string;
}

/** The server leaves out of a target what is at its default. */
export function aimOf({ target }: { target: Partial<Schedule["target"]> }): Aim {
  if (target.graph) return { kind: "graph", name: target.graph };
  if (target.template) return { kind: "template", name: target.template };
  return { kind: "flow", name: target.flow ?? "" };
}

/** What `schedules put` takes, without what has no value. */
export function definitionOf(schedule: Schedule): Record<string, unknown> {
  const { target, cron, every_sec, timezone, starts_at, ends_at, overlap, catch_up, ...rest } = schedule;
  const { catch_up_window_sec, jitter_sec, pause_after_failures, description } = rest;
  const values = {
    description,
    target,
    cron,
    every_sec,
    timezone,
    starts_at,
    ends_at,
    overlap,
    catch_up,
    catch_up_window_sec,
    jitter_sec: jitter_sec || null,
    pause_after_failures,
  };
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== null));
}

/** A tick can be started again for the same time (backfill). */
export function keyOf(tick: Tick): string {
  return `${tick.due_at} ${tick.fired_at}`;
}

const REASONS = { overlap: "overlap", paused: "paused", "outside window": "outsideWindow", limit: "limit" } as const;

/** The reasons that have words of their own; others are texts from where the tick failed. */
export function reasonOf(text: string): (typeof REASONS)[keyof typeof REASONS] | null {
  return Object.hasOwn(REASONS, text) ? REASONS[text as keyof typeof REASONS] : null;
}

/** Late enough to be worth a word: the server counts up to 5 s as on time. */
const LATE_SEC = 5;

export function isLate(tick: Pick<Tick, "late_sec" | "status">): boolean {
  return tick.status === "STARTED" && tick.late_sec > LATE_SEC;
}

/** One mark per tick on a day that is 240 units long. Ticks that would lie on each other are one. */
export function dayPath(due: readonly number[], from: number): string {
  const places = due.map((at) => Math.round(((at - from) / 86_400) * 480) / 2);
  return [...new Set(places)].map((x) => `M${x} 2V14`).join("");
}
