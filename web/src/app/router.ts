/** Where we are, in the part of the address behind `#`: the paths before it belong to the API. */
import { signal } from "./signals";

export interface Place {
  /** Decoded segments: ["runs", "0190…"]. */
  path: string[];
  query: Record<string, string>;
}

export function readPlace(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

export function link(path: string[], query: Record<string, string | null | undefined> = {}): string {
  const kept = Object.entries(query).filter((entry): entry is [string, string] => Boolean(entry[1]));
  const text = new URLSearchParams(kept).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const place = signal<Place>(readPlace(typeof location === "undefined" ? "" : location.hash));

/** How far a place was scrolled to that the browser went back (or forward) to; null: it is a new one. */
export const returnedTo = signal<number | null>(null);
const SETTLED_MS = 100;

if (typeof window !== "undefined") {
  // The rows have to be there first, and only the page knows when.
  history.scrollRestoration = "manual";
  const note = () => history.replaceState({ y: window.scrollY }, "");
  let timer: ReturnType<typeof setTimeout> | undefined;
  window.addEventListener("scroll", () => {
    clearTimeout(timer);
    timer = setTimeout(note, SETTLED_MS);
  });
  document.addEventListener("click", note, { capture: true });
  window.addEventListener("hashchange", () => {
    clearTimeout(timer); // it is of the place before
    const state = history.state as { y?: number } | null;
    returnedTo.value = state?.y ?? null;
    place.value = readPlace(location.hash);
  });
}

export function go(path: string[], query: Record<string, string | null | undefined> = {}): void {
  location.hash = link(path, query);
}

/** Other filters of the same page: the way back leads to the page before, not through every letter typed. */
export function refine(query: Record<string, string | null | undefined>): void {
  history.replaceState(history.state, "", link(place.value.path, query));
  place.value = readPlace(location.hash);
}
