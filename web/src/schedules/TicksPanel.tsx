import { get, type Tick } from "../api/client";
import { count, duration, visible } from "../format";
import { language, t } from "../i18n";
import { usePages } from "../live/usePages";
import { More } from "../ui/lists";
import { Status } from "../ui/Status";
import { Problem, ZonedTime } from "../ui/texts";
import { Started } from "./parts";
import { isLate, keyOf, reasonOf } from "./schedule";

/** What became of the ticks, newest first. */
export function useTicks(id: string, everyMs: number) {
  return usePages<Tick>(
    id,
    (query, signal) => get("/schedules/{schedule_id}/ticks", { path: { schedule_id: id }, query, signal }),
    keyOf,
    everyMs,
  );
}

export function TicksPanel({ ticks, zone }: { ticks: ReturnType<typeof useTicks>; zone: string }) {
  const { rows, isLoaded, isMore, error, more } = ticks;
  return (
    <section class="panel ticks" aria-label={t("ticks.title")}>
      <header class="panel-head">
        <h2>{t("ticks.title")}</h2>
        <p class="dim note">{visible(zone)}</p>
      </header>
      {error && <Problem error={error} />}
      {isLoaded && rows.length === 0 && <p class="dim pad">{t("ticks.none")}</p>}
      {rows.length > 0 && (
        <>
          <div class="table-scroll">
            <table class="stack">
              <thead>
                <tr>
                  <th scope="col">{t("runs.column.status")}</th>
                  <th scope="col">{t("ticks.column.due")}</th>
                  <th scope="col" class="num">
                    {t("ticks.column.late")}
                  </th>
                  <th scope="col">{t("ticks.column.started")}</th>
                </tr>
              </thead>
              <tbody>
                {rows.map((tick) => (
                  <Row key={keyOf(tick)} tick={tick} zone={zone} />
                ))}
              </tbody>
            </table>
          </div>
          <More isMore={isMore} shown={rows.length} onMore={more} />
        </>
      )}
    </section>
  );
}

function Row({ tick, zone }: { tick: Tick; zone: string }) {
  return (
    <tr class="row" data-tick={tick.due_at}>
      <td class="cell-status">
        <Status state={tick.status} />
        {tick.count !== undefined && (
          <span class="tag">{t("ticks.times", { n: count(tick.count, language.value) })}</span>
        )}
      </td>
      <td class="cell-due">
        <ZonedTime at={tick.due_at} zone={zone} />
        {tick.last_due_at !== undefined && (
          <>
            {" – "}
            <ZonedTime at={tick.last_due_at} zone={zone} />
          </>
        )}
        {tick.reason && <Reason text={tick.reason} />}
      </td>
      <td class="num" data-label={t("ticks.column.late")}>
        {tick.status === "STARTED" && !tick.manual ? (
          <span class={isLate(tick) ? "tone-text tone-warn" : "dim"}>{duration(tick.late_sec)}</span>
        ) : (
          <span class="dim">–</span>
        )}
      </td>
      <td>
        <Started tick={tick} /> {tick.manual && <span class="tag">{t("ticks.manual")}</span>}
      </td>
    </tr>
  );
}

function Reason({ text }: { text: string }) {
  const known = reasonOf(text);
  return <span class="row-reason">{known ? t(`ticks.reason.${known}`) : visible(text)}</span>;
}
