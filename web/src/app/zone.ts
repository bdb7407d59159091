/** In which time zone times are shown: the viewer's, or UTC, which logs of servers have. */

import { remember, remembered } from "./preferences";
import { signal } from "./signals";

export const isUtc = signal(remembered("zone") === "utc");

export function switchZone(): void {
  isUtc.value = !isUtc.value;
  remember("zone", isUtc.value ? "utc" : "local");
}

/** For `Intl`; undefined is the viewer's. */
export function shownZone(): "UTC" | undefined {
  return isUtc.value ? "UTC" : undefined;
}
