import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

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
  "/api",
];

/** The keys of the texts, once, and the texts of each language by themselves, in the order of the keys. */
function textTables(): Plugin {
  const id = "virtual:texts/";
  const file = (name: string) => fileURLToPath(new URL(`./src/i18n/${name}.json`, import.meta.url));
  const read = (name: string) => JSON.parse(readFileSync(file(name), "utf8")) as Record<string, string>;
  return {
    name: "text-tables",
    resolveId: (wanted) => (wanted.startsWith(id) ? `\0${wanted}` : null),
    load(wanted) {
      if (!wanted.startsWith(`\0${id}`)) return null;
      const name = wanted.slice(id.length + 1);
      for (const one of ["en", "ja"]) this.addWatchFile(file(one));
      const keys = Object.keys(read("en"));
      if (name === "keys") return `export default ${JSON.stringify(keys.join("|"))}.split("|")`;
      const texts = read(name);
      return `export default ${JSON.stringify(keys.map((key) => texts[key]))}`;
    },
  };
}

export default defineConfig({
  base: "/static/",
  plugins: [textTables()],
  build: {
    outDir: "../src/pyoco_server/http_api/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the page's policy allows no data: urls
    modulePreload: { polyfill: false },
    target: "es2022",
    rolldownOptions: {
      output: {
        // What most pages need comes with the first (a group takes what its modules import, too). Pages that are used together come together: many small files
        // are compressed to more, and cost a request each.
        codeSplitting: {
          groups: [
            {
              name: "shared",
              test: /[/\\]src[/\\](api|app|auth|i18n|live|ui|runs[/\\]RunsPage)|preact|texts.keys/,
            },
            { name: "work", test: /[/\\]src[/\\](drawing|executions|flows|runs|schedules)[/\\]/ },
            { name: "operate", test: /[/\\]src[/\\](fleet|limits|metrics|wheels|events|letters|bulk|admin)[/\\]/ },
          ],
        },
      },
    },
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: { proxy: Object.fromEntries(API.map((path) => [path, SERVER])) },
  test: { include: ["test/**/*.test.ts"], environment: "node", setupFiles: ["test/setup.ts"] },
});
