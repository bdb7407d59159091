import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";
import { fingerprint } from "./src/i18n/fingerprint.ts";

/** For `npx vite`: a page that reloads as it is written, on the server of `make up`. */
const SERVER = "http://127.0.0.1:8000";
const API = [
  "/runs",
  "/workers",
  "/wheels",
  "/metrics",
  "/health",
  "/ready",
  "/executions",
  "/graphs",
  "/waits",
  "/schedules",
  "/flows",
  "/queues",
  "/limits",
  "/dead-letters",
  "/bulk",
  "/audit",
  "/api-keys",
  "/stats",
  "/alerts",
  "/channels",
  "/deliveries",
  "/secrets",
  "/variables",
  "/api",
];

const inSource = (path: string) => fileURLToPath(new URL(`./src/${path}`, import.meta.url));
/** `t("a.key"`, and `t(isNew ? "a.key" : "another.key"`. */
const LITERAL = /(\bt\((?:[^"`;{}]*\?)?\s*)"([\w.]+)"(?:(\s*:\s*)"([\w.]+)")?/g;

/** Keys that are put together when the page runs, or passed on: their names have to be in the page. */
function namedKeys(keys: readonly string[]): Set<string> {
  const files = readdirSync(inSource(""), { recursive: true, encoding: "utf8" });
  const source = files.filter((name) => /\.tsx?$/.test(name)).map((name) => readFileSync(inSource(name), "utf8"));
  const code = source.join("\n");
  const literal = new Set([...code.matchAll(LITERAL)].flatMap((match) => [match[2]!, match[4] ?? match[2]!]));
  const elsewhere = new Set([...code.replace(LITERAL, "").matchAll(/"([^"\n]+)"/g)].map((match) => match[1]!));
  const templates = [...code.matchAll(/`([\w.${}() ?:"]*\$\{[^`]*)`/g)]
    .map((match) => match[1]!.split(/\$\{[^}]*\}/))
    .filter((parts) => parts.some((part) => /[a-z]/i.test(part)));
  const pattern = (parts: string[]) =>
    new RegExp(`^${parts.map((part) => part.replace(/[^\w]/g, "\\$&")).join("(.+)")}$`);
  const patterns = templates.map((parts) => ({ shape: pattern(parts), isBegun: parts[0] !== "" }));
  // Of `${section}.title`, the beginning is what a part of a page is told: <ListPage section="runs">.
  const owners = new Set([...code.matchAll(/\b(?:section|kind)="(\w+)"/g)].map((match) => match[1]!));
  const isMade = (key: string) =>
    patterns.some(({ shape, isBegun }) => {
      const match = shape.exec(key);
      return match !== null && (isBegun || owners.has(match[1]!));
    });
  return new Set(keys.filter((key) => !literal.has(key) || elsewhere.has(key) || isMade(key)));
}

/** With it the first `n` keys have fingerprints that no other key has. */
function seedFor(keys: readonly string[], n: number): number {
  for (let seed = 0; ; seed++) {
    const prints = keys.map((key) => fingerprint(key, seed));
    const first = new Set(prints.slice(0, n));
    if (first.size === n && !prints.slice(n).some((print) => first.has(print))) return seed;
  }
}

/**
 * The texts of each language by themselves. `t("a.key")` becomes `t(12)`, the place of its text: a thousand keys
 * would be a tenth of the page.
 */
function textTables(): Plugin {
  const id = "virtual:texts/";
  const read = (name: string) =>
    JSON.parse(readFileSync(inSource(`i18n/${name}.json`), "utf8")) as Record<string, string>;
  const all = Object.keys(read("en"));
  const named = namedKeys(all);
  const sorted = [...named, ...all.filter((key) => !named.has(key))];
  const seed = seedFor(sorted, named.size);
  const prints = sorted.slice(0, named.size).map((key) => fingerprint(key, seed));
  // Keys with the same words in both languages share a place, unless they are found by their fingerprint.
  const [en, ja] = [read("en"), read("ja")];
  const first = new Map([...sorted].reverse().map((key) => [`${en[key]}\n${ja[key]}`, key]));
  const firstOf = (key: string) => (named.has(key) ? key : first.get(`${en[key]}\n${ja[key]}`)!);
  const keys = sorted.filter((key) => firstOf(key) === key);
  const places = new Map(sorted.map((key) => [key, keys.indexOf(firstOf(key))]));
  return {
    name: "text-tables",
    enforce: "pre",
    resolveId: (wanted) => (wanted.startsWith(id) ? `\0${wanted}` : null),
    load(wanted) {
      if (!wanted.startsWith(`\0${id}`)) return null;
      const name = wanted.slice(id.length + 1);
      for (const one of ["en", "ja"]) this.addWatchFile(inSource(`i18n/${one}.json`));
      if (name === "keys")
        return `export default ${JSON.stringify(prints.join(""))}.match(/.../g);export const seed=${seed}`;
      const texts = read(name);
      return `export default ${JSON.stringify(keys.map((key) => texts[key]))}`;
    },
    transform(code, file) {
      if (!file.startsWith(inSource("")) || !/\.tsx?$/.test(file)) return null;
      const placed = (key: string) => places.get(key) ?? JSON.stringify(key);
      return code.replace(LITERAL, (_, start: string, key: string, colon?: string, other?: string) =>
        other === undefined ? start + placed(key) : start + placed(key) + colon + placed(other),
      );
    },
  };
}

/** What a page needs is in two files that come at once: nothing is left to be loaded beforehand. */
function plainImports(): Plugin {
  return {
    name: "plain-imports",
    enforce: "pre",
    resolveId: (wanted) => (wanted.endsWith("vite/preload-helper.js") ? "\0plain-imports" : null),
    load: (id) => (id === "\0plain-imports" ? "export const __vitePreload = (load) => load()" : null),
  };
}

export default defineConfig({
  base: "/static/",
  plugins: [plainImports(), textTables()],
  build: {
    outDir: "../src/pyoco_server/http_api/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the page's policy allows no data: urls
    modulePreload: { polyfill: false },
    target: "es2022",
    // `light-dark()` as it is: what replaces it for older browsers is three times as long.
    cssTarget: ["chrome123", "safari17.5", "firefox121"],
    rolldownOptions: {
      output: {
        // What every page needs and the list of runs come first; the other pages come together. The overview, which
        // most people open next, needs parts of nearly all of them, and small files are compressed to more.
        codeSplitting: {
          groups: [
            {
              name: "shared",
              test: /[/\\]src[/\\](api|app|auth|i18n|live|ui|runs[/\\]RunsPage)|preact|texts.keys/,
            },
            { name: "pages", test: /[/\\]src[/\\](pages|\w+[/\\])/ },
          ],
        },
      },
    },
  },
  // Not the automatic runtime: elements are shorter with their children as arguments.
  oxc: {
    jsx: { runtime: "classic", pragma: "_h", pragmaFrag: "_F" },
    jsxInject: 'import { h as _h, Fragment as _F } from "preact"',
  },
  server: { proxy: Object.fromEntries(API.map((path) => [path, SERVER])) },
  test: { include: ["test/**/*.test.ts"], environment: "node", setupFiles: ["test/setup.ts"] },
});
