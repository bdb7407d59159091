/** Templates in a form: steps that are added, moved and removed. */
import type { Action, Step, Template } from "../api/client";

export type TriggerKind = Step["trigger_kind"];

export const FIRST: readonly TriggerKind[] = ["external_event", "manual_start", "scheduled"];
export const LATER: readonly TriggerKind[] = ["after_previous", "manual_start"];

export interface Draft {
  id: string;
  name: string;
  year: string;
  month: string;
  mfcloud_url: string;
  notes: string;
  steps: Step[];
  /** null: as year and month have it. */
  needs_month: boolean | null;
  /** Filter in CEL; empty: none. */
  when: string;
  /** Of the template that was read; null: it is new. */
  updated_at: string | null;
}

export function newDraft(): Draft {
  return {
    id: "",
    name: "",
    year: "",
    month: "",
    mfcloud_url: "",
    notes: "",
    steps: withStep([]),
    needs_month: null,
    when: "",
    updated_at: null,
  };
}

export function draftOf(template: Template): Draft {
  return {
    id: template.id,
    name: template.name,
    year: template.year ? String(template.year) : "",
    month: template.month ? String(template.month) : "",
    mfcloud_url: template.mfcloud_url ?? "",
    notes: template.notes ?? "",
    steps: template.steps as Step[],
    needs_month: template.needs_month === (template.year !== 0) ? null : template.needs_month,
    when: template.when ?? "",
    updated_at: template.updated_at,
  };
}

/** The request. The server validates it. */
export function bodyOf(draft: Draft): Omit<Template, "id" | "updated_at"> {
  return {
    name: draft.name.trim(),
    year: Number(draft.year || 0),
    month: Number(draft.month || 0),
    mfcloud_url: draft.mfcloud_url.trim() || null,
    notes: draft.notes.trim() || null,
    needs_month: draft.needs_month ?? Boolean(draft.year || draft.month),
    when: draft.when.trim() || null,
    steps: draft.steps.map((step) => ({
      ...step,
      id: step.id.trim(),
      action: step.action.trim(),
      title: step.title?.trim() || null,
    })),
  };
}

export function kindsAt(place: number): readonly TriggerKind[] {
  return place === 0 ? FIRST : LATER;
}

/** A step that has moved may have to begin otherwise. */
function fitting(steps: readonly Step[]): Step[] {
  return steps.map((step, at) =>
    kindsAt(at).includes(step.trigger_kind) ? step : { ...step, trigger_kind: kindsAt(at)[0]! },
  );
}

export function withStep(steps: readonly Step[]): Step[] {
  const taken = new Set(steps.map((step) => step.id));
  let number = steps.length + 1;
  while (taken.has(`step-${number}`)) number += 1;
  return fitting([...steps, { id: `step-${number}`, action: "", trigger_kind: "after_previous", title: null }]);
}

export function withoutStep(steps: readonly Step[], at: number): Step[] {
  return fitting(steps.filter((_, place) => place !== at));
}

export function movedStep(steps: readonly Step[], at: number, by: number): Step[] {
  const to = at + by;
  if (to < 0 || to >= steps.length) return [...steps];
  const next = [...steps];
  [next[at], next[to]] = [next[to]!, next[at]!];
  return fitting(next);
}

export function changedStep(steps: readonly Step[], at: number, part: Partial<Step>): Step[] {
  return steps.map((step, place) => (place === at ? { ...step, ...part } : step));
}

export function whatItDoes(action: Pick<Action, "flow_name" | "graph_id">): string {
  return action.flow_name ?? action.graph_id ?? "";
}
