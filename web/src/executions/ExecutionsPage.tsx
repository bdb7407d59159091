import { useState } from "preact/hooks";
import type { ExecutionSummary } from "../api/client";
import { client } from "../app/commands";
import { link, place, refine } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { FilterForm, ListPage, StatusChips } from "../ui/ListPage";
import { FilterInput, Progress } from "../ui/lists";
import { Status, StatusIcon, toneOf } from "../ui/Status";
import { Age, Command, Empty, RunId, Took } from "../ui/texts";
import { type ExecutionFilters, filtersOf, progressOf, STATUSES, standing } from "./list";
import { StartDialog } from "./StartDialog";
import { useExecutionList } from "./useExecutionList";
import { badge } from "./waits/answer";
import { inbox } from "./waits/inbox";

export function ExecutionsPage() {
  const filters = filtersOf(place.value.query);
  const { rows, counts, isLoaded, isMore, error, more } = useExecutionList(filters);
  const [isStarting, setStarting] = useState(false);
  const isFiltered = Object.values(filters).some(Boolean);
  return (
    <>
      <ListPage
        section="executions"
        onNew={() => setStarting(true)}
        head={
          <>
            <StatusChips
              section="executions"
              statuses={STATUSES}
              counts={counts}
              status={filters.status}
              rest={{ graph: filters.graph, archived: filters.archived }}
            >
              <InboxChip />
            </StatusChips>
            <Filters filters={filters} isFiltered={isFiltered} />
          </>
        }
        paged={{ shown: rows.length, isMore, isLoaded, error, more }}
        isFiltered={isFiltered}
        none={<NoExecutions />}
      >
        <ExecutionTable rows={rows} />
      </ListPage>
      {isStarting && <StartDialog onClose={() => setStarting(false)} />}
    </>
  );
}

function InboxChip() {
  const waiting = inbox.value;
  if (waiting === null || waiting.items.length === 0) return null;
  return (
    <a class="chip tone-waiting" href={link(["waits"])}>
      <StatusIcon state="WAITING" />
      {t("executions.inbox")}
      <span class="count">{badge(waiting.items.length, waiting.cursor !== null)}</span>
    </a>
  );
}

function Filters({ filters, isFiltered }: { filters: ExecutionFilters; isFiltered: boolean }) {
  const change = (part: Partial<ExecutionFilters>) => refine({ ...filters, ...part });
  return (
    <FilterForm section="executions" isFiltered={isFiltered}>
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
    </FilterForm>
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
      <Command text={client("graphs put monthly-close.yaml")} />
      <p>{t("executions.empty.start")}</p>
      <Command text={client("executions create monthly-close")} />
    </Empty>
  );
}
