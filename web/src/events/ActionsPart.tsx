import { useState } from "preact/hooks";
import { type Action, del, get, put } from "../api/client";
import { client } from "../app/commands";
import { visible } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { readParams } from "../runs/submission";
import { FormDialog } from "../ui/FormDialog";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";
import { Definitions, REFRESH_MS } from "./Definitions";
import { whatItDoes } from "./templates";

export function ActionsPart() {
  const actions = usePolling((signal) => get("/api/workflow-actions", { signal }), REFRESH_MS, "actions");
  return (
    <Definitions
      kind="actions"
      list={actions}
      command={client("actions put close --flow-name monthly_close")}
      columns={[
        { title: t("actions.column.key"), class: "cell-main strong", cell: (action) => visible(action.key) },
        { title: t("actions.column.does"), isLabelled: true, cell: (action) => <What action={action} /> },
        {
          title: t("runs.filter.tag"),
          isLabelled: true,
          cell: (action) => (action.tag ? visible(action.tag) : <span class="dim">–</span>),
        },
        {
          title: t("actions.column.concurrency"),
          isLabelled: true,
          cell: (action) => t(`actions.concurrency.${action.concurrency}`),
        },
      ]}
      idOf={(action) => action.key}
      nameOf={(action) => action.key}
      form={(action, onClose) => <ActionDialog action={action} onClose={onClose} onSaved={actions.refresh} />}
      remove={(action) => del("/api/workflow-actions/{key}", { path: { key: action.key } })}
    />
  );
}

function What({ action }: { action: Action }) {
  return (
    <>
      <span class="tag">{action.graph_id ? t("actions.kind.graph") : t("actions.kind.flow")}</span>{" "}
      {visible(whatItDoes(action))}
    </>
  );
}

function ActionDialog({
  action,
  onClose,
  onSaved,
}: {
  action: Action | null;
  onClose: () => void;
  onSaved: () => Promise<void>;
}) {
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
    <FormDialog
      title={action ? t("actions.edit") : t("actions.new")}
      verb={t("action.save")}
      isBusy={isBusy}
      onSubmit={() => send(save)}
      onClose={onClose}
    >
      <label>
        <span>{t("actions.key")}</span>
        <input
          required
          readOnly={action !== null}
          value={key}
          placeholder="invoice.received"
          onInput={(e) => setKey(e.currentTarget.value)}
        />
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
        <textarea
          rows={5}
          class="mono"
          spellcheck={false}
          value={params}
          onInput={(e) => setParams(e.currentTarget.value)}
        />
      </label>
      {error && (
        <Problem
          error={error instanceof SyntaxError ? new Error(t("submit.badJson", { reason: error.message })) : error}
        />
      )}
    </FormDialog>
  );
}
