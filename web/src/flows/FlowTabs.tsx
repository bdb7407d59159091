import type { ComponentChildren } from "preact";
import { type FlowDetails, get, type Run, type RunSummary, type Schemas, type Worker } from "../api/client";
import { now } from "../app/clock";
import { link, place, refine } from "../app/router";
import { GraphView } from "../drawing/GraphView";
import { ago, duration, visible } from "../format";
import { language, t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { FailureGroups } from "../overview/FailureGroups";
import { grouped } from "../overview/failures";
import { RunTable } from "../runs/RunsPage";
import { graphOf } from "../runs/TasksPane";
import { DataTable, Facts } from "../ui/DataTable";
import { JsonValue } from "../ui/JsonValue";
import { toneOf } from "../ui/Status";
import { Problem, Tags } from "../ui/texts";
import { bars } from "./flow";
import { gridOf, useRuns } from "./history";

const TABS = ["history", "runs", "errors", "graph", "code", "settings"] as const;
const ERRORS_MS = 10_000;
const FAILED = 200;

export function FlowTabs({
  flow,
  runs,
  defaults,
}: {
  flow: FlowDetails;
  runs: readonly RunSummary[];
  defaults: readonly [string, ComponentChildren][];
}) {
  const tab = TABS.find((one) => one === place.value.query.tab) ?? "history";
  const isEmpty = runs.length === 0 && tab !== "code" && tab !== "settings";
  return (
    <section class="flow-part" aria-label={t(`flow.tab.${tab}`)}>
      <header class="part-head">
        <div class="tabs" role="group" aria-label={t("flow.tabs")}>
          {TABS.map((one) => (
            <button
              key={one}
              type="button"
              aria-pressed={one === tab}
              onClick={() => refine({ ...place.value.query, tab: one === "history" ? undefined : one })}
            >
              {t(`flow.tab.${one}`)}
            </button>
          ))}
        </div>
        <a href={link(["runs"], { flow: flow.name })}>{t("flow.allRuns")}</a>
      </header>
      {isEmpty && <p class="dim">{t("flow.noRuns")}</p>}
      {!isEmpty && tab === "history" && <History runs={runs} />}
      {!isEmpty && tab === "runs" && (
        <RunTable rows={runs} {...(flow.p50_sec ? { p50: new Map([[flow.name, flow.p50_sec]]) } : {})} />
      )}
      {!isEmpty && tab === "errors" && <Errors flow={flow.name} />}
      {!isEmpty && tab === "graph" && <Graph newest={runs[0]!} />}
      {tab === "code" && <Code flow={flow} />}
      {tab === "settings" && (
        <div class="panel flow-settings">
          {defaults.length > 0 ? <Facts facts={defaults} /> : <p class="dim pad">{t("flow.noDefaults")}</p>}
          {flow.params_schema !== null && (
            <section aria-label={t("flow.schema")}>
              <h3 class="pad">{t("flow.schema")}</h3>
              <JsonValue value={flow.params_schema} label={t("flow.schema")} />
            </section>
          )}
        </div>
      )}
    </section>
  );
}

function wordsOf(run: RunSummary): string {
  const took = run.start_time === null ? "" : duration((run.end_time ?? now.value) - run.start_time);
  const words = [t(`state.${run.status}`), took, ago(now.value - run.updated_at, language.value)];
  return words.filter(Boolean).join(" · ");
}

/** A column per run: a bar as high as the run was long, and below it what became of each task. */
function History({ runs }: { runs: readonly RunSummary[] }) {
  const { tasks, columns, left } = gridOf(runs, useRuns(runs));
  const heights = bars(runs, now.value);
  return (
    <div class="panel history-grid">
      <div class="table-scroll" role="group" tabIndex={0} aria-label={t("flow.tab.history")}>
        <table>
          <thead>
            <tr>
              <th scope="col">
                <span class="sr-only">{t("runs.column.tasks")}</span>
              </th>
              {heights.map(({ run, height }) => (
                <th key={run.run_id} scope="col">
                  <a class={`tone-${toneOf(run.status)}`} href={link(["runs", run.run_id])} title={wordsOf(run)}>
                    <span class="run-bar" style={{ height: `${Math.round(12 + 88 * height)}%` }} />
                    <span class="sr-only">{wordsOf(run)}</span>
                  </a>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {tasks.map((task) => (
              <tr key={task}>
                <th scope="row">
                  <bdi>{visible(task)}</bdi>
                </th>
                {columns.map(({ run, states }) => {
                  const state = states[task];
                  const words = state ? `${visible(task)}: ${t(`state.${state}`)}` : "";
                  return (
                    <td key={run.run_id}>
                      {state && (
                        <a
                          class={`cell tone-${toneOf(state)}`}
                          // The head of the column leads there, too.
                          tabIndex={-1}
                          href={link(["runs", run.run_id], { task })}
                          title={words}
                        >
                          <span class="sr-only">{words}</span>
                        </a>
                      )}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {left > 0 && <p class="dim pad">{t("bulk.others", { n: left })}</p>}
    </div>
  );
}

function Errors({ flow }: { flow: string }) {
  const { value, error } = usePolling(
    async (signal) => {
      const query = { flow, status: "FAILED" as const, updated_after: 0, limit: FAILED, stale: "ok" as const };
      const page = (await get("/runs", { query, signal })) as Schemas["RunPage"];
      return grouped(page.items as RunSummary[]);
    },
    ERRORS_MS,
    flow,
  );
  if (!value) return error ? <Problem error={error} /> : <p class="dim loading">{t("runs.loading")}</p>;
  return (
    <div class="panel overview-part">
      <FailureGroups groups={value} />
    </div>
  );
}

/** As the newest run has it. */
function Graph({ newest }: { newest: RunSummary }) {
  const run: Run | undefined = useRuns([newest]).get(newest.run_id);
  if (!run) return <p class="dim loading">{t("runs.loading")}</p>;
  const graph = graphOf(run);
  if (!graph) return <p class="dim">{t("run.graph.none")}</p>;
  return (
    <div class="panel flow-graph">
      <p class="dim pad">
        <a href={link(["runs", newest.run_id])}>{wordsOf(newest)}</a>
      </p>
      <GraphView
        {...graph}
        selected={null}
        onSelect={(task) => {
          location.hash = link(["runs", newest.run_id], { task });
        }}
      />
    </div>
  );
}

/** Who has it, and in which version. */
function Code({ flow }: { flow: FlowDetails }) {
  const { value, error } = usePolling(
    (signal) => get("/workers", { query: { scope: "active", limit: 500, stale: "ok" }, signal }),
    ERRORS_MS,
    flow.name,
  );
  if (!value) return error ? <Problem error={error} /> : <p class="dim loading">{t("runs.loading")}</p>;
  const workers = value.filter((worker) => flow.workers.includes(worker.worker_id));
  if (workers.length === 0) return <p class="dim">{t("flow.code.none")}</p>;
  const wheels = (worker: Worker) =>
    (worker.wheel_sync?.installed_wheels ?? []).map(({ package: name, version }) => `${name} ${version}`);
  return (
    <DataTable
      name="flow-code"
      rows={workers}
      keyOf={(worker) => worker.worker_id}
      columns={[
        { title: t("workers.column.worker"), class: "cell-main", cell: (worker) => visible(worker.worker_id) },
        { title: t("workers.column.tags"), cell: (worker) => <Tags tags={worker.tags} /> },
        {
          title: t("workers.column.wheels"),
          cell: (worker) => (wheels(worker).length > 0 ? <Tags tags={wheels(worker)} /> : t("flow.code.local")),
        },
      ]}
    />
  );
}
