/** API keys as values: how one stands, and what a form asks for. */
import type { Schemas } from "../api/client";

export type ApiKey = Schemas["ListedApiKey"];

export const SCOPES = ["read", "submit", "operate", "deploy", "admin"] as const;
export type Scope = (typeof SCOPES)[number];

export function isScope(text: string): text is Scope {
  return (SCOPES as readonly string[]).includes(text);
}

export function standingOf(
  key: Pick<ApiKey, "revoked_at" | "expires_at">,
  now: number,
): "VALID" | "EXPIRED" | "REVOKED" {
  if (key.revoked_at != null) return "REVOKED";
  return key.expires_at != null && key.expires_at <= now ? "EXPIRED" : "VALID";
}

/** `pyoco_ID.SECRET`: only the first part may be shown. */
export function keyIdOf(key: string): string | null {
  return /^pyoco_([^.]+)\./.exec(key)?.[1] ?? null;
}

/** Days until it expires; 0: never. */
export const LIVES = [0, 7, 30, 90, 365] as const;
const DAY_SEC = 86_400;

export function bodyOf(form: { scopes: readonly Scope[]; days: number; description: string }, now: number): object {
  return {
    scopes: form.scopes,
    ...(form.days > 0 ? { expires_at: Math.floor(now + form.days * DAY_SEC) } : {}),
    ...(form.description.trim() ? { description: form.description.trim() } : {}),
  };
}
