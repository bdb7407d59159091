/** Queries under a name, in this browser. */

import { remember, remembered } from "../app/preferences";
import { signal } from "../app/signals";
import { filtersOf, type RunFilters, textOf } from "./query";

export interface View {
  name: string;
  filters: RunFilters;
}

function isView(one: unknown): one is View {
  const { name, filters } = (one ?? {}) as Partial<View>;
  return typeof name === "string" && typeof filters === "object" && filters !== null;
}

/** What another version or another hand wrote is left out. */
export function readViews(text: string | null): View[] {
  try {
    const found: unknown = JSON.parse(text ?? "[]");
    const views = Array.isArray(found) ? found.filter(isView) : [];
    return views.map(({ name, filters }) => ({ name, filters: filtersOf(filters as Record<string, string>) }));
  } catch {
    return [];
  }
}

export const views = signal(readViews(remembered("views")));

function keep(next: View[]): void {
  views.value = next;
  remember("views", JSON.stringify(next));
}

/** One of the same name is replaced. */
export function saveView(view: View): void {
  keep([...views.value.filter(({ name }) => name !== view.name), view]);
}

export function removeView(name: string): void {
  keep(views.value.filter((view) => view.name !== name));
}

export function viewOf(all: readonly View[], filters: RunFilters): View | undefined {
  return all.find((view) => textOf(view.filters) === textOf(filters));
}
