/** Pieces that the list and the page of a schedule share. */
import type { Schedule, Tick } from "../api/client";
import { link } from "../app/router";
import { visible } from "../format";
import { language, t } from "../i18n";
import { RunId } from "../ui/texts";
import { whenOf } from "./when";

/** In words where there are some; the expression and the time zone always. */
export function When({ schedule }: { schedule: Schedule }) {
  const words = whenOf(schedule, language.value);
  return (
    <>
      {words ? t(words.key, words.values) : <code>{visible(schedule.cron ?? "")}</code>}
      <span class="row-reason">
        {words && schedule.cron !== null && (
          <>
            <code>{visible(schedule.cron)}</code> ·{" "}
          </>
        )}
        {visible(schedule.timezone)}
      </span>
    </>
  );
}

/** The run or execution of a tick. */
export function Started({ tick }: { tick: Tick }) {
  if (tick.run_id !== undefined) {
    return (
      <a href={link(["runs", tick.run_id])}>
        <RunId id={tick.run_id} />
      </a>
    );
  }
  if (tick.execution_id !== undefined) {
    return (
      <a href={link(["executions", tick.execution_id])}>
        <RunId id={tick.execution_id} />
      </a>
    );
  }
  return null;
}
