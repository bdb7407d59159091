/** What the server put into the page. */
export type Language = "ja" | "en";

/** How long what is kept, in seconds; 0: for ever. */
export interface Retention {
  runs: number;
  executions: number;
  ticks: number;
  audit: number;
  dead_letters: number;
  logs: number;
}

export interface Settings {
  lang: Language;
  auth: "none" | "api_key";
  api_key_header: string;
  version: string;
  retention: Partial<Retention>;
}

const DEFAULTS: Settings = { lang: "en", auth: "none", api_key_header: "X-API-Key", version: "", retention: {} };

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
