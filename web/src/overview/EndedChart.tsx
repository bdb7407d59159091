import { useRef, useState } from "preact/hooks";
import { go } from "../app/router";
import { shownZone } from "../app/zone";
import { clockTime, count } from "../format";
import { language, t } from "../i18n";
import { toneOf } from "../ui/Status";
import { ENDED, type Range, type Slot, type Stats, slotsOf } from "./series";

const HEIGHT = 160;
const BAR = 10;
const GAP = 2;
const TICKS = 6;
const DAY_SEC = 86_400;

/** The next round figure above the highest bar. */
export function ceiling(most: number): number {
  const unit = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  return Math.max(4, ([1, 2, 4, 6, 8, 10].find((step) => step * unit >= most) ?? 10) * unit);
}

function timeOf(at: number, { sec }: Range): string {
  if (sec <= DAY_SEC) return clockTime(at, false);
  const parts = { weekday: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" } as const;
  return new Intl.DateTimeFormat(language.value, { ...parts, timeZone: shownZone() }).format(at * 1000);
}

/** The bars that are chosen, by mouse, finger or arrow keys: the first and the last. */
type Chosen = readonly [number, number];

const ordered = ([a, b]: Chosen): Chosen => [Math.min(a, b), Math.max(a, b)];

export function EndedChart({ stats, range, from }: { stats: Stats; range: Range; from: number }) {
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const isDragging = useRef(false);
  const slots = slotsOf(stats, range, from);
  const top = ceiling(Math.max(...slots.map((one) => one.all)));
  const last = slots.length - 1;
  const [first, end] = chosen ? ordered(chosen) : [0, last];
  const shown = slots.slice(first, end + 1);

  function indexAt(event: PointerEvent): number {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const at = Math.floor(((event.clientX - box.left) / box.width) * slots.length);
    return Math.max(0, Math.min(last, at));
  }

  function open(): void {
    const query = { since: String(slots[first]!.at), until: String(slots[end]!.at + range.step) };
    go(["runs"], query);
  }

  function onKey(event: KeyboardEvent): void {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Enter" && chosen) open();
    else if (event.key === "Escape") setChosen(null);
    else if (by === undefined) return;
    else {
      const to = Math.max(0, Math.min(last, chosen ? chosen[1] + by : last));
      setChosen([event.shiftKey && chosen ? chosen[0] : to, to]);
    }
    event.preventDefault();
  }

  return (
    <figure class="panel ended">
      <figcaption>
        <h2>{t("overview.ended")}</h2>
        <span class="dim ended-range">
          {timeOf(slots[first]!.at, range)} – {timeOf(slots[end]!.at + range.step, range)}
        </span>
        <ul class="legend">
          {ENDED.map((state) => (
            <li key={state}>
              <span class={`swatch-box tone-${toneOf(state)}`} aria-hidden="true" />
              {t(`state.${state}`)} {count(sumOf(shown, state), language.value)}
            </li>
          ))}
        </ul>
      </figcaption>
      <div class="ended-area">
        <div class="ended-scale dim" aria-hidden="true">
          <span>{count(top, language.value)}</span>
          <span>{count(top / 2, language.value)}</span>
          <span>0</span>
        </div>
        <div
          class="ended-bars"
          role="group"
          tabIndex={0}
          aria-label={t("overview.ended.how")}
          title={t("overview.ended.how")}
          onKeyDown={onKey}
          onPointerDown={(event) => {
            if (event.button !== 0) return;
            isDragging.current = true;
            event.currentTarget.setPointerCapture(event.pointerId);
            const at = indexAt(event);
            setChosen([at, at]);
          }}
          onPointerMove={(event) => {
            const at = indexAt(event);
            setChosen((known) => [isDragging.current && known ? known[0] : at, at]);
          }}
          onPointerUp={() => {
            if (isDragging.current) open();
            isDragging.current = false;
          }}
          onPointerCancel={() => {
            isDragging.current = false;
            setChosen(null);
          }}
          onPointerLeave={() => {
            if (!isDragging.current) setChosen(null);
          }}
          onBlur={() => setChosen(null)}
        >
          <svg viewBox={`0 0 ${slots.length * BAR} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
            {[0, 0.5].map((part) => (
              <path key={part} class="chart-grid" d={`M0 ${HEIGHT * part}H${slots.length * BAR}`} />
            ))}
            {chosen && <rect class="ended-chosen" x={first * BAR} width={(end - first + 1) * BAR} height={HEIGHT} />}
            {slots.map((one, at) => (
              <Stack key={one.at} slot={one} at={at} top={top} />
            ))}
          </svg>
          {stats.series.length === 0 && <p class="chart-none dim">{t("overview.ended.none")}</p>}
        </div>
      </div>
      <div class="ended-times dim" aria-hidden="true">
        {Array.from({ length: TICKS + 1 }, (_, at) => (
          <span key={at}>{timeOf(from + (range.sec / TICKS) * at, range)}</span>
        ))}
      </div>
    </figure>
  );
}

function sumOf(slots: readonly Slot[], state: (typeof ENDED)[number]): number {
  return slots.reduce((sum, one) => sum + one[state], 0);
}

function Stack({ slot, at, top }: { slot: Slot; at: number; top: number }) {
  let below = 0;
  return (
    <>
      {ENDED.map((state) => {
        const height = (slot[state] / top) * HEIGHT;
        below += height;
        if (height === 0) return null;
        return (
          <rect
            key={state}
            class={`tone-${toneOf(state)}`}
            x={at * BAR + GAP / 2}
            width={BAR - GAP}
            y={HEIGHT - below}
            height={height}
          />
        );
      })}
    </>
  );
}
