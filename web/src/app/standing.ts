/** Whether what the page shows is what is so: by what `/ready` answers, and by the age of what is shown. */

import { delaySec, unconfirmed } from "../live/freshness";
import { type Health, health } from "./health";
import { computed } from "./signals";

export type Standing = "live" | "connecting" | "delayed" | Exclude<Health, "ok">;

export function standingOf(found: Health, late: number, waiting: number): Standing {
  if (found !== "ok") return found;
  if (late > 0) return "delayed";
  return waiting > 0 ? "connecting" : "live";
}

export const standing = computed(() => standingOf(health.value, delaySec.value, unconfirmed.value));

/** Ages and countdowns go on, and buttons work. */
export const canAct = computed(() => standing.value === "live" || standing.value === "connecting");
