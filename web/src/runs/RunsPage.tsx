import { useState } from "preact/hooks";
import type { RunSummary } from "../api/client";
import { now } from "../app/clock";
import { client, worker } from "../app/commands";
import { link, place } from "../app/router";
import { useComputed } from "../app/signals";
import { duration, shortId, visible } from "../format";
import { t } from "../i18n";
import { Chunks } from "../ui/Chunks";
import { Deadline } from "../ui/Deadline";
import { Glyph } from "../ui/icons";
import { ListPage, StatusChips } from "../ui/ListPage";
import { Advance, Progress } from "../ui/lists";
import { Status, toneOf } from "../ui/Status";
import { Age, Command, Empty, RunId, Tags, Took } from "../ui/texts";
import { isMore, LIVE_ROWS } from "./list";
import { QueryBar } from "./QueryBar";
import { filtersOf, type RunFilters, resolved, STATUSES } from "./query";
import { SelectionBar } from "./SelectionBar";
import { SubmitDialog } from "./SubmitDialog";
import { idsOf, type Selecting, useSelection } from "./selection";
import { startsAt } from "./tries";
import { useNames } from "./useNames";
import { useRunList } from "./useRunList";

/** Within a filter the server counts up to this many. */
const COUNTED = 10_000;

export function RunsPage() {
  const asked = filtersOf(place.value.query);
  const at = useComputed(() => JSON.stringify(resolved(filtersOf(place.value.query), now.value)));
  const filters: RunFilters = JSON.parse(at.value);
  const { names, p50 } = useNames();
  const { list, counts, isLoaded, error, more, release } = useRunList(filters);
  const [isSubmitting, setSubmitting] = useState(false);
  const { status: _, ...rest } = asked;
  const isFiltered = Object.values(filters).some(Boolean);
  const selection = useSelection(JSON.stringify(asked));
  return (
    <>
      <ListPage
        section="runs"
        onNew={() => setSubmitting(true)}
        head={
          <>
            <StatusChips
              section="runs"
              statuses={STATUSES}
              counts={asked.q ? null : counts}
              {...(Object.values(rest).some(Boolean) ? { most: COUNTED } : {})}
              status={asked.status}
              rest={rest}
            />
            <QueryBar filters={asked} names={names} />
            {selection.size > 0 && (
              <SelectionBar
                selection={selection}
                filters={filters}
                rows={list.rows}
                isMore={isMore(list)}
                counts={counts}
              />
            )}
            {list.held.size > 0 && <Held n={list.held.size} onRelease={release} />}
          </>
        }
        paged={{ shown: list.rows.length, isMore: isMore(list), isLoaded, error, more }}
        isFiltered={isFiltered}
        none={<NoRuns />}
      >
        <RunTable rows={list.rows} selection={selection} p50={p50} />
      </ListPage>
      {isSubmitting && <SubmitDialog onClose={() => setSubmitting(false)} />}
    </>
  );
}

/** What came while somebody was reading further down. */
function Held({ n, onRelease }: { n: number; onRelease: () => void }) {
  return (
    <button
      type="button"
      class="held"
      onClick={() => {
        onRelease();
        window.scrollTo({ top: 0 });
      }}
    >
      <Glyph name="up" />
      {t("runs.held", { n: n < LIVE_ROWS ? n : `${LIVE_ROWS}+` })}
    </button>
  );
}

const COLUMNS = 9;

export function RunTable({
  rows,
  selection,
  p50,
}: {
  rows: readonly RunSummary[];
  selection?: Selecting;
  /** How long runs of a flow usually take, in seconds. */
  p50?: ReadonlyMap<string, number>;
}) {
  return (
    <div class="table-frame">
      <table class="runs stack">
        <thead>
          <tr>
            {selection && (
              <th scope="col" class="cell-select">
                <input
                  type="checkbox"
                  aria-label={t("bulk.select.shown")}
                  checked={rows.every((run) => selection.has(run.run_id))}
                  onChange={(event) => selection.toggle(idsOf(rows), event.currentTarget.checked)}
                />
              </th>
            )}
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
        <Chunks rows={rows} columns={COLUMNS}>
          {(run) => (
            <RunRow key={run.run_id} run={run} usual={p50?.get(run.flow_name)} {...(selection ? { selection } : {})} />
          )}
        </Chunks>
      </table>
    </div>
  );
}

function RunRow({ run, usual, selection }: { run: RunSummary; usual: number | undefined; selection?: Selecting }) {
  return (
    <tr class={`row tone-${toneOf(run.status)}`} data-run={run.run_id}>
      {selection && (
        <td class="cell-select">
          <input
            type="checkbox"
            aria-label={t("bulk.select.run", { flow: visible(run.flow_name), id: shortId(run.run_id) })}
            checked={selection.has(run.run_id)}
            onChange={(event) => selection.toggle([run.run_id], event.currentTarget.checked)}
          />
        </td>
      )}
      <td class="cell-status">
        <Status state={run.status} />
      </td>
      <td class="cell-main">
        <a class="row-link" href={link(["runs", run.run_id])}>
          <bdi>{visible(run.flow_name)}</bdi>
        </a>
        {run.schedule_id !== null && (
          <a class="row-from" href={link(["schedules", run.schedule_id])}>
            <Glyph name="clock" size={12} />
            <span class="sr-only">{t("run.fact.schedule")}</span> {visible(run.schedule_id)}
          </a>
        )}
        {run.error && <span class="row-error">{visible(run.error)}</span>}
        <Starts run={run} />
        {run.progress && (
          <span class="row-reason progress">
            <Advance progress={run.progress} />
          </span>
        )}
      </td>
      <td class="cell-tasks">
        <Progress
          done={run.tasks_done}
          total={run.tasks_total}
          label={t("runs.tasksDone", { done: run.tasks_done, total: run.tasks_total })}
        />
      </td>
      <td class="num cell-took">
        {usual && run.start_time !== null && <Pace from={run.start_time} to={run.end_time} usual={usual} />}
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

const SLOW = 2;

/** That it takes much longer than the other runs of its flow. */
function Pace({ from, to, usual }: { from: number; to: number | null; usual: number }) {
  const times = ((to ?? now.value) - from) / usual;
  if (times < SLOW) return null;
  return (
    <span class="tone-text tone-warn pace" title={t("runs.pace", { time: duration(usual) })}>
      ×{times < 9.95 ? times.toFixed(1) : Math.round(times)}
    </span>
  );
}

/** A part of its own: only rows that wait for their time are drawn again with the clock. */
function Starts({ run }: { run: RunSummary }) {
  if (run.status !== "PENDING" || run.not_before === null) return null;
  const at = startsAt(run, now.value);
  if (at === null) return null;
  return (
    <span class="row-reason">
      {t("run.starts")} <Deadline at={at} isTime />
    </span>
  );
}

function NoRuns() {
  return (
    <Empty title={t("runs.empty.title")}>
      <p>{t("runs.empty.lead")}</p>
      <Command text={client("submit --flow-name sample")} />
      <p>{t("runs.empty.worker")}</p>
      <Command text={worker()} />
      <p class="dim">{t("command.nats")}</p>
    </Empty>
  );
}
