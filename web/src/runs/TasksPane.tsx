import { useState } from "preact/hooks";
import type { Run } from "../api/client";
import { place, refine } from "../app/router";
import { GraphView } from "../drawing/GraphView";
import { clockTime, duration, visible } from "../format";
import { t } from "../i18n";
import { Status } from "../ui/Status";
import { Took } from "../ui/texts";
import { isShown } from "./detail";
import { TimelineView } from "./TimelineView";

const VIEWS = ["timeline", "graph", "list"] as const;

interface Choosing {
  run: Run;
  selected: string | null;
  onSelect: (task: string) => void;
}

export function TasksPane({ run, selected, onSelect }: Choosing) {
  const view = VIEWS.find((one) => one === place.value.query.view) ?? "timeline";
  const [text, setText] = useState("");
  const [onlyFailed, setOnlyFailed] = useState(false);
  const names = Object.keys(run.tasks);
  const shown = names.filter((name) => isShown(run, name, text, onlyFailed));
  return (
    <section class="panel" aria-label={t("run.view")}>
      <header class="panel-head">
        <div class="tabs" role="group" aria-label={t("run.view")}>
          {VIEWS.map((one) => (
            <button
              key={one}
              type="button"
              aria-pressed={one === view}
              onClick={() => refine({ ...place.value.query, view: one === "timeline" ? undefined : one })}
            >
              {t(`run.view.${one}`)}
            </button>
          ))}
        </div>
        {view !== "graph" && names.length > 1 && (
          <div class="pane-tools">
            <input
              type="search"
              placeholder={t("run.filter")}
              aria-label={t("run.filter")}
              value={text}
              onInput={(event) => setText(event.currentTarget.value)}
            />
            <label class="inline">
              <input
                type="checkbox"
                checked={onlyFailed}
                onChange={(event) => setOnlyFailed(event.currentTarget.checked)}
              />
              <span>{t("run.onlyFailed")}</span>
            </label>
          </div>
        )}
        {run.task_records_truncated && <p class="dim note">{t("run.tasks.truncated")}</p>}
      </header>
      {names.length === 0 ? (
        <p class="dim pad">{t("run.tasks.none")}</p>
      ) : view === "graph" ? (
        <FlowGraph run={run} selected={selected} onSelect={onSelect} />
      ) : shown.length === 0 ? (
        <p class="dim pad">{t("runs.none.title")}</p>
      ) : view === "timeline" ? (
        <TimelineView run={run} shown={new Set(shown)} selected={selected} onSelect={onSelect} />
      ) : (
        <List run={run} shown={shown} selected={selected} onSelect={onSelect} />
      )}
    </section>
  );
}

function FlowGraph({ run, selected, onSelect }: Choosing) {
  const graph = graphOf(run);
  if (!graph) return <p class="dim pad">{t("run.graph.none")}</p>;
  return <GraphView {...graph} selected={selected} onSelect={onSelect} />;
}

/** Null: the run has no record of it. */
export function graphOf(run: Run) {
  const needs = run.task_dependencies;
  if (!needs) return null;
  const names = Object.keys(needs).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const nodes = names.map((name) => ({ id: name, label: name, state: run.tasks[name] ?? ("PENDING" as const) }));
  return { nodes, edges: names.flatMap((to) => (needs[to] ?? []).map((from) => ({ from, to }))) };
}

function List({ run, shown, selected, onSelect }: Choosing & { shown: readonly string[] }) {
  const start = (name: string) => run.task_records?.[name]?.started_at ?? Infinity;
  return (
    <ol class="task-list">
      {[...shown]
        .sort((a, b) => start(a) - start(b) || (a < b ? -1 : 1))
        .map((name) => {
          const record = run.task_records?.[name];
          const at = record?.started_at;
          return (
            <li key={name}>
              <button
                type="button"
                class="timeline-row"
                aria-pressed={name === selected}
                onClick={() => onSelect(name)}
              >
                <bdi>{visible(name)}</bdi>
                <Status state={run.tasks[name]!} />
                <span class="dim">{at == null ? "–" : clockTime(at)}</span>
                <span class="timeline-took">
                  {record?.duration_ms != null ? (
                    duration(record.duration_ms / 1000)
                  ) : (
                    <Took from={at} to={record?.ended_at ?? run.end_time} />
                  )}
                </span>
              </button>
            </li>
          );
        })}
    </ol>
  );
}
