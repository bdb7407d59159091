import { useState } from "preact/hooks";
import { type Delivery, type EventSummary, get, post } from "../api/client";
import { now } from "../app/clock";
import { link, place, refine } from "../app/router";
import { count, visible } from "../format";
import { language, t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Glyph } from "../ui/icons";
import { Count } from "../ui/lists";
import { Status, StatusIcon, toneOf } from "../ui/Status";
import { Age, Command, Empty, Problem, RunId } from "../ui/texts";
import { toast } from "../ui/toasts";
import { bars, columns, isMonth, monthOf, monthsFrom, monthsUpTo, STATUSES } from "./months";

const REFRESH_MS = 3000;
const HISTORY_MS = 30_000;
const MONTHS = 6;
const RECENT = 200;

export function DeliveriesPart() {
  const current = monthOf(now.value);
  const month = isMonth(place.value.query.ym) ? place.value.query.ym : current;
  const status = STATUSES.find((one) => one === place.value.query.status);
  const summary = usePolling(
    async (signal) => get("/api/workflow-events/summary", { query: { ym: month, recent_limit: RECENT }, signal }),
    REFRESH_MS,
    month,
  );
  const found = summary.value?.ym === month ? summary.value : null;
  const shown = found?.recent.filter((one) => !status || one.status === status) ?? [];
  const to = (query: { ym?: string; status?: string | undefined }) =>
    link(["events", "deliveries"], { ym: month === current ? undefined : month, status, ...query });
  return (
    <>
      <MonthChart current={current} month={month} live={found} />
      <nav class="month" aria-label={t("events.month")}>
        <a class="icon-button" href={to({ ym: monthsFrom(month, -1) })} aria-label={t("events.month.before")}>
          <Glyph name="back" />
        </a>
        <strong>{month}</strong>
        <a
          class="icon-button"
          href={to({ ym: monthsFrom(month, 1) })}
          aria-label={t("events.month.after")}
          aria-disabled={month >= current}
        >
          <Glyph name="chevron" />
        </a>
        {found && <span class="dim">{t("events.total", { n: count(found.total, language.value) })}</span>}
      </nav>
      {summary.error && <Problem error={summary.error} />}
      <nav class="chips" aria-label={t("events.byStatus")}>
        <a class="chip" href={to({ status: undefined })} aria-current={status ? undefined : "true"}>
          {t("runs.all")}
          <Count value={found?.total} />
        </a>
        {STATUSES.map((one) => (
          <a
            key={one}
            class={`chip tone-${toneOf(one)} ${found?.by_status[one] ? "" : "is-zero"}`}
            href={to({ status: one })}
            aria-current={status === one ? "true" : undefined}
          >
            <StatusIcon state={one} />
            {t(`state.${one}`)}
            <Count value={found ? (found.by_status[one] ?? 0) : undefined} />
          </a>
        ))}
      </nav>
      {found && <Breakdown summary={found} />}
      {!found && !summary.error && <p class="dim loading">{t("runs.loading")}</p>}
      {found && found.total === 0 && (
        <Empty title={t("events.empty.title")}>
          <p>{t("events.empty.lead")}</p>
          <Command
            text={`curl ${location.origin}/api/workflow-events -H 'Content-Type: application/json' -d '{"event_name": "invoice.received"}'`}
          />
        </Empty>
      )}
      {found && found.total > 0 && shown.length === 0 && (
        <Empty title={t("runs.none.title")}>
          <p>
            <button type="button" class="button" onClick={() => refine({ ym: place.value.query.ym })}>
              {t("runs.filter.clear")}
            </button>
          </p>
        </Empty>
      )}
      {shown.length > 0 && <DeliveryTable rows={shown} onChanged={summary.refresh} />}
      {found && found.total > RECENT && <p class="dim list-end">{t("events.cut", { n: RECENT })}</p>}
    </>
  );
}

/** The last months side by side; the selected one is live. */
function MonthChart({ current, month, live }: { current: string; month: string; live: EventSummary | null }) {
  const months = monthsUpTo(current, MONTHS);
  const history = usePolling(
    (signal) =>
      Promise.all(months.map((ym) => get("/api/workflow-events/summary", { query: { ym, recent_limit: 1 }, signal }))),
    HISTORY_MS,
    current,
  );
  if (!history.value) return null;
  const drawn = columns(history.value.map((summary) => (summary.ym === live?.ym ? live : summary)));
  return (
    <figure class="panel months">
      <figcaption>
        <h2>{t("events.months")}</h2>
        <ul class="legend" aria-hidden="true">
          {STATUSES.map((status) => (
            <li key={status} class={`tone-${toneOf(status)}`}>
              <span class="swatch-box" />
              {t(`state.${status}`)}
            </li>
          ))}
        </ul>
      </figcaption>
      <ol>
        {drawn.map((column) => (
          <li key={column.month}>
            <a
              href={link(["events", "deliveries"], { ym: column.month === current ? undefined : column.month })}
              aria-current={column.month === month ? "true" : undefined}
            >
              <svg viewBox="0 0 10 100" preserveAspectRatio="none" aria-hidden="true">
                {column.parts.map((part) => (
                  <rect
                    key={part.status}
                    class={`tone-${toneOf(part.status)}`}
                    x="0"
                    width="10"
                    y={100 - (part.from + part.height) * 100}
                    height={part.height * 100}
                  />
                ))}
              </svg>
              <span class="month-total">{count(column.total, language.value)}</span>
              <span class="month-name">{column.month}</span>
            </a>
          </li>
        ))}
      </ol>
    </figure>
  );
}

function Breakdown({ summary }: { summary: EventSummary }) {
  const parts = [
    { title: t("events.reasons"), counts: summary.by_reason_code, word: visible },
    {
      title: t("events.advice"),
      counts: summary.by_retry_advice,
      word: (name: string) => t(`advice.${adviceOf(name)}`),
    },
  ].filter((part) => Object.keys(part.counts).length > 0);
  if (parts.length === 0) return null;
  return (
    <div class="charts breakdown">
      {parts.map((part) => (
        <section key={part.title} class="panel chart" aria-label={part.title}>
          <h2>{part.title}</h2>
          <ul class="bars">
            {bars(part.counts).map((bar) => (
              <li key={bar.name}>
                <span class="bar-name">{part.word(bar.name)}</span>
                <progress value={bar.share} max={1} aria-label={part.word(bar.name)} />
                <span class="num">{count(bar.count, language.value)}</span>
              </li>
            ))}
          </ul>
        </section>
      ))}
    </div>
  );
}

function DeliveryTable({ rows, onChanged }: { rows: readonly Delivery[]; onChanged: () => Promise<void> }) {
  const [replayed, setReplayed] = useState<Delivery | null>(null);

  async function replay(row: Delivery): Promise<void> {
    await post("/api/workflow-events/{event_id}/replay", { path: { event_id: row.event_id } });
    toast(t("events.replayed"));
    await onChanged();
  }

  return (
    <div class="table-frame">
      <table class="deliveries stack">
        <thead>
          <tr>
            <th scope="col">{t("runs.column.status")}</th>
            <th scope="col">{t("events.column.event")}</th>
            <th scope="col">{t("events.column.template")}</th>
            <th scope="col">{t("wheels.history.when")}</th>
            <th scope="col">{t("events.column.key")}</th>
            <th scope="col">{t("run.fact.id")}</th>
            <th scope="col">
              <span class="sr-only">{t("events.replay")}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <DeliveryRow key={row.event_id} row={row} onReplay={() => setReplayed(row)} />
          ))}
        </tbody>
      </table>
      {replayed && (
        <ConfirmDialog
          title={t("events.replay.title")}
          lead={t("events.replay.lead", {
            name: visible(replayed.template_name ?? replayed.event_name ?? replayed.event_id),
          })}
          verb={t("events.replay")}
          isHarmless
          onConfirm={() => replay(replayed)}
          onClose={() => setReplayed(null)}
        />
      )}
    </div>
  );
}

function DeliveryRow({ row, onReplay }: { row: Delivery; onReplay: () => void }) {
  const state = STATUSES.find((one) => one === row.status) ?? "unknown";
  return (
    <tr class={`row tone-${toneOf(state)}`} data-event={row.event_id}>
      <td class="cell-status">
        <Status state={state} />
      </td>
      <td class="cell-main">
        <span class="strong">{visible(row.event_name ?? row.action ?? "–")}</span>{" "}
        {row.source && <span class="dim note">{visible(row.source)}</span>}
        {row.reason && (
          <span class="row-reason">
            {visible(row.reason)}{" "}
            {row.retry_advice && <span class="tag">{t(`advice.${adviceOf(row.retry_advice)}`)}</span>}
          </span>
        )}
        {row.duplicate && <span class="row-reason">{t("events.duplicate")}</span>}
      </td>
      <td class="cell-template" data-label={t("events.column.template")}>
        {visible(row.template_name ?? row.template_id ?? "–")}
      </td>
      <td>
        <Age at={Date.parse(row.at) / 1000} />
      </td>
      <td data-label={t("events.column.key")} class="dim cell-key">
        {row.idempotency_key ? <span class="mono">{visible(row.idempotency_key)}</span> : "–"}
      </td>
      <td>
        {row.run_id ? (
          <a href={link(["runs", row.run_id])}>
            <RunId id={row.run_id} />
          </a>
        ) : (
          <span class="dim">–</span>
        )}
      </td>
      <td class="cell-actions">
        <button
          type="button"
          class="icon-button"
          title={t("events.replay")}
          aria-label={t("events.replay.label", { id: row.event_id })}
          onClick={onReplay}
        >
          <Glyph name="again" />
        </button>
      </td>
    </tr>
  );
}

const ADVICE = ["retry_after_fix", "retry_with_backoff", "do_not_retry"] as const;

function adviceOf(text: string): (typeof ADVICE)[number] | "other" {
  return ADVICE.find((one) => one === text) ?? "other";
}
