/** The API key of this tab. It is kept in sessionStorage only: closing the tab forgets it. */

import { settings } from "../app/settings";
import { signal } from "../app/signals";

const PLACE = "pyoco.api-key";

export const apiKey = signal(stored());
/** Why the key that was used is not used any more: the words of the server. */
export const signedOutFor = signal<string | null>(null);
export const needsKey = settings.auth === "api_key";

function stored(): string {
  return typeof sessionStorage === "undefined" ? "" : (sessionStorage.getItem(PLACE) ?? "");
}

export function rememberKey(key: string): void {
  sessionStorage.setItem(PLACE, key);
  apiKey.value = key;
  signedOutFor.value = null;
}

/** `reason`: the server does not accept it any more. Without: somebody signed out. */
export function forgetKey(reason: string | null = null): void {
  if (apiKey.value === "") return; // several requests may be refused at once
  sessionStorage.removeItem(PLACE);
  apiKey.value = "";
  signedOutFor.value = reason;
}

export function keyHeaders(key: string = apiKey.value): Record<string, string> {
  return key ? { [settings.api_key_header]: key } : {};
}
