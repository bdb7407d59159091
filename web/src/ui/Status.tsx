import type { NodeStatus, RunStatus, TaskState, TickStatus, WorkerState } from "../api/client";
import { t } from "../i18n";
import { Glyph, type IconName } from "./icons";

/** Of an execution and its nodes. A node that is IDLE is shown as UNREACHED: an idle worker is another thing. */
export type ExecutionLook = Exclude<NodeStatus, "IDLE"> | "UNREACHED" | "CREATED" | "ACTIVE" | "FAILING";
/** Of an event from outside, and of the jobs that try one again. */
export type EventLook =
  | "success"
  | "skipped"
  | "rejected"
  | "failed"
  | "unknown"
  | "pending"
  | "retrying"
  | "succeeded"
  | "discarded"
  | "escalated";
/** Of a schedule, and of its ticks. */
export type ScheduleLook = "SCHEDULED" | "PAUSED" | "OVER" | TickStatus;
/** Of the queue of a tag. */
export type QueueLook = "SERVED" | "UNSERVED" | "UNUSED";
/** Of an API key. */
export type KeyLook = "VALID" | "EXPIRED" | "REVOKED";
/** Of a message of an alert. */
export type DeliveryLook = "DELIVERED";
export type AnyState =
  | RunStatus
  | TaskState
  | WorkerState
  | ExecutionLook
  | EventLook
  | ScheduleLook
  | QueueLook
  | KeyLook
  | DeliveryLook;

/** Colour; shape and word agree with it. */
export type Tone = "waiting" | "bad" | "warn" | "busy" | "good" | "quiet";

interface Look {
  tone: Tone;
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
  UNREACHED: { tone: "quiet", icon: "unreached" },
  CREATED: { tone: "quiet", icon: "pending" },
  READY: { tone: "quiet", icon: "pending" },
  ACTIVE: { tone: "busy", icon: "running" },
  WAITING: { tone: "waiting", icon: "waiting" },
  FAILING: { tone: "bad", icon: "failed" },
  CANCELED: { tone: "warn", icon: "cancelled" },
  SCHEDULED: { tone: "good", icon: "clock" },
  PAUSED: { tone: "warn", icon: "pause" },
  OVER: { tone: "quiet", icon: "stopped" },
  STARTED: { tone: "good", icon: "play" },
  SKIPPED: { tone: "quiet", icon: "skipped" },
  MISSED: { tone: "warn", icon: "disconnected" },
  SERVED: { tone: "good", icon: "idle" },
  UNSERVED: { tone: "bad", icon: "disconnected" },
  UNUSED: { tone: "quiet", icon: "unreached" },
  VALID: { tone: "good", icon: "succeeded" },
  EXPIRED: { tone: "quiet", icon: "clock" },
  REVOKED: { tone: "quiet", icon: "cancelled" },
  DELIVERED: { tone: "good", icon: "succeeded" },
  success: { tone: "good", icon: "succeeded" },
  skipped: { tone: "quiet", icon: "skipped" },
  rejected: { tone: "warn", icon: "cancelled" },
  failed: { tone: "bad", icon: "failed" },
  unknown: { tone: "quiet", icon: "unreached" },
  pending: { tone: "quiet", icon: "pending" },
  retrying: { tone: "busy", icon: "again" },
  succeeded: { tone: "good", icon: "succeeded" },
  discarded: { tone: "quiet", icon: "trash" },
  escalated: { tone: "waiting", icon: "waiting" },
};

export function toneOf(state: AnyState): Tone {
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
