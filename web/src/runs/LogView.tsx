import { Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { LogLine } from "../api/client";
import { remember, remembered } from "../app/preferences";
import { link, place } from "../app/router";
import { bytes, clockTime, count, visible } from "../format";
import { language, t } from "../i18n";
import { Glyph } from "../ui/icons";
import { save } from "../ui/save";
import { CopyButton } from "../ui/texts";
import { pieces } from "./ansi";
import { asText, behindGaps, fieldsOf, isCut, KINDS, type Kind, levelOf, marked, placeOf, SHOWN, sought } from "./logs";

export function LogView({
  lines,
  withTask,
  name,
}: {
  lines: readonly LogLine[];
  withTask: boolean;
  /** Of the file, when it is downloaded. */
  name: string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const wantedLine = place.value.query.line;
  const [isFollowing, setFollowing] = useState(wantedLine === undefined);
  const [isWrapped, setWrapped] = useState(remembered("log.wrap") !== "no");
  const [text, setText] = useState("");
  const [kind, setKind] = useState<Kind>("all");
  const [rows, setRows] = useState(wantedLine === undefined ? SHOWN : Infinity);
  const gaps = behindGaps(lines);
  const wanted = sought(lines, text, kind);
  const earlier = Math.max(0, wanted.length - rows);
  const shown = wanted.slice(earlier);
  const isThere = shown.some((line) => placeOf(line) === wantedLine);

  useEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [wanted.length, isFollowing]);
  useEffect(() => {
    if (isThere) box.current?.querySelector(".is-wanted")?.scrollIntoView({ block: "center" });
  }, [wantedLine, isThere]);

  return (
    <div class="logs">
      <div class="log-tools">
        <input
          type="search"
          placeholder={t("logs.search")}
          aria-label={t("logs.search")}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <select
          aria-label={t("logs.kind")}
          value={kind}
          onChange={(event) => setKind(event.currentTarget.value as Kind)}
        >
          {KINDS.map((one) => (
            <option key={one} value={one}>
              {t(`logs.kind.${one}`)}
            </option>
          ))}
        </select>
        {wanted.length < lines.length && (
          <span class="dim">
            {t("logs.found", { n: count(wanted.length, language.value), all: count(lines.length, language.value) })}
          </span>
        )}
        <label class="inline">
          <input
            type="checkbox"
            checked={isWrapped}
            onChange={(event) => {
              setWrapped(event.currentTarget.checked);
              remember("log.wrap", event.currentTarget.checked ? "yes" : "no");
            }}
          />
          <span>{t("logs.wrap")}</span>
        </label>
        <label class="inline">
          <input
            type="checkbox"
            checked={isFollowing}
            onChange={(event) => setFollowing(event.currentTarget.checked)}
          />
          <span>{t("logs.follow")}</span>
        </label>
        <span class="log-buttons">
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
        </span>
      </div>
      <div
        class={`log-box ${isWrapped ? "" : "is-unwrapped"}`}
        ref={box}
        tabIndex={0}
        role="log"
        aria-label={t("logs.title")}
        onScroll={(event) => setFollowing(isAtEnd(event.currentTarget))}
      >
        {shown.length === 0 && <p class="dim">{t(lines.length === 0 ? "logs.none" : "runs.none.title")}</p>}
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
          <Fragment key={placeOf(line)}>
            {gaps.has(line) && <p class="log-cut">{t("logs.gap")}</p>}
            {isCut(line) ? (
              <Cut line={line} />
            ) : (
              <Line line={line} withTask={withTask} sought={text} isWanted={placeOf(line) === wantedLine} />
            )}
          </Fragment>
        ))}
      </div>
    </div>
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

function Line({
  line,
  withTask,
  sought: text,
  isWanted,
}: {
  line: LogLine;
  withTask: boolean;
  sought: string;
  isWanted: boolean;
}) {
  const { path, query } = place.value;
  const level = levelOf(line);
  return (
    <div class={`log-line ${line.stream === "stderr" ? "is-stderr" : ""} ${isWanted ? "is-wanted" : ""}`}>
      <a
        class="log-n"
        href={link(path, { ...query, tab: "log", line: placeOf(line) })}
        aria-label={t("logs.line", { n: line.n + 1 })}
      >
        {line.n + 1}
      </a>
      <span class="log-time">{clockTime(line.ts)}</span>
      {withTask && <span class="log-task">{visible(line.task ?? "–")}</span>}
      {level && <span class={`log-level tone-text tone-${level.tone}`}>{visible(level.level)}</span>}
      <span class="log-text">
        {pieces(line.text.replace(/\n$/, "")).map((piece, at) => (
          <Piece key={at} style={piece.style} text={visible(piece.text)} sought={text} />
        ))}
        {fieldsOf(line).map((field) => (
          <Fragment key={field}>
            {" "}
            <Piece style="dim" text={visible(field)} sought={text} />
          </Fragment>
        ))}
      </span>
    </div>
  );
}

function Piece({ style, text, sought: wanted }: { style: string; text: string; sought: string }) {
  const inside =
    wanted === "" ? text : marked(text, wanted).map((one, at) => (at % 2 ? <mark key={at}>{one}</mark> : one));
  return <span class={style || undefined}>{inside}</span>;
}
