import { Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { LogLine } from "../api/client";
import { bytes, clockTime, visible } from "../format";
import { t } from "../i18n";
import { Glyph } from "../ui/icons";
import { save } from "../ui/save";
import { CopyButton } from "../ui/texts";
import { pieces } from "./ansi";
import { asText, behindGaps, isCut, ofTask, SHOWN } from "./logs";

export function LogView({
  lines,
  task,
  tasks,
  name,
  onTask,
}: {
  lines: readonly LogLine[];
  task: string | null;
  tasks: readonly string[];
  /** Of the file, when it is downloaded. */
  name: string;
  onTask: (task: string | null) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [isFollowing, setFollowing] = useState(true);
  const [rows, setRows] = useState(SHOWN);
  const gaps = behindGaps(lines);
  const wanted = ofTask(lines, task);
  const earlier = Math.max(0, wanted.length - rows);
  const shown = wanted.slice(earlier);

  useEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [wanted.length, isFollowing, task]);

  return (
    <section class="panel logs" aria-label={t("logs.title")}>
      <header class="panel-head">
        <h2>{t("logs.title")}</h2>
        <label class="inline">
          <span class="sr-only">{t("logs.task")}</span>
          <select
            value={task ?? ""}
            onChange={(event) => onTask(event.currentTarget.value === "" ? null : event.currentTarget.value)}
          >
            <option value="">{t("logs.everyTask")}</option>
            {tasks.map((one) => (
              <option key={one} value={one}>
                {visible(one)}
              </option>
            ))}
          </select>
        </label>
        <label class="inline">
          <input
            type="checkbox"
            checked={isFollowing}
            onChange={(event) => setFollowing(event.currentTarget.checked)}
          />
          <span>{t("logs.follow")}</span>
        </label>
        <CopyButton text={() => asText(wanted, gaps)} label={t("copy.text")} />
        <button
          type="button"
          class="icon-button"
          aria-label={t("logs.download")}
          title={t("logs.download")}
          onClick={() => save(`${name}.log`, asText(wanted, gaps))}
        >
          <Glyph name="download" />
        </button>
      </header>
      <div
        class="log-box"
        ref={box}
        tabIndex={0}
        role="log"
        aria-label={t("logs.title")}
        onScroll={(event) => setFollowing(isAtEnd(event.currentTarget))}
      >
        {shown.length === 0 && <p class="dim">{t("logs.none")}</p>}
        {earlier > 0 && (
          <button
            type="button"
            onClick={() => {
              setFollowing(false);
              setRows(rows + SHOWN);
            }}
          >
            {t("logs.earlier", { n: Math.min(SHOWN, earlier), all: earlier })}
          </button>
        )}
        {shown.map((line) => (
          <Fragment key={`${line.attempt}/${line.n}`}>
            {gaps.has(line) && <p class="log-cut">{t("logs.gap")}</p>}
            {isCut(line) ? <Cut line={line} /> : <Line line={line} withTask={task === null} />}
          </Fragment>
        ))}
      </div>
    </section>
  );
}

const NEAR_PX = 24;

/** Whoever scrolls up, by wheel, key, touch or scrollbar, wants to read; at the end the log goes on by itself. */
function isAtEnd(box: HTMLElement): boolean {
  return box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PX;
}

/** Where lines were cut, in the words of the page. */
function Cut({ line }: { line: LogLine }) {
  const lines = line.cut_lines ?? 0;
  const size = bytes(line.cut_bytes ?? 0);
  return (
    <p class="log-cut">
      {lines > 0
        ? t("logs.cutLines", { n: lines, size, task: visible(line.task ?? "–") })
        : t("logs.cutBytes", { size })}
    </p>
  );
}

function Line({ line, withTask }: { line: LogLine; withTask: boolean }) {
  return (
    <div class={`log-line ${line.stream === "stderr" ? "is-stderr" : ""}`}>
      <span class="log-time">{clockTime(line.ts)}</span>
      {withTask && <span class="log-task">{visible(line.task ?? "–")}</span>}
      <span class="log-text">
        {pieces(line.text.replace(/\n$/, "")).map((piece, at) =>
          piece.style ? (
            <span key={at} class={piece.style}>
              {visible(piece.text)}
            </span>
          ) : (
            visible(piece.text)
          ),
        )}
      </span>
    </div>
  );
}
