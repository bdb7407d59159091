import { useState } from "preact/hooks";
import { del, get, put, type Source } from "../api/client";
import { visible } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { FormDialog } from "../ui/FormDialog";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";
import { Definitions, REFRESH_MS } from "./Definitions";

const KINDS = ["standard", "github", "stripe", "hmac"] as const;

/** Who may send signed events. Secrets go in and never come out. */
export function SourcesPart() {
  const sources = usePolling((signal) => get("/api/workflow-sources", { signal }), REFRESH_MS, "sources");
  return (
    <Definitions
      kind="sources"
      list={sources}
      command={`curl -X PUT ${location.origin}/api/workflow-sources/github -H 'Content-Type: application/json' -d '{"kind": "github", "secrets": ["…"]}'`}
      columns={[
        { title: t("sources.column.source"), class: "cell-main strong", cell: (source) => visible(source.id) },
        { title: t("sources.column.kind"), isLabelled: true, cell: (source) => t(`sources.kind.${source.kind}`) },
        {
          title: t("sources.column.secrets"),
          isLabelled: true,
          cell: (source) => <span class="tag">{t("sources.secrets", { n: source.secrets })}</span>,
        },
        { title: t("events.column.template"), isLabelled: true, cell: (source) => visible(source.template_id ?? "–") },
        {
          title: t("sources.column.address"),
          class: "dim",
          cell: (source) => <span class="mono">{visible(source.events_path)}</span>,
        },
      ]}
      idOf={(source) => source.id}
      nameOf={(source) => source.id}
      form={(source, onClose) => <SourceDialog source={source} onClose={onClose} onSaved={sources.refresh} />}
      remove={(source) => del("/api/workflow-sources/{source_id}", { path: { source_id: source.id } })}
    />
  );
}

function SourceDialog({
  source,
  onClose,
  onSaved,
}: {
  source: Source | null;
  onClose: () => void;
  onSaved: () => Promise<void>;
}) {
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
      ...(source && kind === "github" ? { key_of: source.key_of } : {}),
      ...(kind === "hmac" ? { signature_header: header.trim(), timestamp_header: timeHeader.trim() || null } : {}),
    };
    await put("/api/workflow-sources/{source_id}", { path: { source_id: id.trim() }, body });
    toast(t("sources.saved"));
    onClose();
    await onSaved();
  }

  return (
    <FormDialog
      title={source ? t("sources.edit") : t("sources.new")}
      verb={t("action.save")}
      isBusy={isBusy}
      autoComplete="off"
      onSubmit={() => send(save)}
      onClose={onClose}
    >
      <div class="form-row">
        <label class="grow">
          <span>{t("sources.id")}</span>
          <input
            required
            readOnly={source !== null}
            value={id}
            placeholder="github"
            onInput={(e) => setId(e.currentTarget.value)}
          />
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
    </FormDialog>
  );
}
