/** Texts in the languages of the page. Both files have the same keys; a test says so. */

import keys from "virtual:texts/keys";
import { effect, signal } from "@preact/signals";
import { remember, remembered } from "../app/preferences";
import { type Language, settings } from "../app/settings";
import type en from "./en.json";

export type Key = keyof typeof en;
export type Texts = Record<Key, string>;

export const LANGUAGES: Record<Language, { name: string; load: () => Promise<{ default: string[] }> }> = {
  ja: { name: "日本語", load: () => import("virtual:texts/ja") },
  en: { name: "English", load: () => import("virtual:texts/en") },
};

/** Of the languages that were needed so far. */
export const texts: Partial<Record<Language, Texts>> = {};

export async function loadTexts(wanted: Language): Promise<void> {
  const found = (await LANGUAGES[wanted].load()).default;
  texts[wanted] = Object.fromEntries(keys.map((key, at) => [key, found[at]])) as Texts;
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

/** The text of a key; `{name}` in it is replaced. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  return fill(texts[language.value]![key], values);
}

export function fill(text: string, values: Record<string, string | number>): string {
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => (name in values ? String(values[name]) : whole));
}
