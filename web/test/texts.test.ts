import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import english from "virtual:texts/en";
import japanese from "virtual:texts/ja";
import { describe, expect, it } from "vitest";
import { fill, hasText, language, t } from "../src/i18n";
import en from "../src/i18n/en.json";
import ja from "../src/i18n/ja.json";

const SOURCE = join(import.meta.dirname, "../src");

function sources(): string {
  return readdirSync(SOURCE, { recursive: true, encoding: "utf8" })
    .filter((name) => /\.tsx?$/.test(name))
    .map((name) => readFileSync(join(SOURCE, name), "utf8"))
    .join("\n");
}

/** Keys in a part of a page that is told whose words to use: <ListPage section="runs">, t(`${section}.title`). */
function endedIn(text: string): ReadonlySet<string> {
  const owners = [...text.matchAll(/\b(?:section|kind)="(\w+)"/g)].map((match) => match[1]!);
  const ends = [...text.matchAll(/t\(`\$\{(?:section|kind)\}(\.[\w.]+)`/g)].map((match) => match[1]!);
  return new Set(owners.flatMap((owner) => ends.map((end) => owner + end)));
}

const names = (text: string) => [...text.matchAll(/\{(\w+)\}/g)].map((match) => match[1]!).sort();

describe("the texts", () => {
  const keys = Object.keys(en) as (keyof typeof en)[];

  it("are the same in both languages", () => {
    expect(Object.keys(ja)).toEqual(keys);
  });

  it.each(keys)("%s has words, and the same values in them, in both", (key) => {
    expect(en[key].trim()).not.toBe("");
    expect(ja[key].trim()).not.toBe("");
    expect(names(ja[key])).toEqual(names(en[key]));
  });

  it.each([
    ["en", en, english],
    ["ja", ja, japanese],
  ] as const)("are on the page as they are in the file of %s", (name, file, built) => {
    expect(new Set(built)).toEqual(new Set(Object.values(file)));
    language.value = name;
    for (const key of keys.filter(hasText)) expect(t(key)).toBe(file[key]);
    language.value = "en";
  });

  it("are there by name where the key is put together", () => {
    const text = sources();
    const begun = [...text.matchAll(/`([\w.]+\.)\$\{/g)].map((match) => match[1]!);
    const missing = keys.filter((key) => begun.some((start) => key.startsWith(start)) && !hasText(key));
    expect(missing.filter((key) => !text.includes(`"${key}"`))).toEqual([]);
    const ended = endedIn(text);
    expect(keys.filter((key) => ended.has(key) && !hasText(key))).toEqual([]);
  });

  it("are all used", () => {
    const text = sources();
    // A key is written out, or as a template whose beginning is: t(`state.${state}`).
    const begun = [...text.matchAll(/`([\w.]+\.)\$\{/g)].map((match) => match[1]!);
    const ended = endedIn(text);
    const unused = keys.filter(
      (key) => !text.includes(`"${key}"`) && !begun.some((start) => key.startsWith(start)) && !ended.has(key),
    );
    expect(unused).toEqual([]);
  });

  it("take values where they have a place for them", () => {
    expect(fill("{n} of {m}, {x}", { n: 1, m: "<b>" })).toBe("1 of <b>, {x}");
  });
});
