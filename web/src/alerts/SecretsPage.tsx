import { useState } from "preact/hooks";
import { del, get, put, type Schemas } from "../api/client";
import { visible } from "../format";
import { t } from "../i18n";
import { FormDialog } from "../ui/FormDialog";
import { AreaField, TextField } from "../ui/fields";
import { type PartOf, Parts } from "../ui/Parts";
import { placed } from "../ui/refusal";
import { Age, CopyButton, Problem } from "../ui/texts";
import { useSending } from "../ui/useSending";
import { NameField } from "./AlertsPage";
import { Named } from "./Named";

const PARTS: PartOf[] = [
  { path: "secrets", title: "secrets.secrets", Part: () => <Values kind="secrets" /> },
  { path: "variables", title: "secrets.variables", Part: () => <Values kind="variables" /> },
];

export function SecretsPage({ id }: { id?: string }) {
  return <Parts section="secrets" title="nav.secrets" parts={PARTS} {...(id ? { id } : {})} />;
}

type Kind = "secrets" | "variables";
type Value = Schemas["Secret"] & { value?: unknown };

/** How params name it. */
export function referenceTo(kind: Kind, name: string): string {
  return `\${${kind === "secrets" ? "secrets" : "vars"}.${name}}`;
}

/** Text that is no JSON is meant as text: nobody types quotes around an address. */
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

function Values({ kind }: { kind: Kind }) {
  return (
    <Named<Value>
      kind={kind}
      ask={(query, signal) => get(`/${kind}`, { query, signal })}
      columns={[
        { title: t("named.name"), class: "cell-main strong", cell: (one) => one.name },
        {
          title: t("secrets.value"),
          cell: (one) => (
            <span class="mono secret-value">{kind === "secrets" ? "•••" : visible(JSON.stringify(one.value))}</span>
          ),
        },
        {
          title: t("secrets.use"),
          cell: (one) => (
            <span class="secret-use">
              <code>{referenceTo(kind, one.name)}</code>
              <CopyButton text={() => referenceTo(kind, one.name)} label={t("copy.text")} />
            </span>
          ),
        },
        { title: t("runs.column.updated"), cell: (one) => <Age at={one.updated_at} /> },
      ]}
      form={(known, onSaved, onClose) => <ValueDialog kind={kind} known={known} onSaved={onSaved} onClose={onClose} />}
      remove={(name) => del(`/${kind}/{name}`, { path: { name } })}
    />
  );
}

function ValueDialog({
  kind,
  known,
  onSaved,
  onClose,
}: {
  kind: Kind;
  known: Value | null;
  onSaved: () => void;
  onClose: () => void;
}) {
  const [name, setName] = useState(known?.name ?? "");
  const [text, setText] = useState(kind === "variables" && known ? JSON.stringify(known.value, null, 2) : "");
  const { error, isBusy, send } = useSending();
  const { at, rest } = placed(error, ["value"]);
  const field = { label: t("secrets.value"), value: text, onChange: setText, problem: at("value") };

  async function save(): Promise<void> {
    const value = kind === "secrets" ? text : parsed(text);
    await put(`/${kind}/{name}`, { path: { name }, body: { value } });
    onClose();
    onSaved();
  }

  return (
    <FormDialog
      title={known ? visible(known.name) : t(`named.${kind}.new`)}
      verb={t("action.save")}
      isBusy={isBusy}
      autoComplete="off"
      onSubmit={() => send(save)}
      onClose={onClose}
    >
      <NameField value={name} onChange={setName} isKnown={known !== null} />
      {kind === "secrets" ? (
        <TextField {...field} type="password" required hint={t("sources.secret.never")} />
      ) : (
        <AreaField {...field} rows={5} hint={t("secrets.json")} />
      )}
      {rest && <Problem error={rest} />}
    </FormDialog>
  );
}
