import { now } from "../app/clock";
import { countdown, dateTime } from "../format";
import { language, t } from "../i18n";

/** Time left, emphasised when it is short, unless the time is only a start. */
export function Deadline({ at, isTime = false }: { at: number; isTime?: boolean }) {
  const left = countdown(at, now.value);
  // Of the last second nothing is counted down.
  const isDue = left.urgency === "late" || left.text === "0";
  const words = isTime
    ? t(isDue ? "time.due" : "time.in", { time: left.text })
    : t(left.urgency === "late" ? "waits.overdue" : "waits.left", { time: left.text });
  return (
    <time
      class={isTime ? undefined : `deadline is-${left.urgency}`}
      dateTime={new Date(at * 1000).toISOString()}
      title={dateTime(at, language.value)}
    >
      {words}
    </time>
  );
}
