/** Alerts and channels as forms, and what the server takes. */
import type { Schemas } from "../api/client";

export type Alert = Schemas["AlertView"];
export type Channel = Schemas["ChannelView"];
export type AlertKind = Schemas["AlertKind"];
export type ChannelType = Schemas["ChannelType"];

export const KINDS: readonly AlertKind[] = [
  "run.failed",
  "run.late",
  "run.stuck",
  "execution.failed",
  "wait.opened",
  "wait.overdue",
  "schedule.skipped",
  "schedule.missed",
  "worker.lost",
  "dead_letter",
  "limit.waiting",
  "event.escalated",
];
export const TYPES: readonly ChannelType[] = ["webhook", "slack", "teams", "google_chat", "email"];
const TIMED: readonly AlertKind[] = ["run.late", "wait.overdue", "limit.waiting"];

/** About something that takes too long: it has to be said how long. */
export function isTimed(on: readonly AlertKind[]): boolean {
  return on.some((kind) => TIMED.includes(kind));
}

export interface AlertTexts {
  on: readonly AlertKind[];
  channel: string;
  filter: string;
  late: string;
  cooldown: string;
}

export function alertTexts(known: Alert | null): AlertTexts {
  return {
    on: known?.on ?? ["run.failed"],
    channel: known?.channel ?? "",
    filter: known?.filter ?? "",
    late: String(known?.late_after_sec ?? 600),
    cooldown: String(known?.cooldown_sec ?? 300),
  };
}

export function alertBody({ on, channel, filter, late, cooldown }: AlertTexts): object {
  return {
    on,
    channel,
    cooldown_sec: Number(cooldown),
    ...(filter.trim() ? { filter: filter.trim() } : {}),
    ...(isTimed(on) ? { late_after_sec: Number(late) } : {}),
  };
}

export interface ChannelTexts {
  type: ChannelType;
  url: string;
  secret: string;
  host: string;
  port: string;
  security: string;
  username: string;
  password: string;
  from: string;
  to: string;
}

/** The address of a webhook and secrets are never shown again: they have to be entered again. */
export function channelTexts(known: Channel | null): ChannelTexts {
  return {
    type: known?.type ?? "webhook",
    url: "",
    secret: "",
    host: known?.type === "email" ? known.host : "",
    port: String(known?.port ?? 587),
    security: known?.security ?? "starttls",
    username: known?.username?.includes("•") ? "" : (known?.username ?? ""),
    password: "",
    from: known?.from ?? "",
    to: (known?.to ?? []).join(", "),
  };
}

export function channelBody(texts: ChannelTexts): object {
  const { type, url, secret, host, port, security, username, password, from, to } = texts;
  if (type !== "email") return { type, url: url.trim(), ...(type === "webhook" && secret ? { secret } : {}) };
  return {
    type,
    host: host.trim(),
    port: Number(port),
    security,
    from: from.trim(),
    to: to
      .split(",")
      .map((one) => one.trim())
      .filter(Boolean),
    ...(username.trim() ? { username: username.trim(), password } : {}),
  };
}
