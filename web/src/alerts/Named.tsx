import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { visible } from "../format";
import { t } from "../i18n";
import type { Page } from "../live/paged";
import { type Asking, usePages } from "../live/usePages";
import { Act } from "../ui/Act";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { type Column, DataTable, Listed } from "../ui/DataTable";
import { Empty } from "../ui/texts";
import { toast } from "../ui/toasts";

const REFRESH_MS = 4000;

export type Kind = "alerts" | "channels" | "secrets" | "variables";

/** Things that people give a name: the list, the form to make or change one, the question before one goes. */
export function Named<T extends { name: string }>({
  kind,
  ask,
  columns,
  form,
  remove,
}: {
  /** Whose words are used. */
  kind: Kind;
  ask: (query: Asking, signal: AbortSignal) => Promise<Page<T>>;
  columns: readonly Column<T>[];
  form: (known: T | null, onSaved: () => void, onClose: () => void) => ComponentChildren;
  remove: (name: string) => Promise<unknown>;
}) {
  const pages = usePages<T>(kind, ask, (one) => one.name, REFRESH_MS);
  const [edited, setEdited] = useState<T | "new" | null>(null);
  const [doomed, setDoomed] = useState<T | null>(null);
  const tools: Column<T> = {
    title: t("templates.edit"),
    isSilent: true,
    class: "cell-actions",
    cell: (one) => (
      <>
        <Act
          kind="icon"
          icon="edit"
          label={t("templates.edit.label", { name: one.name })}
          onClick={() => setEdited(one)}
        />
        <Act
          kind="icon"
          icon="trash"
          label={t("templates.delete.label", { name: one.name })}
          onClick={() => setDoomed(one)}
        />
      </>
    ),
  };
  return (
    <>
      <div class="part-head">
        <p class="lead">{t(`named.${kind}.lead`)}</p>
        <div class="actions">
          <Act icon="plus" kind="primary" onClick={() => setEdited("new")}>
            {t(`named.${kind}.new`)}
          </Act>
        </div>
      </div>
      <Listed
        pages={pages}
        none={
          <Empty title={t("named.none")}>
            <p>{t(`named.${kind}.none`)}</p>
          </Empty>
        }
      >
        <DataTable name={kind} rows={pages.rows} keyOf={(one) => one.name} columns={[...columns, tools]} />
      </Listed>
      {edited &&
        form(
          edited === "new" ? null : edited,
          () => {
            toast(t("named.saved"));
            void pages.refresh();
          },
          () => setEdited(null),
        )}
      {doomed && (
        <ConfirmDialog
          title={t("named.delete.title", { name: visible(doomed.name) })}
          lead={t(`named.${kind}.delete`)}
          verb={t("wheels.delete.do")}
          onConfirm={async () => {
            await remove(doomed.name);
            toast(t("named.deleted"));
            await pages.refresh();
          }}
          onClose={() => setDoomed(null)}
        />
      )}
    </>
  );
}
