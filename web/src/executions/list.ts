/** The list of executions as a value: what is asked for again and again is laid over what is known. */
import type { Execution, ExecutionStatus, ExecutionSummary } from "../api/client";
import type { AnyState } from "../ui/Status";

export const STATUSES: readonly ExecutionStatus[] = ["FAILED", "ACTIVE", "CANCELED", "COMPLETED"];

export interface ExecutionFilters {
  status?: ExecutionStatus | undefined;
  graph?: string | undefined;
  archived?: "1" | undefined;
}

export function filtersOf(query: Record<string, string>): ExecutionFilters {
  return {
    status: STATUSES.find((status) => status === query.status),
    graph: query.graph || undefined,
    archived: query.archived === "1" ? "1" : undefined,
  };
}

/** Newest first, ties by id: the order of the server's pages. */
export function compare(a: ExecutionSummary, b: ExecutionSummary): number {
  if (a.created_at !== b.created_at) return b.created_at - a.created_at;
  return a.execution_id < b.execution_id ? 1 : -1;
}

/**
 * What is known, with the newest rows as they are now. What is missing among them is gone (archived, or in
 * another status); what is older than all of them was not asked for and stays.
 */
export function refreshed(known: readonly ExecutionSummary[], newest: readonly ExecutionSummary[]): ExecutionSummary[] {
  const last = newest.at(-1);
  const seen = new Set(newest.map((row) => row.execution_id));
  const older = last ? known.filter((row) => !seen.has(row.execution_id) && compare(row, last) > 0) : [];
  return [...newest, ...older];
}

export function withOlder(known: readonly ExecutionSummary[], page: readonly ExecutionSummary[]): ExecutionSummary[] {
  const seen = new Set(known.map((row) => row.execution_id));
  return [...known, ...page.filter((row) => !seen.has(row.execution_id))];
}

type Standing = Pick<ExecutionSummary, "status" | "started_at" | "cancel_requested_at" | "fail_requested_at">;

/** What an execution is doing, in one word: whoever is needed comes first. */
export function standing(execution: Standing, isWaiting: boolean): AnyState {
  if (execution.status !== "ACTIVE") return execution.status;
  if (execution.cancel_requested_at !== null) return "CANCELLING";
  if (execution.fail_requested_at !== null) return "FAILING";
  if (isWaiting) return "WAITING";
  return execution.started_at === null ? "CREATED" : "ACTIVE";
}

export function endedAt(execution: Pick<Execution, "completed_at" | "failed_at" | "canceled_at">): number | null {
  return execution.completed_at ?? execution.failed_at ?? execution.canceled_at;
}

/** How many nodes have ended, of how many. */
export function progressOf(counts: Record<string, number>): { done: number; total: number } {
  const total = Object.values(counts).reduce((sum, n) => sum + n, 0);
  return { done: (counts.SUCCEEDED ?? 0) + (counts.FAILED ?? 0) + (counts.CANCELED ?? 0), total };
}
