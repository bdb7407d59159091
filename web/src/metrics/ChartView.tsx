import { useState } from "preact/hooks";
import { clockTime } from "../format";
import { t } from "../i18n";
import { latest, line, nearest, scaleOf, x, y } from "./chart";
import type { Point } from "./history";

export interface Series {
  name: string;
  tone: "good" | "bad" | "warn" | "busy" | "quiet";
  points: readonly Point[];
}

const WIDTH = 600;
const HEIGHT = 150;
const MIN_SPAN_SEC = 120;

export function ChartView({
  title,
  unit,
  series,
  format,
}: {
  title: string;
  unit: string;
  series: readonly Series[];
  format: (value: number) => string;
}) {
  const [pointed, setPointed] = useState<number | null>(null);
  const scale = scaleOf(
    series.map((one) => one.points),
    MIN_SPAN_SEC,
  );
  const hasValues = series.some((one) => one.points.some((point) => point.value !== null));
  const shownValue = (one: Series) =>
    pointed === null ? latest(one.points) : (nearest(one.points, pointed)?.value ?? null);

  return (
    <figure class="chart panel">
      <figcaption>
        <h2>{title}</h2>
        <span class="dim">{unit}</span>
        <ul class="legend">
          {series.map((one) => {
            const value = shownValue(one);
            return (
              <li key={one.name}>
                <span class={`swatch tone-${one.tone}`} aria-hidden="true" />
                {t("metrics.latest", { name: one.name, value: value === null ? "–" : format(value) })}
              </li>
            );
          })}
        </ul>
      </figcaption>
      <div class="chart-area">
        <div class="chart-scale" aria-hidden="true">
          <span>{hasValues ? format(scale.top) : ""}</span>
          <span>{hasValues ? format(scale.top / 2) : ""}</span>
          <span>{hasValues ? format(0) : ""}</span>
        </div>
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          aria-hidden="true"
          onPointerMove={(event) => {
            const box = event.currentTarget.getBoundingClientRect();
            const fraction = (event.clientX - box.left) / box.width;
            setPointed(scale.from + fraction * (scale.to - scale.from));
          }}
          onPointerLeave={() => setPointed(null)}
        >
          {(hasValues ? [0, 0.5, 1] : [1]).map((part) => (
            <path key={part} class="chart-grid" d={`M0 ${HEIGHT * part}H${WIDTH}`} />
          ))}
          {series.map((one) => (
            <path key={one.name} class={`chart-line tone-${one.tone}`} d={line(one.points, scale, WIDTH, HEIGHT)} />
          ))}
          {pointed !== null && <path class="chart-cursor" d={`M${x(pointed, scale, WIDTH)} 0V${HEIGHT}`} />}
          {pointed !== null &&
            series.map((one) => {
              const point = nearest(one.points, pointed);
              if (point?.value == null) return null;
              const at = [x(point.at, scale, WIDTH), y(point.value, scale, HEIGHT)] as const;
              return <path key={one.name} class={`chart-dot tone-${one.tone}`} d={`M${at[0]} ${at[1]}h0`} />;
            })}
        </svg>
        {!hasValues && <p class="chart-none dim">{t("metrics.none")}</p>}
      </div>
      <div class="chart-times dim" aria-hidden="true">
        <span>{clockTime(scale.from)}</span>
        {pointed !== null && <span>{clockTime(pointed)}</span>}
        <span>{clockTime(scale.to)}</span>
      </div>
    </figure>
  );
}
