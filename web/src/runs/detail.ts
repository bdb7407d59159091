/** What the page of a run shows beside the tasks: of one task, or of the whole run. */
import type { Run } from "../api/client";

/** In an address: compare with the newest run that completed. */
export const LATEST = "latest";

export const TABS = ["log", "input", "output", "artifacts", "error"] as const;
export type Tab = (typeof TABS)[number];

export interface Problem {
  text: string;
  traceback: string | null;
}

type Failed = Pick<Run, "tasks" | "status" | "failure" | "error"> & Partial<Pick<Run, "task_records">>;

/** The task that made the run fail. */
export function failedTask(run: Failed): string | null {
  if (run.status !== "FAILED") return null;
  const task = run.failure?.task ?? Object.keys(run.tasks).find((name) => run.tasks[name] === "FAILED");
  return task !== undefined && task in run.tasks ? task : null;
}

/** The task that is chosen; of a run that failed, that which made it fail. Null: the whole run. */
export function shownTask(run: Failed, query: Record<string, string>): string | null {
  if (query.task !== undefined && query.task in run.tasks) return query.task;
  return query.whole ? null : failedTask(run);
}

export function problemOf(run: Failed, task: string | null): Problem | null {
  const own = task === null ? null : run.task_records?.[task];
  if (own?.error) return { text: own.error, traceback: own.traceback };
  if (task !== null && task !== failedTask(run)) return null;
  const text = run.failure?.message || run.error;
  return text ? { text, traceback: run.failure?.traceback ?? null } : null;
}

/** Errors and artifacts have a tab only where there are some. */
export function tabsOf(hasProblem: boolean, hasArtifacts: boolean): Tab[] {
  return TABS.filter((one) => (one !== "error" || hasProblem) && (one !== "artifacts" || hasArtifacts));
}

/** The tab that is chosen; where something failed, the error. */
export function shownTab(wanted: string | undefined, tabs: readonly Tab[]): Tab {
  return tabs.find((one) => one === wanted) ?? (tabs.includes("error") ? "error" : "log");
}

/** The tasks that a filter leaves. */
export function isShown(run: Pick<Run, "tasks">, task: string, text: string, onlyFailed: boolean): boolean {
  return task.toLowerCase().includes(text.toLowerCase()) && (!onlyFailed || run.tasks[task] === "FAILED");
}
