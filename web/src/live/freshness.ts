/** How old what the page shows is: every stream and every repeated reading reports when the server last confirmed it. */
import { signal } from "../app/signals";

interface Source {
  /** When it was last confirmed; before the first time, when it began. */
  at: number;
  /** How long may pass in between. */
  allowedMs: number;
  isConfirmed: boolean;
}

export interface Tracked {
  confirm: () => void;
  /** The connection is lost, or a reading failed: it is late only when it stays so. */
  lose: () => void;
  stop: () => void;
}

const sources = new Set<Source>();

/** How many have not been confirmed yet. */
export const unconfirmed = signal(0);
/** By how many seconds the oldest is late; 0: none is. */
export const delaySec = signal(0);

function report(): void {
  unconfirmed.value = [...sources].filter((source) => !source.isConfirmed).length;
  delaySec.value = lateSec([...sources], Date.now());
}

export function lateSec(all: readonly Pick<Source, "at" | "allowedMs">[], now: number): number {
  const late = all.filter((source) => now - source.at > source.allowedMs);
  return Math.round(Math.max(0, ...late.map((source) => now - source.at)) / 1000);
}

export function track(allowedMs: number): Tracked {
  const source: Source = { at: Date.now(), allowedMs, isConfirmed: false };
  sources.add(source);
  report();
  return {
    confirm: () => {
      const isNews = !source.isConfirmed || delaySec.value > 0;
      source.at = Date.now();
      source.isConfirmed = true;
      if (isNews) report();
    },
    lose: () => {
      source.isConfirmed = false;
      report();
    },
    stop: () => {
      sources.delete(source);
      report();
    },
  };
}

if (typeof window !== "undefined") {
  setInterval(() => {
    if (!document.hidden) report();
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    // A page in the background is not connected, and browsers slow its timers down.
    for (const source of sources) source.at = Date.now();
    report();
  });
}
