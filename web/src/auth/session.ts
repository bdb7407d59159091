/** The API key of this tab. It is kept in sessionStorage only: closing the tab forgets it. */
import { signal } from "@preact/signals";
import { settings } from "../app/settings";

const PLACE = "pyoco.api-key";

export const apiKey = signal(stored());
export const needsKey = settings.auth === "api_key";

function stored(): string {
  return typeof sessionStorage === "undefined" ? "" : (sessionStorage.getItem(PLACE) ?? "");
}

export function rememberKey(key: string): void {
  sessionStorage.setItem(PLACE, key);
  apiKey.value = key;
}

export function forgetKey(): void {
  sessionStorage.removeItem(PLACE);
  apiKey.value = "";
}

export function keyHeaders(key: string = apiKey.value): Record<string, string> {
  return key ? { [settings.api_key_header]: key } : {};
}
