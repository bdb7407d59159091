import { useState } from "preact/hooks";
import { del, get, put, type Source } from "../api/client";
import { usePolling } from "../app/polling";
import { visible } from "../format";
import { t } from "../i18n";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Dialog } from "../ui/Dialog";
import { Glyph } from "../ui/icons";
import { Age, Command, Empty, Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";

const REFRESH_MS = 4000;
const KINDS = ["standard", "github", "stripe", "hmac"] as const;

/** Who may send signed events. Secrets go in and never come out. */
export function SourcesPart() {
  const sources = usePolling((signal) => get("/api/workflow-sources", { signal }), REFRESH_MS, "sources");
  const [edited, setEdited] = useState<Source | "new" | null>(null);
  const [doomed, setDoomed] = useState<Source | null>(null);
  const found = sources.value?.items;
  return (
    <>
      <div class="part-head">
        <p class="lead">{t("sources.lead")}</p>
        <div class="actions">
          <button type="button" class="button primary" onClick={() => setEdited("new")}>
            <Glyph name="plus" />
            {t("sources.new")}
          </button>
        </div>
      </div>
      {sources.error && <Problem error={sources.error} />}
      {!found && !sources.error && <p class="dim loading">{t("runs.loading")}</p>}
      {found?.length === 0 && (
        <Empty title={t("sources.empty.title")}>
          <p>{t("sources.empty.lead")}</p>
          <Command text={`curl -X PUT ${location.origin}/api/workflow-sources/github -H 'Content-Type: application/json' -d '{"kind": "github", "secrets": ["…"]}'`} />
        </Empty>
      )}
      {found && found.length > 0 && (
        <div class="table-frame">
          <table class="stack definitions">
            <thead>
              <tr>
                <th scope="col">{t("sources.column.source")}</th>
                <th scope="col">{t("sources.column.kind")}</th>
                <th scope="col">{t("sources.column.secrets")}</th>
                <th scope="col">{t("events.column.template")}</th>
                <th scope="col">{t("sources.column.address")}</th>
                <th scope="col">{t("runs.column.updated")}</th>
                <th scope="col">
                  <span class="sr-only">{t("templates.edit")}</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {found.map((source) => (
                <tr class="row" key={source.id} data-source={source.id}>
                  <td class="cell-main strong">{visible(source.id)}</td>
                  <td data-label={t("sources.column.kind")}>{t(`sources.kind.${source.kind}`)}</td>
                  <td data-label={t("sources.column.secrets")}>
                    <span class="tag">{t("sources.secrets", { n: source.secrets })}</span>
                  </td>
                  <td data-label={t("events.column.template")}>{visible(source.template_id ?? "–")}</td>
                  <td class="dim">
                    <span class="mono">/api/workflow-events?source={visible(source.id)}</span>
                  </td>
                  <td>
                    <Age at={Date.parse(source.updated_at) / 1000} />
                  </td>
                  <td class="cell-actions">
                    <button type="button" class="icon-button" aria-label={t("templates.edit.label", { name: visible(source.id) })} onClick={() => setEdited(source)}>
                      <Glyph name="edit" />
                    </button>
                    <button type="button" class="icon-button danger" aria-label={t("templates.delete.label", { name: visible(source.id) })} onClick={() => setDoomed(source)}>
                      <Glyph name="trash" />
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {edited && <SourceDialog source={edited === "new" ? null : edited} onClose={() => setEdited(null)} onSaved={sources.refresh} />}
      {doomed && (
        <ConfirmDialog
          title={t("sources.delete.title")}
          lead={t("sources.delete.lead", { name: visible(doomed.id) })}
          verb={t("wheels.delete.do")}
          onConfirm={async () => {
            await del("/api/workflow-sources/{source_id}", { path: { source_id: doomed.id } });
            toast(t("sources.deleted"));
            await sources.refresh();
          }}
          onClose={() => setDoomed(null)}
        />
      )}
    </>
  );
}

function SourceDialog({ source, onClose, onSaved }: { source: Source | null; onClose: () => void; onSaved: () => Promise<void> }) {
  const [id, setId] = useState(source?.id ?? "");
  const [kind, setKind] = useState<Source["kind"]>(source?.kind ?? "standard");
  const [secrets, setSecrets] = useState(["", ""]);
  const [template, setTemplate] = useState(source?.template_id ?? "");
  const [header, setHeader] = useState(source?.signature_header ?? "x-signature");
  const [timeHeader, setTimeHeader] = useState(source?.timestamp_header ?? "");
  const { error, isBusy, send } = useSending();

  async function save(): Promise<void> {
    const body = {
      kind,
      secrets: secrets.filter(Boolean),
      ...(template.trim() ? { template_id: template.trim() } : {}),
      ...(kind === "hmac" ? { signature_header: header.trim(), timestamp_header: timeHeader.trim() || null } : {}),
    };
    await put("/api/workflow-sources/{source_id}", { path: { source_id: id.trim() }, body });
    toast(t("sources.saved"));
    onClose();
    await onSaved();
  }

  return (
    <Dialog title={source ? t("sources.edit") : t("sources.new")} onClose={onClose}>
      <form
        class="form"
        autoComplete="off"
        onSubmit={(event) => {
          event.preventDefault();
          send(save);
        }}
      >
        <div class="form-row">
          <label class="grow">
            <span>{t("sources.id")}</span>
            <input required readOnly={source !== null} value={id} placeholder="github" onInput={(e) => setId(e.currentTarget.value)} />
          </label>
          <label>
            <span>{t("sources.column.kind")}</span>
            <select value={kind} onChange={(e) => setKind(e.currentTarget.value as Source["kind"])}>
              {KINDS.map((one) => (
                <option key={one} value={one}>
                  {t(`sources.kind.${one}`)}
                </option>
              ))}
            </select>
          </label>
        </div>
        {secrets.map((secret, at) => (
          <label key={at}>
            <span>{at === 0 ? t("sources.secret") : t("sources.secret.second")}</span>
            <input
              type="password"
              autoComplete="new-password"
              spellcheck={false}
              required={at === 0}
              value={secret}
              onInput={(e) => setSecrets(secrets.map((known, place) => (place === at ? e.currentTarget.value : known)))}
            />
          </label>
        ))}
        <p class="dim note">{source ? t("sources.secret.again") : t("sources.secret.never")}</p>
        <label>
          <span>{t("sources.template")}</span>
          <input value={template} onInput={(e) => setTemplate(e.currentTarget.value)} />
        </label>
        {kind === "hmac" && (
          <div class="form-row">
            <label class="grow">
              <span>{t("sources.header")}</span>
              <input required value={header} onInput={(e) => setHeader(e.currentTarget.value)} />
            </label>
            <label class="grow">
              <span>{t("sources.timeHeader")}</span>
              <input value={timeHeader} onInput={(e) => setTimeHeader(e.currentTarget.value)} />
            </label>
          </div>
        )}
        {error && <Problem error={error} />}
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
