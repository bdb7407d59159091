import { get, type Schedule } from "../api/client";
import { now } from "../app/clock";
import { clockTime } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { dayPath } from "./schedule";

const REFRESH_MS = 60_000;
const MOST_TICKS = 300;
const MOST_SCHEDULES = 50;
const HOURS = [0, 6, 12, 18, 24];
const DAY_SEC = 86_400;

export type Ticks = ReadonlyMap<string, readonly number[]>;

/** The ticks of the next day, by schedule. */
export function useDay(schedules: readonly Schedule[]): Ticks {
  const ids = schedules.filter((one) => !one.paused && one.next_due_at !== null).map((one) => one.id);
  const wanted = ids.slice(0, MOST_SCHEDULES);
  const { value } = usePolling(
    async (signal) => {
      const read = async (schedule_id: string): Promise<[string, number[]]> => {
        const query = { n: MOST_TICKS };
        const found = await get("/schedules/{schedule_id}/preview", { path: { schedule_id }, query, signal });
        return [schedule_id, found.items.map(({ due_at }) => due_at)];
      };
      return new Map(await Promise.all(wanted.map(read)));
    },
    REFRESH_MS,
    wanted.join("\n"),
  );
  return value ?? new Map();
}

/** The hours above the strips. */
export function DayScale() {
  const from = now.value;
  return (
    <span class="day-scale">
      <span class="sr-only">{t("schedules.column.day")}</span>
      {HOURS.map((hour) => (
        <span key={hour} aria-hidden="true">
          {clockTime(from + hour * 3600, false)}
        </span>
      ))}
    </span>
  );
}

/** A mark for each tick of the next day. */
export function DayStrip({ ticks }: { ticks: readonly number[] }) {
  const from = now.value;
  const due = ticks.filter((at) => at >= from && at < from + DAY_SEC);
  const label = t("schedules.day", { n: due.length });
  return (
    <svg class="day-strip" viewBox="0 0 240 16" preserveAspectRatio="none" role="img" aria-label={label}>
      <title>{label}</title>
      <path class="chart-grid" d="M0 0V16M60 0V16M120 0V16M180 0V16M240 0V16" />
      <path class="day-ticks" d={dayPath(due, from)} />
    </svg>
  );
}
