import { useEffect, useRef } from "preact/hooks";
import type { ExecutionEvent } from "../api/client";
import { clockTime, visible } from "../format";
import { t } from "../i18n";
import { Glyph } from "../ui/icons";
import { save } from "../ui/save";
import { isKnown, type Moment, moved, nodeOf, saying, toneOfEvent } from "./travel";

const SHOWN = 2000;

/** What happened, in order. A click shows the execution as it was then; the slider and its arrow keys, too. */
export function EventLog({
  events,
  at,
  name,
  onTravel,
  onNode,
}: {
  events: readonly ExecutionEvent[];
  at: Moment;
  /** Of the file, when it is downloaded. */
  name: string;
  onTravel: (at: Moment) => void;
  onNode: (id: string) => void;
}) {
  const box = useRef<HTMLOListElement>(null);
  const last = events.at(-1)?.sequence ?? 0;
  const shown = events.slice(-SHOWN);

  useEffect(() => {
    const list = box.current;
    if (!list) return;
    const row = at === null ? list.lastElementChild : list.querySelector(`[data-sequence="${at}"]`);
    if (!(row instanceof HTMLElement)) return;
    const isAbove = row.offsetTop < list.scrollTop;
    const isBelow = row.offsetTop + row.offsetHeight > list.scrollTop + list.clientHeight;
    if (isAbove || isBelow) list.scrollTop = row.offsetTop - list.clientHeight / 2;
  }, [at, last]);

  const text = () => events.map((event) => JSON.stringify(event)).join("\n");
  return (
    <section class="panel event-log" aria-label={t("log.title")}>
      <header class="panel-head">
        <h2>{t("log.title")}</h2>
        <button
          type="button"
          class="icon-button"
          aria-label={t("log.download")}
          title={t("log.download")}
          onClick={() => save(`${name}.jsonl`, text())}
        >
          <Glyph name="download" />
        </button>
      </header>
      {last > 1 && (
        <div class="travel">
          <button
            type="button"
            class="icon-button"
            aria-label={t("travel.back")}
            title={t("travel.back")}
            disabled={at === 1}
            onClick={() => onTravel(moved(at, last, -1))}
          >
            <Glyph name="back" />
          </button>
          <input
            type="range"
            min={1}
            max={last}
            step={1}
            value={at ?? last}
            aria-label={t("travel.slider")}
            aria-valuetext={at === null ? t("travel.isNow") : t("travel.after", { n: at, total: last })}
            onInput={(event) => onTravel(moved(Number(event.currentTarget.value), last, 0))}
          />
          <button
            type="button"
            class="icon-button"
            aria-label={t("travel.forth")}
            title={t("travel.forth")}
            disabled={at === null}
            onClick={() => onTravel(moved(at, last, 1))}
          >
            <Glyph name="chevron" />
          </button>
          <button type="button" class="button quiet" disabled={at === null} onClick={() => onTravel(null)}>
            {t("travel.now")}
          </button>
        </div>
      )}
      {events.length > shown.length && <p class="dim note pad">{t("log.cut", { n: SHOWN })}</p>}
      <ol class="event-list" ref={box} tabIndex={0} aria-label={t("log.title")}>
        {shown.map((event) => (
          <Line
            key={event.sequence}
            event={event}
            at={at}
            onTravel={() => onTravel(moved(event.sequence, last, 0))}
            onNode={onNode}
          />
        ))}
      </ol>
    </section>
  );
}

function Line({
  event,
  at,
  onTravel,
  onNode,
}: {
  event: ExecutionEvent;
  at: Moment;
  onTravel: () => void;
  onNode: (id: string) => void;
}) {
  const node = nodeOf(event);
  const says = saying(event);
  const isAhead = at !== null && event.sequence > at;
  return (
    <li
      class={`event tone-${toneOfEvent(event.type)} ${isAhead ? "is-ahead" : ""} ${event.sequence === at ? "is-here" : ""}`}
      data-sequence={event.sequence}
    >
      <button
        type="button"
        class="event-moment"
        aria-current={event.sequence === at ? "step" : undefined}
        title={event.type}
        onClick={onTravel}
      >
        <span class="event-number">{event.sequence}</span>
        <span class="event-time">{clockTime(event.occurred_at)}</span>
        <span class="event-type">{isKnown(event.type) ? t(`event.${event.type}`) : visible(event.type)}</span>
      </button>
      {node !== null && (
        <button type="button" class="event-node" onClick={() => onNode(node)}>
          {visible(node)}
        </button>
      )}
      {says && <span class="event-says">{visible(says)}</span>}
      <span class="event-actor">{visible(event.actor.id ?? event.actor.kind)}</span>
    </li>
  );
}
