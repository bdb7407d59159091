import { useEffect, useRef, useState } from "preact/hooks";
import { go, refine } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { Combo } from "../ui/Combo";
import { Glyph } from "../ui/icons";
import { Moment } from "../ui/texts";
import {
  type Completion,
  completed,
  completions,
  type Names,
  parsed,
  type RunFilters,
  runIdIn,
  textOf,
  timeOf,
} from "./query";
import { ViewsMenu } from "./ViewsMenu";

const SPANS = ["1h", "24h", "7d"] as const;

/** What the list of runs is about, in one line. It becomes the address, and the address becomes the line. */
export function QueryBar({ filters, names }: { filters: RunFilters; names: Names }) {
  const known = textOf(filters);
  const [text, setText] = useState(known);
  const [wrong, setWrong] = useState<string[]>([]);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (textOf(parsed(text).filters) === known) return; // as it was typed
    setText(known);
    setWrong([]);
  }, [known]);

  function apply(next: string): void {
    const found = parsed(next);
    setWrong(found.wrong);
    if (textOf(found.filters) !== known) refine({ ...found.filters });
  }

  function enter(): void {
    const id = runIdIn(text);
    if (id) go(["runs", id]);
    else apply(text);
  }

  function choose({ completion }: { completion: Completion }): void {
    const next = completed(text, completion);
    setText(next);
    if (!completion.isKey) apply(next);
  }

  return (
    <div class="query">
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <Combo
          label={t("runs.query")}
          hint={t("runs.query.hint")}
          value={text}
          input={input}
          options={completions(text, names).map((completion) => ({
            key: completion.word,
            text: visible(completion.word),
            hint: completion.isKey ? t(`query.${completion.word.replace(/[-:.]/g, "") as "flow"}`) : undefined,
            completion,
          }))}
          onInput={setText}
          onChoose={choose}
          onEnter={enter}
          onLeave={() => apply(text)}
        />
        <RangePicker filters={filters} />
        <ViewsMenu filters={filters} />
        {known && (
          <button type="button" class="button quiet" onClick={() => refine({})}>
            <Glyph name="close" />
            {t("runs.filter.clear")}
          </button>
        )}
      </form>
      {wrong.length > 0 && (
        <p class="field-problem" role="alert">
          {t("runs.query.wrong", { terms: visible(wrong.join(" ")) })}
        </p>
      )}
      {filters.q && <p class="dim note">{t("runs.query.read")}</p>}
    </div>
  );
}

function RangePicker({ filters }: { filters: RunFilters }) {
  const { since, until } = filters;
  const isSpan = !until && SPANS.some((one) => one === since);
  const isOwn = Boolean(since || until) && !isSpan;
  const change = (to: string) => refine({ ...filters, since: to, until: undefined });
  return (
    <>
      <label>
        <span class="sr-only">{t("overview.range")}</span>
        <select value={isOwn ? "own" : (since ?? "")} onChange={(event) => change(event.currentTarget.value)}>
          <option value="">{t("runs.range.any")}</option>
          {SPANS.map((span) => (
            <option key={span} value={span}>
              {t(`letters.since.${span}`)}
            </option>
          ))}
          {isOwn && <option value="own">{t("runs.range.own")}</option>}
        </select>
      </label>
      {isOwn && (
        <span class="dim note">
          {since && <Moment at={timeOf(since, Date.now() / 1000)} />} –{" "}
          {until && <Moment at={timeOf(until, Date.now() / 1000)} />}
        </span>
      )}
    </>
  );
}
