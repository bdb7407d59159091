import { useState } from "preact/hooks";
import type { ExecutionSummary } from "../api/client";
import { link, place, refine } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { Glyph } from "../ui/icons";
import { Count, FilterInput, More, Progress } from "../ui/lists";
import { Status, StatusIcon, toneOf } from "../ui/Status";
import { Age, Command, Empty, Problem, RunId, Took } from "../ui/texts";
import { badge } from "../waits/answer";
import { inbox } from "../waits/inbox";
import { type ExecutionFilters, filtersOf, progressOf, standing, STATUSES } from "./list";
import { StartDialog } from "./StartDialog";
import { useExecutionList } from "./useExecutionList";

export function ExecutionsPage() {
  const filters = filtersOf(place.value.query);
  const { rows, counts, isLoaded, isMore, error, more } = useExecutionList(filters);
  const [isStarting, setStarting] = useState(false);
  const isFiltered = Object.values(filters).some(Boolean);
  return (
    <>
      <header class="page-head">
        <h1>{t("executions.title")}</h1>
        <button type="button" class="button primary" onClick={() => setStarting(true)}>
          <Glyph name="plus" />
          {t("executions.new")}
        </button>
      </header>
      <StatusChips counts={counts} filters={filters} />
      <Filters filters={filters} />
      {error && <Problem error={error} />}
      {!isLoaded && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {rows.length > 0 ? <ExecutionTable rows={rows} /> : isLoaded && (isFiltered ? <NoMatch /> : <NoExecutions />)}
      {rows.length > 0 && <More isMore={isMore} shown={rows.length} onMore={more} />}
      {isStarting && <StartDialog onClose={() => setStarting(false)} />}
    </>
  );
}

function StatusChips({ counts, filters }: { counts: Record<string, number>; filters: ExecutionFilters }) {
  const isKnown = Object.keys(counts).length > 0;
  const all = Object.values(counts).reduce((sum, n) => sum + n, 0);
  const rest = { graph: filters.graph, archived: filters.archived };
  const waiting = inbox.value;
  return (
    <nav class="chips" aria-label={t("executions.byStatus")}>
      <a class="chip" href={link(["executions"], rest)} aria-current={filters.status ? undefined : "true"}>
        {t("runs.all")}
        <Count value={isKnown ? all : undefined} />
      </a>
      {waiting !== null && waiting.items.length > 0 && (
        <a class="chip tone-waiting" href={link(["waits"])}>
          <StatusIcon state="WAITING" />
          {t("executions.inbox")}
          <span class="count">{badge(waiting.items.length, waiting.cursor !== null)}</span>
        </a>
      )}
      {STATUSES.map((status) => (
        <a
          key={status}
          class={`chip tone-${toneOf(status)} ${counts[status] ? "" : "is-zero"}`}
          href={link(["executions"], { ...rest, status })}
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

function Filters({ filters }: { filters: ExecutionFilters }) {
  const change = (part: Partial<ExecutionFilters>) => refine({ ...filters, ...part });
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      <label>
        <span>{t("executions.filter.graph")}</span>
        <FilterInput value={filters.graph} hint={t("runs.filter.flow.hint")} onChange={(graph) => change({ graph })} />
      </label>
      <label class="inline">
        <input
          type="checkbox"
          checked={filters.archived === "1"}
          onChange={(event) => change({ archived: event.currentTarget.checked ? "1" : undefined })}
        />
        <span>{t("executions.filter.archived")}</span>
      </label>
      {Object.values(filters).some(Boolean) && (
        <a class="button quiet" href={link(["executions"])}>
          <Glyph name="close" />
          {t("runs.filter.clear")}
        </a>
      )}
    </form>
  );
}

function ExecutionTable({ rows }: { rows: readonly ExecutionSummary[] }) {
  return (
    <div class="table-frame">
      <table class="executions stack">
        <thead>
          <tr>
            <th scope="col">{t("runs.column.status")}</th>
            <th scope="col">{t("executions.column.graph")}</th>
            <th scope="col">{t("executions.column.nodes")}</th>
            <th scope="col" class="num">
              {t("runs.column.duration")}
            </th>
            <th scope="col">{t("executions.column.created")}</th>
            <th scope="col">{t("runs.column.updated")}</th>
            <th scope="col">{t("executions.column.id")}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <Row key={row.execution_id} row={row} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ row }: { row: ExecutionSummary }) {
  const state = standing(row, row.waits.length > 0);
  const { done, total } = progressOf(row.node_counts);
  const [wait] = row.waits;
  return (
    <tr class={`row tone-${toneOf(state)}`} data-execution={row.execution_id}>
      <td class="cell-status">
        <Status state={state} />
      </td>
      <td class="cell-main">
        <a class="row-link" href={link(["executions", row.execution_id])}>
          <bdi>{visible(row.graph_id)}</bdi>
        </a>{" "}
        <span class="dim note">v{row.graph_version}</span>
        {row.error && <span class="row-error">{visible(row.error)}</span>}
        {!row.error && wait && <span class="row-wait">{visible(wait.prompt ?? wait.node_id)}</span>}
      </td>
      <td class="cell-tasks">
        <Progress done={done} total={total} label={t("executions.nodesDone", { done, total })} />
      </td>
      <td class="num cell-took">
        <Took from={row.started_at} to={row.ended_at} />
      </td>
      <td class="cell-created" data-label={t("executions.column.created")}>
        <Age at={row.created_at} />
      </td>
      <td class="cell-age">
        <Age at={row.updated_at} />
      </td>
      <td class="cell-id dim">
        <RunId id={row.execution_id} />
      </td>
    </tr>
  );
}

function NoExecutions() {
  return (
    <Empty title={t("executions.empty.title")}>
      <p>{t("executions.empty.lead")}</p>
      <Command text={`pyoco-client graphs put monthly-close.yaml --server ${location.origin}`} />
      <p>{t("executions.empty.start")}</p>
      <Command text={`pyoco-client executions create monthly-close --server ${location.origin}`} />
    </Empty>
  );
}

function NoMatch() {
  return (
    <Empty title={t("runs.none.title")}>
      <p>{t("executions.none.lead")}</p>
      <p>
        <a class="button" href={link(["executions"])}>
          {t("runs.filter.clear")}
        </a>
      </p>
    </Empty>
  );
}
