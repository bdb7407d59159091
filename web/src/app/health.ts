/** Whether the server answers and reaches NATS. It is polled: an open stream shows neither. */

import { useEffect } from "preact/hooks";
import { repeat } from "../live/repeat";
import { signal } from "./signals";

export type Health = "ok" | "nats" | "starting" | "server";

export const health = signal<Health>("ok");

const CALM_MS = 3000;
const AWAY_MS = 1000;
/** A server that is stopped, and not ended, accepts connections and answers nothing. */
const PATIENCE_MS = 4000;

/** What an answer of `/ready` means; null: there was none. */
export function healthOf(status: number | null, facts: Record<string, unknown>): Health {
  if (status === null || (status >= 500 && status !== 503)) return "server";
  if (status !== 503) return "ok";
  // A server that is stopping, or a proxy without one, answers 503 in its own words.
  if (facts.nats === undefined) return "server";
  return facts.nats === "ok" && facts.read_model !== "ok" ? "starting" : "nats";
}

async function ask(aborting: AbortSignal): Promise<Health> {
  try {
    const response = await fetch("/ready", {
      cache: "no-store",
      signal: AbortSignal.any([aborting, AbortSignal.timeout(PATIENCE_MS)]),
    });
    const facts: unknown = await response.json().catch(() => ({}));
    return healthOf(response.status, facts as Record<string, unknown>);
  } catch {
    return healthOf(null, {});
  }
}

/** Keeps `health` up to date while the page is visible. */
export function useHealth(): void {
  useEffect(() => {
    const controller = new AbortController();
    async function read(): Promise<void> {
      const found = await ask(controller.signal);
      if (!controller.signal.aborted) health.value = found;
    }
    void read();
    const stop = repeat(() => (health.value === "ok" ? CALM_MS : AWAY_MS), read);
    return () => {
      stop();
      controller.abort();
      health.value = "ok";
    };
  }, []);
}
