import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import { PLACES } from "../app/keys";
import { go } from "../app/router";
import { SECTIONS } from "../app/sections";
import { visible } from "../format";
import { t } from "../i18n";
import { runIdIn } from "../runs/query";
import { Combo, type Option } from "../ui/Combo";
import { Dialog } from "../ui/Dialog";

interface Target extends Option {
  path: string[];
}

const MOST = 12;

/** The way to any page, flow, graph, schedule or run, by typing a part of its name. */
export function Palette({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const names = useTargets();
  const wanted = text.trim().toLowerCase();
  const id = runIdIn(text);
  const found = [...pages(), ...names].filter(({ text: name }) => name.toLowerCase().includes(wanted));
  const options: Target[] = id
    ? [{ key: "run", text: id, hint: t("nav.runs"), icon: "runs", path: ["runs", id] }]
    : found.slice(0, MOST);
  return (
    <Dialog title={t("palette.title")} onClose={onClose}>
      <div class="palette">
        <Combo
          label={t("palette.title")}
          hint={t("palette.hint")}
          value={text}
          options={options}
          isAlwaysOpen
          onInput={setText}
          onChoose={({ path }) => {
            onClose();
            go(path);
          }}
        />
        {options.length === 0 && <p class="dim">{t("runs.none.title")}</p>}
      </div>
    </Dialog>
  );
}

function pages(): Target[] {
  return SECTIONS.map(({ path, title, icon }) => ({ key: `/${path}`, text: t(title), icon, path: [path] }));
}

function useTargets(): Target[] {
  const [found, setFound] = useState<Target[]>([]);
  useEffect(() => {
    const reading = new AbortController();
    const { signal } = reading;
    const query = { limit: 200, stale: "ok" as const };
    Promise.all([
      get("/flows", { query, signal }),
      get("/graphs", { query: { limit: 200 }, signal }),
      get("/schedules", { query: { limit: 200 }, signal }),
    ]).then(
      ([flows, graphs, schedules]) =>
        setFound([
          ...flows.items.map(({ name }) => target("flows", name)),
          ...graphs.items.map(({ graph_id }) => target("graphs", graph_id)),
          ...schedules.items.map(({ id }) => target("schedules", id)),
        ]),
      () => undefined, // the pages can be reached without them, and the pill shows an outage
    );
    return () => reading.abort();
  }, []);
  return found;
}

function target(section: string, name: string): Target {
  const { title, icon } = SECTIONS.find(({ path }) => path === section)!;
  return { key: `${section}/${name}`, text: visible(name), hint: t(title), icon, path: [section, name] };
}

/** All keys, and what they do. */
export function KeysDialog({ onClose }: { onClose: () => void }) {
  const titles = new Map(SECTIONS.map(({ path, title }) => [path, t(title)]));
  const keys: [string, string][] = [
    ["⌘K / Ctrl K", t("palette.title")],
    ["/", t("keys.search")],
    ["j k", t("keys.rows")],
    ["Enter", t("keys.open")],
    ["x", t("keys.select")],
    ["Esc", t("keys.close")],
    ["?", t("keys.title")],
    ...Object.entries(PLACES).map(([key, path]): [string, string] => [`g ${key}`, titles.get(path)!]),
  ];
  return (
    <Dialog title={t("keys.title")} onClose={onClose}>
      <dl class="keys">
        {keys.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
