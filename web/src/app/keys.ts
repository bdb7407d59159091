/** What keys do on every page. Whoever is typing, or in a dialog, is left alone. */

import { useEffect } from "preact/hooks";
import { go } from "./router";
import { signal } from "./signals";

/** Behind `g`. */
export const PLACES: Record<string, string> = {
  o: "overview",
  r: "runs",
  e: "executions",
  i: "waits",
  f: "flows",
  s: "schedules",
  q: "queues",
  d: "dead-letters",
};

export const opened = signal<"palette" | "keys" | null>(null);

const SECOND_KEY_MS = 1500;
const ROWS = "main tr.row, main [data-wait]";
/** Of a row, what Enter is for: the first that it has. */
const STARTS = [".row-link", ".cell-main a", ".wait-head > .button", "a[href]", "button"];

export type Command =
  | { act: "go"; path: string }
  | { act: "move"; by: 1 | -1 }
  | { act: "select" | "search" | "palette" | "keys" };

/** What a key means, behind another one or alone. */
export function commandOf(key: string, before: string): Command | null {
  if (before === "g") return Object.hasOwn(PLACES, key) ? { act: "go", path: PLACES[key]! } : null;
  switch (key) {
    case "j":
      return { act: "move", by: 1 };
    case "k":
      return { act: "move", by: -1 };
    case "x":
      return { act: "select" };
    case "/":
      return { act: "search" };
    case "?":
      return { act: "keys" };
    default:
      return null;
  }
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]")
  );
}

function rows(): HTMLElement[] {
  return [...document.querySelectorAll<HTMLElement>(ROWS)];
}

function current(all: readonly HTMLElement[]): number {
  return all.findIndex((row) => row.contains(document.activeElement));
}

function move(by: 1 | -1): void {
  const all = rows();
  const at = current(all);
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by];
  const found = STARTS.map((start) => next?.querySelector<HTMLElement>(start));
  found.find((one) => one)?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function select(): void {
  const all = rows();
  all[current(all)]?.querySelector<HTMLInputElement>("input[type=checkbox]")?.click();
}

function search(): void {
  const fields = [...document.querySelectorAll<HTMLInputElement>("main input[type=search]")];
  const field = fields.find((one) => one.offsetParent !== null);
  field?.focus();
  field?.select();
}

function carryOut(command: Command): void {
  if (command.act === "go") go([command.path]);
  else if (command.act === "move") move(command.by);
  else if (command.act === "select") select();
  else if (command.act === "search") search();
  else opened.value = command.act;
}

/** Listens while the frame is there. */
export function useKeys(): void {
  useEffect(() => {
    let before = { key: "", at: 0 };

    function onKey(event: KeyboardEvent): void {
      if (document.querySelector("dialog[open]")) return;
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        opened.value = "palette";
        return;
      }
      if (event.metaKey || event.ctrlKey || event.altKey || event.isComposing) return;
      if (isTyping(event.target)) {
        if (event.key === "Escape") (event.target as HTMLElement).blur();
        return;
      }
      const isSecond = performance.now() - before.at < SECOND_KEY_MS;
      const command = commandOf(event.key, isSecond ? before.key : "");
      before = { key: event.key, at: performance.now() };
      if (!command) return;
      before.key = "";
      event.preventDefault();
      carryOut(command);
    }

    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
}

const HEADING_MS = 5000;

/** Whoever goes to another page begins at its heading: it may come later than the page. */
export function focusHeading(): () => void {
  const before = document.activeElement;
  const stop = () => {
    observer.disconnect();
    clearTimeout(timer);
  };
  function attempt(): void {
    const heading = document.querySelector<HTMLElement>("main h1");
    const now = document.activeElement;
    const isFree = now === before || now === document.body || now === null;
    if (!isFree) stop();
    if (!heading || !isFree) return;
    heading.tabIndex = -1;
    heading.focus({ preventScroll: true });
    stop();
  }
  const observer = new MutationObserver(attempt);
  const timer = setTimeout(stop, HEADING_MS);
  observer.observe(document.getElementById("content")!, { childList: true, subtree: true });
  attempt();
  return stop;
}
