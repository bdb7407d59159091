/** Where we are, in the part of the address behind `#`: the paths before it belong to the API. */
import { signal } from "@preact/signals";

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

if (typeof window !== "undefined") {
  window.addEventListener("hashchange", () => {
    place.value = readPlace(location.hash);
  });
}

export function go(path: string[], query: Record<string, string | null | undefined> = {}): void {
  location.hash = link(path, query);
}

/** Other filters of the same page: the way back leads to the page before, not through every letter typed. */
export function refine(query: Record<string, string | null | undefined>): void {
  history.replaceState(null, "", link(place.value.path, query));
  place.value = readPlace(location.hash);
}
