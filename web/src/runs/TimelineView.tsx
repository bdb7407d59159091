import type { Run } from "../api/client";
import { now } from "../app/clock";
import { duration, tickLabel, visible } from "../format";
import { t } from "../i18n";
import { StatusIcon, toneOf } from "../ui/Status";
import { type Bar, timeline } from "./timeline";

/** It has half of the page. */
const TICKS = 4;

const percent = (fraction: number) => `${(fraction * 100).toFixed(3)}%`;

export function TimelineView({
  run,
  shown,
  selected,
  onSelect,
}: {
  run: Run;
  /** The tasks that a filter leaves. */
  shown: ReadonlySet<string>;
  selected: string | null;
  onSelect: (task: string) => void;
}) {
  // Between two tries nothing goes on: what is shown ended with the last one.
  const pausedAt = run.status === "PENDING" ? run.tries.at(-1)?.ended_at : undefined;
  const drawn = timeline(run, run.end_time ?? pausedAt ?? now.value, TICKS);
  return (
    <div class="timeline" role="group" aria-label={t("timeline.label")}>
      <div class="timeline-axis" aria-hidden="true">
        <div class="timeline-scale">
          {drawn.ticks.map((tick) => (
            <span key={tick.seconds} class="timeline-tick" style={{ left: percent(tick.at) }}>
              {tickLabel(tick.seconds)}
            </span>
          ))}
        </div>
      </div>
      <ol class="timeline-rows">
        {drawn.bars
          .filter((bar) => shown.has(bar.task))
          .map((bar) => (
            <li key={bar.task}>
              <Row bar={bar} isSelected={bar.task === selected} onSelect={onSelect} />
            </li>
          ))}
      </ol>
    </div>
  );
}

function Row({ bar, isSelected, onSelect }: { bar: Bar; isSelected: boolean; onSelect: (task: string) => void }) {
  const took = bar.seconds === null ? "–" : duration(bar.seconds);
  return (
    <button type="button" class="timeline-row" aria-pressed={isSelected} onClick={() => onSelect(bar.task)}>
      <span class="timeline-name">
        <StatusIcon state={bar.state} />
        <bdi>{visible(bar.task)}</bdi>
        <span class="sr-only">{t(`state.${bar.state}`)}</span>
        {bar.isKept && <span class="tag">{t("task.kept")}</span>}
      </span>
      <span class="timeline-track">
        {bar.left !== null && (
          <span
            class={`timeline-bar tone-${toneOf(bar.state)} ${bar.state === "RUNNING" ? "is-running" : ""}`}
            style={{ left: percent(bar.left), width: percent(bar.width) }}
          />
        )}
      </span>
      <span class="timeline-took">{took}</span>
    </button>
  );
}
