/** Bulk operations as values: what is asked for, and how far one is. */
import type { Schemas } from "../api/client";

export type Operation = Schemas["BulkOperation"];
export type BulkAction = Schemas["BulkAction"];
export type Preview = Schemas["BulkPreview"];

/** Either ids or a filter, as `POST /bulk` takes them. */
export interface Wanted {
  action: BulkAction;
  ids?: readonly string[];
  filter?: { [name: string]: string | number | undefined };
}

/** A filter without anything in it has to be meant. */
export function bodyOf({ action, ids, filter }: Wanted, options: { [name: string]: unknown } = {}): object {
  if (ids) return { action, ids, ...options };
  const given = Object.fromEntries(Object.entries(filter ?? {}).filter(([, value]) => value !== undefined));
  const isAll = Object.keys(given).length === 0;
  return { action, ...(isAll ? { all: true } : { filter: given }), ...options };
}

/** Behind the decimal point nothing is of interest; that it is not quite over is. */
export function share(operation: Pick<Operation, "done" | "failed" | "total">): number {
  const { done, failed, total } = operation;
  if (total === 0) return 100;
  return Math.floor(((done + failed) / total) * 100);
}

/** Seconds that are left at the speed so far; null: it has hardly begun. */
export function secondsLeft(
  operation: Pick<Operation, "done" | "failed" | "left" | "created_at">,
  now: number,
): number | null {
  const behind = operation.done + operation.failed;
  const passed = now - operation.created_at;
  return behind < 1 || passed < 2 ? null : (operation.left * passed) / behind;
}
