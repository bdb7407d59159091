import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { visible } from "../format";
import { t } from "../i18n";
import type { Polled } from "../live/usePolling";
import { Act } from "../ui/Act";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Glyph } from "../ui/icons";
import { Age, Command, Empty, Problem } from "../ui/texts";
import { toast } from "../ui/toasts";

export const REFRESH_MS = 4000;

export interface Column<T> {
  title: string;
  cell: (item: T) => ComponentChildren;
  class?: string;
  /** On a narrow page, where a row is a card, the title stands beside the cell. */
  isLabelled?: boolean;
}

interface Props<T> {
  /** Whose words are used. */
  kind: "templates" | "actions" | "sources";
  list: Polled<{ items: T[] }>;
  /** Shown while there is none: how to make one. */
  command: string;
  columns: readonly Column<T>[];
  idOf: (item: T) => string;
  nameOf: (item: T) => string;
  /** What else can be done with one. */
  tools?: (item: T) => ComponentChildren;
  /** The form of one, or of a new one. */
  form: (item: T | null, onClose: () => void) => ComponentChildren;
  remove: (item: T) => Promise<unknown>;
}

/** What people define for events: the list of it, the form to change it, the question before it goes. */
export function Definitions<T extends { updated_at: string }>(props: Props<T>) {
  const { kind, list, command, nameOf, form, remove } = props;
  const [edited, setEdited] = useState<T | "new" | null>(null);
  const [doomed, setDoomed] = useState<T | null>(null);
  const found = list.value?.items;
  return (
    <>
      <div class="part-head">
        <p class="lead">{t(`${kind}.lead`)}</p>
        <div class="actions">
          <Act icon="plus" kind="primary" onClick={() => setEdited("new")}>
            {t(`${kind}.new`)}
          </Act>
        </div>
      </div>
      {list.error && <Problem error={list.error} />}
      {!found && !list.error && <p class="dim loading">{t("runs.loading")}</p>}
      {found?.length === 0 && (
        <Empty title={t(`${kind}.empty.title`)}>
          <p>{t(`${kind}.empty.lead`)}</p>
          <Command text={command} />
        </Empty>
      )}
      {found && found.length > 0 && (
        <DefinitionTable {...props} items={found} onEdit={setEdited} onDelete={setDoomed} />
      )}
      {edited && form(edited === "new" ? null : edited, () => setEdited(null))}
      {doomed && (
        <ConfirmDialog
          title={t(`${kind}.delete.title`)}
          lead={t(`${kind}.delete.lead`, { name: visible(nameOf(doomed)) })}
          verb={t("wheels.delete.do")}
          onConfirm={async () => {
            await remove(doomed);
            toast(t(`${kind}.deleted`));
            await list.refresh();
          }}
          onClose={() => setDoomed(null)}
        />
      )}
    </>
  );
}

const ROW_ATTRIBUTE = { templates: "data-template", actions: "data-action", sources: "data-source" };

type TableProps<T> = Props<T> & { items: readonly T[]; onEdit: (item: T) => void; onDelete: (item: T) => void };

function DefinitionTable<T extends { updated_at: string }>({
  kind,
  columns,
  idOf,
  nameOf,
  tools,
  items,
  onEdit,
  onDelete,
}: TableProps<T>) {
  return (
    <div class="table-frame">
      <table class="stack definitions">
        <thead>
          <tr>
            {columns.map(({ title }) => (
              <th key={title} scope="col">
                {title}
              </th>
            ))}
            <th scope="col">{t("runs.column.updated")}</th>
            <th scope="col">
              <span class="sr-only">{t("templates.edit")}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {items.map((item) => (
            <tr class="row" key={idOf(item)} {...{ [ROW_ATTRIBUTE[kind]]: idOf(item) }}>
              {columns.map((column) => (
                <td key={column.title} class={column.class} data-label={column.isLabelled ? column.title : undefined}>
                  {column.cell(item)}
                </td>
              ))}
              <td>
                <Age at={Date.parse(item.updated_at) / 1000} />
              </td>
              <td class="cell-actions">
                {tools?.(item)}
                <button
                  type="button"
                  class="icon-button"
                  aria-label={t("templates.edit.label", { name: visible(nameOf(item)) })}
                  onClick={() => onEdit(item)}
                >
                  <Glyph name="edit" />
                </button>
                <button
                  type="button"
                  class="icon-button danger"
                  aria-label={t("templates.delete.label", { name: visible(nameOf(item)) })}
                  onClick={() => onDelete(item)}
                >
                  <Glyph name="trash" />
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
