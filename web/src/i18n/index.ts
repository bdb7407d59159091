/** Texts in the languages of the page. Both files have the same keys; a test checks that. */

import prints, { seed } from "virtual:texts/keys";
import { remember, remembered } from "../app/preferences";
import { type Language, settings } from "../app/settings";
import { effect, signal } from "../app/signals";
import type en from "./en.json";
import { fingerprint } from "./fingerprint";

export type Key = keyof typeof en;

export const LANGUAGES: Record<Language, { name: string; load: () => Promise<{ default: string[] }> }> = {
  ja: { name: "日本語", load: () => import("virtual:texts/ja") },
  en: { name: "English", load: () => import("virtual:texts/en") },
};

/** Of the languages that were needed so far, in the order of the build. */
const texts: Partial<Record<Language, string[]>> = {};
const places = new Map(prints.map((print, at) => [print, at]));

export function hasText(key: string): key is Key {
  return places.has(fingerprint(key, seed));
}

export async function loadTexts(wanted: Language): Promise<void> {
  texts[wanted] = (await LANGUAGES[wanted].load()).default;
}

function initial(): Language {
  const known = remembered("lang");
  return known === "ja" || known === "en" ? known : settings.lang;
}

export const language = signal<Language>(initial());

/** Rejected where its texts cannot be loaded; then the language stays as it is. */
export async function chooseLanguage(chosen: Language): Promise<void> {
  await loadTexts(chosen);
  language.value = chosen;
  remember("lang", chosen);
}

effect(() => {
  if (typeof document !== "undefined") document.documentElement.lang = language.value;
});

/** The text of a key; `{name}` in it is replaced. Where the key is written out, the build has put its place there. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  const at = typeof key === "number" ? key : places.get(fingerprint(key, seed))!;
  return fill(texts[language.value]![at]!, values);
}

export function fill(text: string, values: Record<string, string | number>): string {
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => (name in values ? String(values[name]) : whole));
}
