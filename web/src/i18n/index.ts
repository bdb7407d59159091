/** Texts in the languages of the page. Both files have the same keys; a test says so. */
import { effect, signal } from "@preact/signals";
import { remember, remembered } from "../app/preferences";
import { type Language, settings } from "../app/settings";
import en from "./en.json";
import ja from "./ja.json";

export type Key = keyof typeof en;
export type Texts = Record<Key, string>;

export const LANGUAGES: Record<Language, { name: string; texts: Texts }> = {
  ja: { name: "日本語", texts: ja },
  en: { name: "English", texts: en },
};

function initial(): Language {
  const known = remembered("lang");
  return known === "ja" || known === "en" ? known : settings.lang;
}

export const language = signal<Language>(initial());

export function chooseLanguage(chosen: Language): void {
  language.value = chosen;
  remember("lang", chosen);
}

effect(() => {
  if (typeof document !== "undefined") document.documentElement.lang = language.value;
});

/** The text of a key; `{name}` in it is replaced. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  return fill(LANGUAGES[language.value].texts[key], values);
}

export function fill(text: string, values: Record<string, string | number>): string {
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => (name in values ? String(values[name]) : whole));
}
