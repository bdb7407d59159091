/** What the server put into the page. */
export type Language = "ja" | "en";

export interface Settings {
  lang: Language;
  auth: "none" | "api_key";
  api_key_header: string;
  version: string;
}

const DEFAULTS: Settings = { lang: "en", auth: "none", api_key_header: "X-API-Key", version: "" };

export function readSettings(text: string | null | undefined): Settings {
  try {
    return { ...DEFAULTS, ...(JSON.parse(text ?? "{}") as Partial<Settings>) };
  } catch {
    return DEFAULTS;
  }
}

function inPage(): string | null {
  if (typeof document === "undefined") return null;
  return document.querySelector('meta[name="pyoco-settings"]')?.getAttribute("content") ?? null;
}

export const settings = readSettings(inPage());
