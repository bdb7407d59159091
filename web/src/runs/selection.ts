/** Which runs of the list are meant: some by their ids, or all that match. */
import { useEffect, useState } from "preact/hooks";
import type { RunSummary } from "../api/client";
import type { Counts } from "./useRunList";

export interface Selecting {
  ids: ReadonlySet<string>;
  /** All that match, also those that are not shown. */
  isAll: boolean;
  size: number;
  has: (id: string) => boolean;
  toggle: (ids: readonly string[], isOn: boolean) => void;
  all: () => void;
  clear: () => void;
}

const NONE: ReadonlySet<string> = new Set();

export function idsOf(rows: readonly RunSummary[]): string[] {
  return rows.map((run) => run.run_id);
}

/** Those of before, with or without some. */
export function toggled(known: ReadonlySet<string>, ids: readonly string[], isOn: boolean): ReadonlySet<string> {
  const left = new Set(known);
  for (const id of ids) {
    if (isOn) left.add(id);
    else left.delete(id);
  }
  return left;
}

/** How many match, as far as they are counted. */
export function matching(counts: Counts, status: keyof Counts | undefined): number {
  if (status) return counts[status] ?? 0;
  return Object.values(counts).reduce((sum, n) => sum + (n ?? 0), 0);
}

/** With other filters nothing is selected: nobody sees any more what would be acted on. */
export function useSelection(filters: string): Selecting {
  const [ids, setIds] = useState(NONE);
  const [isAll, setAll] = useState(false);

  function clear(): void {
    setIds(NONE);
    setAll(false);
  }

  useEffect(clear, [filters]);
  return {
    ids,
    isAll,
    size: isAll ? Number.POSITIVE_INFINITY : ids.size,
    has: (id) => isAll || ids.has(id),
    toggle: (some, isOn) => {
      setAll(false);
      setIds((known) => (isAll && isOn === false ? NONE : toggled(known, some, isOn)));
    },
    all: () => setAll(true),
    clear,
  };
}
