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
  "/api",
];

export default defineConfig({
  base: "/static/",
  build: {
    outDir: "../src/pyoco_server/http_api/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the page's policy allows no data: urls
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: { proxy: Object.fromEntries(API.map((path) => [path, SERVER])) },
  test: { include: ["test/**/*.test.ts"], environment: "node" },
});
