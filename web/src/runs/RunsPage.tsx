import { useState } from "preact/hooks";
import type { RunSummary } from "../api/client";
import { link, place, refine } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { Glyph } from "../ui/icons";
import { Count, FilterInput, More, Progress } from "../ui/lists";
import { Live } from "../ui/Live";
import { Status, StatusIcon, toneOf } from "../ui/Status";
import { Age, Command, Empty, Problem, RunId, Tags, Took } from "../ui/texts";
import { filtersOf, type RunFilters, STATUSES } from "./list";
import { SubmitDialog } from "./SubmitDialog";
import { type Counts, useRunList } from "./useRunList";

export function RunsPage() {
  const filters = filtersOf(place.value.query);
  const { list, counts, isLoaded, isLive, error, more, release } = useRunList(filters);
  const [isSubmitting, setSubmitting] = useState(false);
  const isFiltered = Object.values(filters).some(Boolean);
  return (
    <>
      <header class="page-head">
        <h1>{t("runs.title")}</h1>
        <Live isLive={isLive} />
        <button type="button" class="button primary" onClick={() => setSubmitting(true)}>
          <Glyph name="plus" />
          {t("runs.new")}
        </button>
      </header>
      <StatusChips counts={counts} filters={filters} />
      <Filters filters={filters} />
      {error && <Problem error={error} />}
      {list.held.size > 0 && (
        <button
          type="button"
          class="held"
          onClick={() => {
            release();
            window.scrollTo({ top: 0 });
          }}
        >
          <Glyph name="up" />
          {t("runs.held", { n: list.held.size })}
        </button>
      )}
      {list.rows.length > 0 ? (
        <RunTable rows={list.rows} />
      ) : (
        isLoaded && (isFiltered ? <NoMatch /> : <NoRuns />)
      )}
      {!isLoaded && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {list.rows.length > 0 && <More isMore={list.cursor !== null} shown={list.rows.length} onMore={more} />}
      {isSubmitting && <SubmitDialog onClose={() => setSubmitting(false)} />}
    </>
  );
}

function StatusChips({ counts, filters }: { counts: Counts; filters: RunFilters }) {
  const all = Object.values(counts).reduce((sum, n) => sum + n, 0);
  const isKnown = Object.keys(counts).length > 0;
  const rest = { flow: filters.flow, tag: filters.tag };
  return (
    <nav class="chips" aria-label={t("runs.byStatus")}>
      <a class="chip" href={link(["runs"], rest)} aria-current={filters.status ? undefined : "true"}>
        {t("runs.all")}
        <Count value={isKnown ? all : undefined} />
      </a>
      {STATUSES.map((status) => (
        <a
          key={status}
          class={`chip tone-${toneOf(status)} ${counts[status] ? "" : "is-zero"}`}
          href={link(["runs"], { ...rest, status })}
          aria-current={filters.status === status ? "true" : undefined}
        >
          <StatusIcon state={status} />
          {t(`state.${status}`)}
          <Count value={isKnown ? (counts[status] ?? 0) : undefined} />
        </a>
      ))}
    </nav>
  );
}

function Filters({ filters }: { filters: RunFilters }) {
  const change = (part: Partial<RunFilters>) => refine({ ...filters, ...part });
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      <label>
        <span>{t("runs.filter.flow")}</span>
        <FilterInput value={filters.flow} hint={t("runs.filter.flow.hint")} onChange={(flow) => change({ flow })} />
      </label>
      <label>
        <span>{t("runs.filter.tag")}</span>
        <FilterInput value={filters.tag} hint="" onChange={(tag) => change({ tag })} />
      </label>
      {Object.values(filters).some(Boolean) && (
        <a class="button quiet" href={link(["runs"])}>
          <Glyph name="close" />
          {t("runs.filter.clear")}
        </a>
      )}
    </form>
  );
}

function RunTable({ rows }: { rows: readonly RunSummary[] }) {
  return (
    <div class="table-frame">
      <table class="runs stack">
        <thead>
          <tr>
            <th scope="col">{t("runs.column.status")}</th>
            <th scope="col">{t("runs.column.flow")}</th>
            <th scope="col">{t("runs.column.tasks")}</th>
            <th scope="col" class="num">
              {t("runs.column.duration")}
            </th>
            <th scope="col">{t("runs.column.updated")}</th>
            <th scope="col">{t("runs.column.worker")}</th>
            <th scope="col">{t("runs.column.tags")}</th>
            <th scope="col">{t("runs.column.run")}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((run) => (
            <RunRow key={run.run_id} run={run} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function RunRow({ run }: { run: RunSummary }) {
  return (
    <tr class={`row tone-${toneOf(run.status)}`} data-run={run.run_id}>
      <td class="cell-status">
        <Status state={run.status} />
      </td>
      <td class="cell-main">
        <a class="row-link" href={link(["runs", run.run_id])}>
          <bdi>{visible(run.flow_name)}</bdi>
        </a>
        {run.error && <span class="row-error">{visible(run.error)}</span>}
      </td>
      <td class="cell-tasks">
        <Progress done={run.tasks_done} total={run.tasks_total} label={t("runs.tasksDone", { done: run.tasks_done, total: run.tasks_total })} />
      </td>
      <td class="num cell-took">
        <Took from={run.start_time} to={run.end_time} />
      </td>
      <td class="cell-age">
        <Age at={run.updated_at} />
      </td>
      <td class="cell-worker">{run.worker_id ? visible(run.worker_id) : <span class="dim">–</span>}</td>
      <td class="cell-tags">
        <Tags tags={[...new Set([run.tag, ...(run.tags ?? [])])].filter((tag) => tag !== null)} />
      </td>
      <td class="cell-id dim">
        <RunId id={run.run_id} />
      </td>
    </tr>
  );
}

function NoRuns() {
  return (
    <Empty title={t("runs.empty.title")}>
      <p>{t("runs.empty.lead")}</p>
      <Command text={`pyoco-client submit --server ${location.origin} --flow-name sample`} />
      <p>{t("runs.empty.worker")}</p>
      <Command text="pyoco-worker --flow-resolver flows.py:resolve" />
    </Empty>
  );
}

function NoMatch() {
  return (
    <Empty title={t("runs.none.title")}>
      <p>{t("runs.none.lead")}</p>
      <p>
        <a class="button" href={link(["runs"])}>
          {t("runs.filter.clear")}
        </a>
      </p>
    </Empty>
  );
}
