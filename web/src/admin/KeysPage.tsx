import { useState } from "preact/hooks";
import { del, get, post, type Schemas } from "../api/client";
import { now } from "../app/clock";
import { apiKey, needsKey } from "../auth/session";
import { visible } from "../format";
import { t } from "../i18n";
import { usePages } from "../live/usePages";
import { Act } from "../ui/Act";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { DataTable, Listed } from "../ui/DataTable";
import { Dialog } from "../ui/Dialog";
import { FormDialog } from "../ui/FormDialog";
import { ChoiceField, TextField } from "../ui/fields";
import { placed } from "../ui/refusal";
import { Status } from "../ui/Status";
import { Age, Command, Empty, Moment, Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";
import { type ApiKey, bodyOf, isScope, keyIdOf, LIVES, SCOPES, type Scope, standingOf } from "./keys";

const REFRESH_MS = 5000;

export function KeysPage() {
  return (
    <>
      {needsKey ? (
        <Keys />
      ) : (
        <>
          <header class="page-head">
            <h1>{t("nav.keys")}</h1>
          </header>
          <Empty title={t("keys.off.title")}>
            <p>{t("keys.off.lead")}</p>
            <Command text="PYOCO_HTTP_AUTH_MODE=api_key pyoco-server up" />
            <p>{t("keys.off.first")}</p>
            <Command text="pyoco-server-admin api-key create --tenant team-a --scopes read,submit,operate,deploy,admin" />
          </Empty>
        </>
      )}
    </>
  );
}

function Keys() {
  const pages = usePages<ApiKey>(
    "keys",
    (query, signal) => get("/api-keys", { query, signal }),
    (one) => one.key_id,
    REFRESH_MS,
  );
  const [isMaking, setMaking] = useState(false);
  const [revoked, setRevoked] = useState<ApiKey | null>(null);

  async function revoke(key: ApiKey): Promise<void> {
    await del("/api-keys/{key_id}", { path: { key_id: key.key_id } });
    toast(t("keys.revoke.done"));
    await pages.refresh();
  }

  return (
    <>
      <header class="page-head">
        <h1>{t("nav.keys")}</h1>
        {pages.isLoaded && (
          <div class="actions">
            <Act icon="plus" kind="primary" onClick={() => setMaking(true)}>
              {t("keys.new")}
            </Act>
          </div>
        )}
      </header>
      <p class="lead">{t("keys.lead")}</p>
      <Listed pages={pages} none={null}>
        <KeyTable rows={pages.rows} onRevoke={setRevoked} />
      </Listed>
      {isMaking && <CreateDialog onMade={pages.refresh} onClose={() => setMaking(false)} />}
      {revoked && (
        <ConfirmDialog
          title={t("keys.revoke.title", { key: nameOf(revoked) })}
          lead={t(isOwn(revoked) ? "keys.revoke.own" : "keys.revoke.lead")}
          verb={t("keys.revoke")}
          onConfirm={() => revoke(revoked)}
          onClose={() => setRevoked(null)}
        />
      )}
    </>
  );
}

function nameOf(key: ApiKey): string {
  return visible(key.description ?? key.key_id);
}

function isOwn(key: ApiKey): boolean {
  return keyIdOf(apiKey.value) === key.key_id;
}

function KeyTable({ rows, onRevoke }: { rows: readonly ApiKey[]; onRevoke: (key: ApiKey) => void }) {
  const standing = (key: ApiKey) => standingOf(key, now.value);
  return (
    <DataTable
      name="api-keys"
      rows={rows}
      keyOf={(one) => one.key_id}
      look={(one) => (standing(one) === "VALID" ? "" : "is-hidden")}
      columns={[
        { title: t("runs.column.status"), class: "cell-status", cell: (one) => <Status state={standing(one)} /> },
        {
          title: t("keys.column.key"),
          class: "cell-main",
          cell: (one) => (
            <>
              <bdi class="strong">{visible(one.description ?? t("keys.unnamed"))}</bdi>{" "}
              {isOwn(one) && <span class="tag">{t("keys.own")}</span>}
              <span class="row-reason mono">{visible(one.key_id)}</span>
            </>
          ),
        },
        {
          title: t("keys.column.scopes"),
          cell: (one) => (
            <span class="tags">
              {one.scopes.map((scope) => (
                <span key={scope} class="tag" title={isScope(scope) ? t(`keys.scope.${scope}`) : scope}>
                  {visible(scope)}
                </span>
              ))}
            </span>
          ),
        },
        {
          title: t("keys.column.used"),
          cell: (one) => (one.last_used_at ? <Age at={one.last_used_at} /> : t("keys.never")),
        },
        {
          title: t("keys.column.expires"),
          cell: (one) => (one.expires_at ? <Moment at={one.expires_at} /> : t("keys.noEnd")),
        },
        { title: t("keys.column.created"), cell: (one) => <Age at={one.created_at} /> },
        {
          title: t("keys.revoke"),
          isSilent: true,
          class: "cell-actions",
          cell: (one) =>
            one.revoked_at == null && (
              <Act
                kind="icon"
                icon="trash"
                label={t("keys.revoke.label", { key: nameOf(one) })}
                onClick={() => onRevoke(one)}
              />
            ),
        },
      ]}
    />
  );
}

function CreateDialog({ onMade, onClose }: { onMade: () => Promise<void>; onClose: () => void }) {
  const [scopes, setScopes] = useState<readonly Scope[]>(["read"]);
  const [days, setDays] = useState("90");
  const [description, setDescription] = useState("");
  const [made, setMade] = useState<Schemas["IssuedApiKey"] | null>(null);
  const { error, isBusy, send } = useSending();
  const { at, rest } = placed(error, ["scopes", "expires_at", "description"]);

  async function create(): Promise<void> {
    const body = bodyOf({ scopes, days: Number(days), description }, now.value);
    setMade(await post("/api-keys", { body }));
    await onMade();
  }

  function toggle(scope: Scope): void {
    setScopes(SCOPES.filter((one) => scopes.includes(one) !== (one === scope)));
  }

  if (made)
    return <MadeDialog title={t("keys.made.title")} lead={t("keys.made.lead")} text={made.api_key} onClose={onClose} />;
  return (
    <FormDialog
      title={t("keys.new")}
      verb={t("keys.create")}
      isBusy={isBusy || scopes.length === 0}
      onSubmit={() => send(create)}
      onClose={onClose}
    >
      <TextField
        label={t("keys.description")}
        hint={t("keys.description.hint")}
        value={description}
        onChange={setDescription}
        problem={at("description")}
        maxLength={200}
        autoFocus
      />
      <fieldset class="scopes">
        <legend>{t("keys.column.scopes")}</legend>
        {SCOPES.map((scope) => (
          <label key={scope} class="inline">
            <input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} />
            <span>
              <code>{scope}</code> {t(`keys.scope.${scope}`)}
            </span>
          </label>
        ))}
      </fieldset>
      <ChoiceField
        label={t("keys.column.expires")}
        value={days}
        onChange={setDays}
        problem={at("expires_at")}
        choices={LIVES.map((one) => ({
          value: String(one),
          text: one === 0 ? t("keys.noEnd") : t("keys.inDays", { n: one }),
        }))}
      />
      {(rest || at("scopes")) && <Problem error={error!} />}
    </FormDialog>
  );
}

/** The server keeps a hash only: this is the one time that the key can be seen. */
export function MadeDialog({
  title,
  lead,
  text,
  onClose,
}: {
  title: string;
  lead: string;
  text: string;
  onClose: () => void;
}) {
  return (
    <Dialog title={title} onClose={onClose} isSticky>
      <div class="form">
        <p>{lead}</p>
        <Command text={text} />
        <footer>
          <button type="button" class="button primary" onClick={onClose}>
            {t("keys.made.done")}
          </button>
        </footer>
      </div>
    </Dialog>
  );
}
