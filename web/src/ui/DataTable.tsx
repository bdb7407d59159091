/** A list as a table; on a phone each row becomes a card, with the titles of the columns beside the values. */
import type { ComponentChildren, JSX } from "preact";
import { t } from "../i18n";
import { More } from "./lists";
import { Problem } from "./texts";

export interface Column<T> {
  title: string;
  /** In place of the title, which names the values on a phone. */
  head?: ComponentChildren;
  cell: (row: T) => ComponentChildren;
  class?: string;
  /** Only for those who do not see the table, such as above buttons. */
  isSilent?: boolean;
}

export function DataTable<T>({
  name,
  columns,
  rows,
  keyOf,
  look = () => "",
}: {
  name: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  keyOf: (row: T) => string;
  look?: (row: T) => string;
}): JSX.Element {
  return (
    <div class="table-frame">
      <table class={`${name} stack`}>
        <thead>
          <tr>
            {columns.map(({ title, head, isSilent, class: kind }) => (
              <th key={title} scope="col" class={kind === "num" ? kind : undefined}>
                {isSilent ? <span class="sr-only">{title}</span> : (head ?? title)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)} class={`row ${look(row)}`} data-key={keyOf(row)}>
              {columns.map(({ title, cell, class: kind, isSilent }) => (
                <td
                  key={title}
                  class={kind}
                  data-label={isSilent || kind === "cell-main" || kind === "cell-status" ? undefined : title}
                >
                  {cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export interface PagedRows<T> {
  rows: readonly T[];
  isLoaded: boolean;
  isMore: boolean;
  error: Error | null;
  more: () => Promise<void>;
}

/** The rows of a paged list, or what there is instead. */
export function Listed<T>({
  pages: { rows, isLoaded, isMore, error, more },
  none,
  children,
}: {
  pages: PagedRows<T>;
  none: ComponentChildren;
  children: ComponentChildren;
}) {
  return (
    <>
      {error && <Problem error={error} />}
      {!isLoaded && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {isLoaded && rows.length === 0 && !isMore && none}
      {rows.length > 0 && children}
      {(rows.length > 0 || isMore) && <More isMore={isMore} shown={rows.length} onMore={more} />}
    </>
  );
}

export function Facts({ facts }: { facts: readonly [string, ComponentChildren][] }) {
  return (
    <dl class="facts" aria-label={t("run.facts")}>
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Within a `dl` of the class `facts`. */
export function Fact({
  name,
  children,
  ...look
}: {
  name: string;
  class?: string;
  title?: string;
  children: ComponentChildren;
}) {
  return (
    <div>
      <dt>{name}</dt>
      <dd {...look}>{children}</dd>
    </div>
  );
}
