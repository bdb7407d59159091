import { useState } from "preact/hooks";
import { type Action, del, get, put } from "../api/client";
import { usePolling } from "../app/polling";
import { visible } from "../format";
import { t } from "../i18n";
import { readParams } from "../runs/submission";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Dialog } from "../ui/Dialog";
import { Glyph } from "../ui/icons";
import { Age, Command, Empty, Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";
import { whatItDoes } from "./templates";

const REFRESH_MS = 4000;

export function ActionsPart() {
  const actions = usePolling((signal) => get("/api/workflow-actions", { signal }), REFRESH_MS, "actions");
  const [edited, setEdited] = useState<Action | "new" | null>(null);
  const [doomed, setDoomed] = useState<Action | null>(null);
  const found = actions.value?.items;
  return (
    <>
      <div class="part-head">
        <p class="lead">{t("actions.lead")}</p>
        <div class="actions">
          <button type="button" class="button primary" onClick={() => setEdited("new")}>
            <Glyph name="plus" />
            {t("actions.new")}
          </button>
        </div>
      </div>
      {actions.error && <Problem error={actions.error} />}
      {!found && !actions.error && <p class="dim loading">{t("runs.loading")}</p>}
      {found?.length === 0 && (
        <Empty title={t("actions.empty.title")}>
          <p>{t("actions.empty.lead")}</p>
          <Command text={`pyoco-client actions put close --flow-name monthly_close --server ${location.origin}`} />
        </Empty>
      )}
      {found && found.length > 0 && (
        <div class="table-frame">
          <table class="stack definitions">
            <thead>
              <tr>
                <th scope="col">{t("actions.column.key")}</th>
                <th scope="col">{t("actions.column.does")}</th>
                <th scope="col">{t("runs.filter.tag")}</th>
                <th scope="col">{t("actions.column.concurrency")}</th>
                <th scope="col">{t("runs.column.updated")}</th>
                <th scope="col">
                  <span class="sr-only">{t("templates.edit")}</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {found.map((action) => (
                <tr class="row" key={action.key} data-action={action.key}>
                  <td class="cell-main strong">{visible(action.key)}</td>
                  <td data-label={t("actions.column.does")}>
                    <span class="tag">{action.graph_id ? t("actions.kind.graph") : t("actions.kind.flow")}</span> {visible(whatItDoes(action))}
                  </td>
                  <td data-label={t("runs.filter.tag")}>{action.tag ? visible(action.tag) : <span class="dim">–</span>}</td>
                  <td data-label={t("actions.column.concurrency")}>{t(`actions.concurrency.${action.concurrency}`)}</td>
                  <td>
                    <Age at={Date.parse(action.updated_at) / 1000} />
                  </td>
                  <td class="cell-actions">
                    <button type="button" class="icon-button" aria-label={t("templates.edit.label", { name: visible(action.key) })} onClick={() => setEdited(action)}>
                      <Glyph name="edit" />
                    </button>
                    <button type="button" class="icon-button danger" aria-label={t("templates.delete.label", { name: visible(action.key) })} onClick={() => setDoomed(action)}>
                      <Glyph name="trash" />
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {edited && <ActionDialog action={edited === "new" ? null : edited} onClose={() => setEdited(null)} onSaved={actions.refresh} />}
      {doomed && (
        <ConfirmDialog
          title={t("actions.delete.title")}
          lead={t("actions.delete.lead", { name: visible(doomed.key) })}
          verb={t("wheels.delete.do")}
          onConfirm={async () => {
            await del("/api/workflow-actions/{key}", { path: { key: doomed.key } });
            toast(t("actions.deleted"));
            await actions.refresh();
          }}
          onClose={() => setDoomed(null)}
        />
      )}
    </>
  );
}

function ActionDialog({ action, onClose, onSaved }: { action: Action | null; onClose: () => void; onSaved: () => Promise<void> }) {
  const [key, setKey] = useState(action?.key ?? "");
  const [isGraph, setGraph] = useState(Boolean(action?.graph_id));
  const [name, setName] = useState(action ? whatItDoes(action) : "");
  const [tag, setTag] = useState(action?.tag ?? "");
  const [params, setParams] = useState(JSON.stringify(action?.params ?? {}, null, 2));
  const [concurrency, setConcurrency] = useState<Action["concurrency"]>(action?.concurrency ?? "allow");
  const { error, isBusy, send } = useSending();

  async function save(): Promise<void> {
    const body = {
      ...(isGraph ? { graph_id: name.trim() } : { flow_name: name.trim() }),
      ...(tag.trim() ? { tag: tag.trim() } : {}),
      params: readParams(params, t("submit.notObject")),
      concurrency,
    };
    await put("/api/workflow-actions/{key}", { path: { key: key.trim() }, body });
    toast(t("actions.saved"));
    onClose();
    await onSaved();
  }

  return (
    <Dialog title={action ? t("actions.edit") : t("actions.new")} onClose={onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          send(save);
        }}
      >
        <label>
          <span>{t("actions.key")}</span>
          <input required readOnly={action !== null} value={key} placeholder="invoice.received" onInput={(e) => setKey(e.currentTarget.value)} />
        </label>
        <div class="form-row">
          <label>
            <span>{t("actions.column.does")}</span>
            <select value={isGraph ? "graph" : "flow"} onChange={(e) => setGraph(e.currentTarget.value === "graph")}>
              <option value="flow">{t("actions.kind.flow")}</option>
              <option value="graph">{t("actions.kind.graph")}</option>
            </select>
          </label>
          <label class="grow">
            <span>{isGraph ? t("executions.column.graph") : t("runs.column.flow")}</span>
            <input required value={name} onInput={(e) => setName(e.currentTarget.value)} />
          </label>
        </div>
        <div class="form-row">
          <label>
            <span>{t("actions.column.concurrency")}</span>
            <select value={concurrency} onChange={(e) => setConcurrency(e.currentTarget.value as Action["concurrency"])}>
              <option value="allow">{t("actions.concurrency.allow")}</option>
              <option value="one">{t("actions.concurrency.one")}</option>
            </select>
          </label>
          <label class="grow">
            <span>{t("submit.tag")}</span>
            <input value={tag} placeholder={t("submit.tag.hint")} onInput={(e) => setTag(e.currentTarget.value)} />
          </label>
        </div>
        <label>
          <span>{t("submit.params")}</span>
          <textarea rows={5} class="mono" spellcheck={false} value={params} onInput={(e) => setParams(e.currentTarget.value)} />
        </label>
        {error && <Problem error={error instanceof SyntaxError ? new Error(t("submit.badJson", { reason: error.message })) : error} />}
        <footer>
          <button type="button" class="button" onClick={onClose}>
            {t("action.dismiss")}
          </button>
          <button type="submit" class="button primary" disabled={isBusy}>
            {t("action.save")}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
