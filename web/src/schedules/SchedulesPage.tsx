import { useState } from "preact/hooks";
import { get, type Schedule } from "../api/client";
import { client } from "../app/commands";
import { go, link } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { usePages } from "../live/usePages";
import { Act } from "../ui/Act";
import { Deadline } from "../ui/Deadline";
import { More } from "../ui/lists";
import { Status, toneOf } from "../ui/Status";
import { Age, Command, Empty, Problem, ZonedTime } from "../ui/texts";
import { DayScale, DayStrip, useDay } from "./DayStrip";
import { Started, When } from "./parts";
import { ScheduleDialog } from "./ScheduleDialog";
import { aimOf, standing } from "./schedule";

const REFRESH_MS = 3000;

export function SchedulesPage() {
  const { rows, isLoaded, isMore, error, more } = usePages<Schedule>(
    "schedules",
    (query, signal) => get("/schedules", { query, signal }),
    (schedule) => schedule.id,
    REFRESH_MS,
  );
  const [isNew, setNew] = useState(false);
  return (
    <>
      <header class="page-head">
        <h1>{t("schedules.title")}</h1>
        <Act icon="plus" kind="primary" onClick={() => setNew(true)}>
          {t("schedules.new")}
        </Act>
      </header>
      <p class="lead">{t("schedules.lead")}</p>
      {error && <Problem error={error} />}
      {!isLoaded && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {isLoaded && rows.length === 0 && <NoSchedules />}
      {rows.length > 0 && (
        <>
          <ScheduleTable rows={rows} />
          <More isMore={isMore} shown={rows.length} onMore={more} />
        </>
      )}
      {isNew && (
        <ScheduleDialog schedule={null} onSaved={(id) => go(["schedules", id])} onClose={() => setNew(false)} />
      )}
    </>
  );
}

function ScheduleTable({ rows }: { rows: readonly Schedule[] }) {
  const day = useDay(rows);
  return (
    <div class="table-frame">
      <table class="schedules stack">
        <thead>
          <tr>
            <th scope="col">{t("workers.column.state")}</th>
            <th scope="col">{t("schedules.column.schedule")}</th>
            <th scope="col">{t("schedules.column.when")}</th>
            <th scope="col">{t("schedules.column.next")}</th>
            <th scope="col" class="cell-day">
              <DayScale />
            </th>
            <th scope="col">{t("schedules.column.last")}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((schedule) => (
            <Row key={schedule.id} schedule={schedule} ticks={day.get(schedule.id)} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ schedule, ticks }: { schedule: Schedule; ticks: readonly number[] | undefined }) {
  const state = standing(schedule);
  const aim = aimOf(schedule);
  const last = schedule.last_tick;
  return (
    <tr class={`row tone-${toneOf(state)}`} data-schedule={schedule.id}>
      <td class="cell-status">
        <Status state={state} />
      </td>
      <td class="cell-main">
        <a class="row-link" href={link(["schedules", schedule.id])}>
          <bdi>{visible(schedule.id)}</bdi>
        </a>{" "}
        <span class="dim note">
          {t(`schedule.target.${aim.kind}`)} {visible(aim.name)}
        </span>
        {schedule.paused && schedule.paused_reason && (
          <span class="row-reason tone-warn">{visible(schedule.paused_reason)}</span>
        )}
        {!schedule.paused && schedule.description && <span class="row-reason">{visible(schedule.description)}</span>}
      </td>
      <td class="cell-when">
        <When schedule={schedule} />
      </td>
      <td class="cell-next" data-label={t("schedules.column.next")}>
        {schedule.next_due_at === null ? (
          <span class="dim">–</span>
        ) : (
          <>
            <Deadline at={schedule.next_due_at} isTime />
            <span class="row-reason">
              <ZonedTime at={schedule.next_due_at} zone={schedule.timezone} />
            </span>
          </>
        )}
      </td>
      <td class="cell-day" data-label={t("schedules.column.day")}>
        {ticks && !schedule.paused && <DayStrip ticks={ticks} />}
      </td>
      <td class="cell-last" data-label={t("schedules.column.last")}>
        {last === null ? (
          <span class="dim">{t("schedules.never")}</span>
        ) : (
          <>
            <Status state={last.status} />
            <span class="row-reason">
              <Age at={last.last_due_at ?? last.due_at} /> <Started tick={last} />
            </span>
          </>
        )}
      </td>
    </tr>
  );
}

function NoSchedules() {
  return (
    <Empty title={t("schedules.empty.title")}>
      <p>{t("schedules.empty.lead")}</p>
      <pre class="sample" tabIndex={0} aria-label="nightly.yaml">
        {'target: {flow: sample}\ncron: "30 2 * * *"\ntimezone: Asia/Tokyo'}
      </pre>
      <p>{t("schedules.empty.put")}</p>
      <Command text={client("schedules put nightly.yaml")} />
    </Empty>
  );
}
