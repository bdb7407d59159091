import type { RunStatus, TaskState, WorkerState } from "../api/client";
import { t } from "../i18n";
import { Glyph, type IconName } from "./icons";

export type AnyState = RunStatus | TaskState | WorkerState;

interface Look {
  /** Colour; the shape and the word say the same. */
  tone: "waiting" | "bad" | "warn" | "busy" | "good" | "quiet";
  icon: IconName;
}

const LOOKS: Record<AnyState, Look> = {
  PENDING: { tone: "quiet", icon: "pending" },
  RUNNING: { tone: "busy", icon: "running" },
  COMPLETED: { tone: "good", icon: "succeeded" },
  SUCCEEDED: { tone: "good", icon: "succeeded" },
  FAILED: { tone: "bad", icon: "failed" },
  CANCELLING: { tone: "warn", icon: "cancelling" },
  CANCELLED: { tone: "warn", icon: "cancelled" },
  IDLE: { tone: "good", icon: "idle" },
  STOPPED_GRACEFUL: { tone: "quiet", icon: "stopped" },
  DISCONNECTED: { tone: "bad", icon: "disconnected" },
};

export function toneOf(state: AnyState): Look["tone"] {
  return LOOKS[state].tone;
}

export function StatusIcon({ state, size }: { state: AnyState; size?: number }) {
  const look = LOOKS[state];
  return (
    <span class={`status-icon tone-${look.tone}`}>
      <Glyph name={look.icon} {...(size ? { size } : {})} />
    </span>
  );
}

export function Status({ state }: { state: AnyState }) {
  return (
    <span class={`status tone-${toneOf(state)}`} data-state={state}>
      <StatusIcon state={state} />
      {t(`state.${state}`)}
    </span>
  );
}
