/** A page with one long list: how many there are of each status, filters, the rows, the next page. */
import type { ComponentChildren } from "preact";
import { link } from "../app/router";
import { t } from "../i18n";
import { Act } from "./Act";
import { Glyph } from "./icons";
import { Count, More } from "./lists";
import { type AnyState, StatusIcon, toneOf } from "./Status";
import { Empty, Problem } from "./texts";

export type Section = "runs" | "executions";

export interface Paged {
  shown: number;
  isMore: boolean;
  isLoaded: boolean;
  error: Error | null;
  more: () => Promise<void>;
}

export function ListPage({
  section,
  mark,
  onNew,
  head,
  paged,
  isFiltered,
  none,
  children,
}: {
  section: Section;
  /** Beside the title. */
  mark?: ComponentChildren;
  onNew: () => void;
  /** Above the rows: chips, filters. */
  head: ComponentChildren;
  paged: Paged;
  isFiltered: boolean;
  /** Shown while there is nothing at all. */
  none: ComponentChildren;
  /** The rows. */
  children: ComponentChildren;
}) {
  const { shown, isMore, isLoaded, error, more } = paged;
  return (
    <>
      <header class="page-head">
        <h1>{t(`${section}.title`)}</h1>
        {mark}
        <Act icon="plus" kind="primary" onClick={onNew}>
          {t(`${section}.new`)}
        </Act>
      </header>
      {head}
      {error && <Problem error={error} />}
      {!isLoaded && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {shown > 0 ? children : isLoaded && !isMore && (isFiltered ? <NoMatch section={section} /> : none)}
      {isLoaded && (shown > 0 || isMore) && <More isMore={isMore} shown={shown} onMore={more} />}
    </>
  );
}

export function StatusChips({
  section,
  statuses,
  counts,
  most,
  status: chosen,
  rest,
  children,
}: {
  section: Section;
  statuses: readonly AnyState[];
  /** Null: they are not counted. */
  counts: Partial<Record<string, number>> | null;
  /** Up to how many of a status are counted. */
  most?: number;
  status: string | undefined;
  /** The other filters: they stay when a status is chosen. */
  rest: Record<string, string | undefined>;
  /** Behind "all". */
  children?: ComponentChildren;
}) {
  const limit = most === undefined ? {} : { most };
  const isKnown = Object.keys(counts ?? {}).length > 0;
  const all = Object.values(counts ?? {}).reduce<number>((sum, n) => sum + (n ?? 0), 0);
  return (
    <nav class="chips" aria-label={t(`${section}.byStatus`)}>
      <a class="chip" href={link([section], rest)} aria-current={chosen ? undefined : "true"}>
        {t("runs.all")} {counts && <Count value={isKnown ? all : undefined} {...limit} />}
      </a>
      {children}
      {statuses.map((status) => (
        <a
          key={status}
          class={`chip tone-${toneOf(status)} ${counts && !counts[status] ? "is-zero" : ""}`}
          href={link([section], { ...rest, status })}
          aria-current={chosen === status ? "true" : undefined}
        >
          <StatusIcon state={status} />
          {t(`state.${status}`)} {counts && <Count value={isKnown ? (counts[status] ?? 0) : undefined} {...limit} />}
        </a>
      ))}
    </nav>
  );
}

/** The fields are the children; all filters can be cleared at once. */
export function FilterForm({
  section,
  isFiltered,
  children,
}: {
  section: string;
  isFiltered: boolean;
  children: ComponentChildren;
}) {
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      {children}
      {isFiltered && (
        <a class="button quiet" href={link([section])}>
          <Glyph name="close" />
          {t("runs.filter.clear")}
        </a>
      )}
    </form>
  );
}

function NoMatch({ section }: { section: Section }) {
  return (
    <Empty title={t("runs.none.title")}>
      <p>{t(`${section}.none.lead`)}</p>
      <p>
        <a class="button" href={link([section])}>
          {t("runs.filter.clear")}
        </a>
      </p>
    </Empty>
  );
}
