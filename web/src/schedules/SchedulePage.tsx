import { useState } from "preact/hooks";
import { ApiError, del, get, post, type Schedule } from "../api/client";
import { go, link } from "../app/router";
import { useTitle } from "../app/title";
import { tickLabel, visible } from "../format";
import { language, t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { Act } from "../ui/Act";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Fact } from "../ui/DataTable";
import { Deadline } from "../ui/Deadline";
import { JsonValue } from "../ui/JsonValue";
import { Status } from "../ui/Status";
import { Age, Empty, Plain, Problem, ZonedTime } from "../ui/texts";
import { toast } from "../ui/toasts";
import { When } from "./parts";
import { ScheduleDialog } from "./ScheduleDialog";
import { aimOf, definitionOf, standing } from "./schedule";
import { TicksPanel, useTicks } from "./TicksPanel";
import { interval } from "./when";

const REFRESH_MS = 3000;
const PREVIEWED = 5;

export function SchedulePage({ id }: { id: string }) {
  useTitle(id);
  const path = { schedule_id: id };
  const { value, error, refresh } = usePolling(
    (signal) =>
      Promise.all([
        get("/schedules/{schedule_id}", { path, signal }),
        get("/schedules/{schedule_id}/preview", { path, query: { n: PREVIEWED }, signal }),
      ]),
    REFRESH_MS,
    id,
  );
  const ticks = useTicks(id, REFRESH_MS);

  if (error instanceof ApiError && error.status === 404) {
    return (
      <Empty title={t("schedule.notFound")}>
        <p>
          <a class="button" href={link(["schedules"])}>
            {t("schedule.toList")}
          </a>
        </p>
      </Empty>
    );
  }
  if (!value) return error ? <Problem error={error} /> : <p class="dim loading">{t("runs.loading")}</p>;

  const [schedule, preview] = value;
  return (
    <>
      <Head schedule={schedule} onChanged={() => Promise.all([refresh(), ticks.refresh()])} />
      {error && <Problem error={error} />}
      {schedule.description && <p class="lead">{visible(schedule.description)}</p>}
      <Paused schedule={schedule} />
      <Facts schedule={schedule} />
      <div class="columns schedule">
        <TicksPanel ticks={ticks} zone={schedule.timezone} />
        <div class="values">
          <NextTicks times={preview.items.map((tick) => tick.due_at)} schedule={schedule} />
          <section class="panel" aria-label={t("graph.definition")}>
            <header class="panel-head">
              <h2>{t("graph.definition")}</h2>
            </header>
            <JsonValue value={definitionOf(schedule)} label={t("graph.definition")} />
          </section>
        </div>
      </div>
    </>
  );
}

type Verb = "trigger" | "pause" | "resume";

function Head({ schedule, onChanged }: { schedule: Schedule; onChanged: () => Promise<unknown> }) {
  const [asked, setAsked] = useState<Verb | null>(null);
  const [opened, setOpened] = useState<"edit" | "delete" | null>(null);
  const close = () => setOpened(null);

  async function remove(): Promise<void> {
    await del("/schedules/{schedule_id}", { path: { schedule_id: schedule.id } });
    toast(t("named.deleted"));
    go(["schedules"]);
  }

  async function act(verb: Verb, reason: string): Promise<void> {
    const body = verb === "pause" && reason ? { body: { reason } } : {};
    await post(`/schedules/{schedule_id}/${verb}`, { path: { schedule_id: schedule.id }, ...body });
    toast(t(`schedule.${verb}.done`));
    await onChanged();
  }

  const change = schedule.paused ? "resume" : "pause";
  return (
    <>
      <header class="page-head">
        <h1>
          <Plain text={schedule.id} />
        </h1>
        <Status state={standing(schedule)} />
        <div class="actions">
          <Act icon={schedule.paused ? "clock" : "pause"} onClick={() => setAsked(change)}>
            {t(`schedule.${change}.do`)}
          </Act>
          <Act icon="play" onClick={() => setAsked("trigger")}>
            {t("schedule.trigger.do")}
          </Act>
          <Act icon="edit" onClick={() => setOpened("edit")}>
            {t("limit.edit")}
          </Act>
          <Act icon="trash" kind="danger" onClick={() => setOpened("delete")}>
            {t("wheels.delete.do")}
          </Act>
        </div>
      </header>
      {asked && (
        <ConfirmDialog
          title={t(`schedule.${asked}.title`)}
          lead={t(`schedule.${asked}.lead`, { target: visible(aimOf(schedule).name) })}
          {...(asked === "pause" ? { reason: t("schedule.pause.reason") } : {})}
          verb={t(`schedule.${asked}.do`)}
          isHarmless
          onConfirm={(reason) => act(asked, reason)}
          onClose={() => setAsked(null)}
        />
      )}
      {opened === "edit" && <ScheduleDialog schedule={schedule} onSaved={onChanged} onClose={close} />}
      {opened === "delete" && (
        <ConfirmDialog
          title={t("named.delete.title", { name: visible(schedule.id) })}
          lead={t("schedule.delete.lead")}
          verb={t("wheels.delete.do")}
          onConfirm={remove}
          onClose={close}
        />
      )}
    </>
  );
}

function Paused({ schedule }: { schedule: Schedule }) {
  if (!schedule.paused) return null;
  return (
    <div class="notice tone-warn">
      <p>{t("schedule.isPaused")}</p>
      {schedule.paused_reason && <p>{t("run.cancel.because", { reason: visible(schedule.paused_reason) })}</p>}
    </div>
  );
}

function Facts({ schedule }: { schedule: Schedule }) {
  const { timezone: zone, pause_after_failures: limit } = schedule;
  return (
    <dl class="facts" aria-label={t("run.facts")}>
      <Fact name={t("schedules.column.next")} class="strong">
        {schedule.next_due_at === null ? <span class="dim">–</span> : <Deadline at={schedule.next_due_at} isTime />}
      </Fact>
      <Fact name={t("schedules.column.when")} class="fact-when">
        <When schedule={schedule} />
      </Fact>
      <Fact name={t("schedule.target")}>
        <Target schedule={schedule} />
      </Fact>
      {schedule.starts_at !== null && (
        <Fact name={t("schedule.from")}>
          <ZonedTime at={schedule.starts_at} zone={zone} />
        </Fact>
      )}
      {schedule.ends_at !== null && (
        <Fact name={t("schedule.until")}>
          <ZonedTime at={schedule.ends_at} zone={zone} />
        </Fact>
      )}
      <Fact name={t("schedule.overlap")}>
        {t(`schedule.overlap.${schedule.overlap}`)}
        {schedule.waiting > 0 && <span class="tag">{t("schedule.waiting", { n: schedule.waiting })}</span>}
      </Fact>
      <Fact name={t("schedule.catchUp")}>
        {t(`schedule.catchUp.${schedule.catch_up}`, {
          window: interval(schedule.catch_up_window_sec, language.value),
        })}
      </Fact>
      {schedule.jitter_sec > 0 && <Fact name={t("schedule.jitter")}>{tickLabel(schedule.jitter_sec)}</Fact>}
      {limit !== null && (
        <Fact name={t("schedule.failures")}>{t("schedule.failures.of", { n: schedule.failures, limit })}</Fact>
      )}
      <Fact name={t("schedule.changed")}>
        <Age at={schedule.updated_at} />
      </Fact>
    </dl>
  );
}

function Target({ schedule }: { schedule: Schedule }) {
  const { kind, name } = aimOf(schedule);
  const places = {
    flow: link(["flows", name]),
    graph: link(["graphs", name]),
    template: link(["events", "templates"]),
  };
  return (
    <>
      <span class="dim">{t(`schedule.target.${kind}`)}</span> <a href={places[kind]}>{visible(name)}</a>
    </>
  );
}

function NextTicks({ times, schedule }: { times: readonly number[]; schedule: Schedule }) {
  return (
    <section class="panel" aria-label={t("schedule.preview")}>
      <header class="panel-head">
        <h2>{t("schedule.preview")}</h2>
        <p class="dim note">{visible(schedule.timezone)}</p>
      </header>
      {times.length === 0 && <p class="dim pad">{t("schedule.preview.none")}</p>}
      {schedule.paused && times.length > 0 && <p class="dim next-note">{t("schedule.preview.paused")}</p>}
      <ol class={`next-ticks ${schedule.paused ? "is-off" : ""}`}>
        {times.map((at) => (
          <li key={at}>
            <ZonedTime at={at} zone={schedule.timezone} />
            <span class="dim">
              <Deadline at={at} isTime />
            </span>
          </li>
        ))}
      </ol>
    </section>
  );
}
