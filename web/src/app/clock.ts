/** One clock for every age on the page, in the server's time. */
import { signal } from "@preact/signals";
import { clockOffset } from "../api/client";

function read(): number {
  return Date.now() / 1000 + clockOffset.value;
}

export const now = signal(read());

if (typeof window !== "undefined") {
  setInterval(() => {
    if (!document.hidden) now.value = read();
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    now.value = read();
  });
}
