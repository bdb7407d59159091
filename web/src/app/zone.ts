/** In which time zone times are shown: the viewer's, or UTC, which logs of servers have. */
import { signal } from "@preact/signals";
import { remember, remembered } from "./preferences";

export const isUtc = signal(remembered("zone") === "utc");

export function switchZone(): void {
  isUtc.value = !isUtc.value;
  remember("zone", isUtc.value ? "utc" : "local");
}

/** For `Intl`; undefined is the viewer's. */
export function shownZone(): "UTC" | undefined {
  return isUtc.value ? "UTC" : undefined;
}
