/** One clock for every age on the page, in the server's time. */

import { clockOffset } from "../api/client";
import { signal } from "./signals";
import { canAct } from "./standing";

function read(): number {
  return Date.now() / 1000 + clockOffset.value;
}

export const now = signal(read());

if (typeof window !== "undefined") {
  setInterval(() => {
    // What is shown is as old as the last answer: ages that grew on would pretend to know.
    if (!document.hidden && canAct.value) now.value = read();
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    if (canAct.value) now.value = read();
  });
}
