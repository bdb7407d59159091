import { type Flow, get } from "../api/client";
import { worker } from "../app/commands";
import { link } from "../app/router";
import { duration, visible } from "../format";
import { t } from "../i18n";
import { usePages } from "../live/usePages";
import { Glyph } from "../ui/icons";
import { More } from "../ui/lists";
import { PauseFacts } from "../ui/Pausing";
import { Status, StatusIcon } from "../ui/Status";
import { Command, Empty, Problem, Tags } from "../ui/texts";
import { Rate } from "./parts";

const REFRESH_MS = 3000;

export function FlowsPage() {
  const { rows, isLoaded, isMore, error, more } = usePages<Flow>(
    "flows",
    (query, signal) => get("/flows", { query: { ...query, stale: "ok" }, signal }),
    (flow) => flow.name,
    REFRESH_MS,
  );
  return (
    <>
      <header class="page-head">
        <h1>{t("flows.title")}</h1>
      </header>
      <p class="lead">{t("flows.lead")}</p>
      {error && <Problem error={error} />}
      {!isLoaded && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {isLoaded && rows.length === 0 && (
        <Empty title={t("flows.empty.title")}>
          <p>{t("flows.empty.lead")}</p>
          <Command text={worker()} />
        </Empty>
      )}
      {rows.length > 0 && (
        <>
          <FlowTable rows={rows} />
          <More isMore={isMore} shown={rows.length} onMore={more} />
        </>
      )}
    </>
  );
}

function FlowTable({ rows }: { rows: readonly Flow[] }) {
  return (
    <div class="table-frame">
      <table class="flows stack">
        <thead>
          <tr>
            <th scope="col">{t("runs.column.flow")}</th>
            <th scope="col">{t("flows.column.last")}</th>
            <th scope="col" class="num">
              {t("flows.column.success")}
            </th>
            <th scope="col" class="num">
              p50
            </th>
            <th scope="col" class="num">
              p95
            </th>
            <th scope="col">{t("runs.column.tags")}</th>
            <th scope="col">{t("flows.column.workers")}</th>
            <th scope="col">{t("flows.column.wheel")}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((flow) => (
            <Row key={flow.name} flow={flow} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ flow }: { flow: Flow }) {
  return (
    <tr class={`row ${flow.paused ? "tone-warn" : ""}`} data-flow={flow.name}>
      <td class="cell-main">
        <a class="row-link" href={link(["flows", flow.name])}>
          <bdi>{visible(flow.name)}</bdi>
        </a>{" "}
        {flow.paused && <Status state="PAUSED" />}
        {flow.paused && (
          <span class="row-reason tone-warn">
            <PauseFacts pause={flow.paused} />
          </span>
        )}
        <Ties flow={flow} />
      </td>
      <td class="cell-runs" data-label={t("flows.column.last")}>
        <LastRuns flow={flow} />
      </td>
      <td class="num" data-label={t("flows.column.success")}>
        <Rate rate={flow.success_rate} />
      </td>
      <td class="num" data-label="p50">
        {flow.p50_sec === null ? <span class="dim">–</span> : duration(flow.p50_sec)}
      </td>
      <td class="num" data-label="p95">
        {flow.p95_sec === null ? <span class="dim">–</span> : duration(flow.p95_sec)}
      </td>
      <td data-label={t("runs.column.tags")}>
        <Tags tags={flow.tags} />
      </td>
      <td data-label={t("flows.column.workers")} title={flow.workers.join("\n")}>
        {flow.workers.length === 0 ? <span class="dim">{t("flows.unreported")}</span> : flow.workers.length}
      </td>
      <td data-label={t("flows.column.wheel")}>
        {flow.wheel_version === null ? <span class="dim">–</span> : visible(flow.wheel_version)}
      </td>
    </tr>
  );
}

/** Schedules that start it, and limits that concern it. */
function Ties({ flow }: { flow: Flow }) {
  if (flow.schedules.length + flow.limits.length === 0) return null;
  return (
    <span class="row-reason ties">
      {flow.schedules.map((id) => (
        <a key={id} href={link(["schedules", id])}>
          <Glyph name="clock" size={12} />
          <span class="sr-only">{t("run.fact.schedule")}</span> {visible(id)}
        </a>
      ))}
      {flow.limits.map((name) => (
        <a key={name} href={link(["limits", name])}>
          <Glyph name="limit" size={12} />
          <span class="sr-only">{t("flows.limit")}</span> {visible(name)}
        </a>
      ))}
    </span>
  );
}

/** Oldest first, as one reads. */
function LastRuns({ flow }: { flow: Flow }) {
  if (flow.last_runs.length === 0) return <span class="dim">{t("flows.never")}</span>;
  return (
    <span class="last-strip">
      {[...flow.last_runs].reverse().map((run) => (
        <a key={run.run_id} href={link(["runs", run.run_id])} title={t(`state.${run.status}`)}>
          <StatusIcon state={run.status} />
          <span class="sr-only">{t(`state.${run.status}`)}</span>
        </a>
      ))}
    </span>
  );
}
