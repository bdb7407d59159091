import { useState } from "preact/hooks";
import { type Limit, put } from "../api/client";
import { needsKey } from "../auth/session";
import { visible } from "../format";
import { t } from "../i18n";
import { FormDialog } from "../ui/FormDialog";
import { ChoiceField, TextField } from "../ui/fields";
import { placed } from "../ui/refusal";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";
import { definitionOf, type LimitTexts, MATCHES, ON_FULL, textsOf } from "./limit";

const FIELDS = [
  ...["description", "key", "max_running", "on_full", "max_waiting"],
  ...["rate.count", "rate.per_sec", "rate.burst"],
  ...MATCHES.map((name) => `match.${name}`),
];

/** `limit` null: a new one. */
export function LimitDialog({
  limit,
  onSaved,
  onClose,
}: {
  limit: Limit | null;
  onSaved: () => Promise<void>;
  onClose: () => void;
}) {
  const [texts, setTexts] = useState(() => textsOf(limit));
  const { error, isBusy, send } = useSending();
  const { at, rest } = placed(error, FIELDS);

  async function save(): Promise<void> {
    await put("/limits/{name}", { path: { name: texts.name }, body: definitionOf(texts) });
    toast(t("limit.saved"));
    await onSaved();
    onClose();
  }

  const text = (name: keyof LimitTexts, field: string = name) => ({
    value: texts[name],
    onChange: (value: string) => setTexts({ ...texts, [name]: value }),
    problem: at(field),
  });
  const number = { type: "number", step: "any" } as const;
  return (
    <FormDialog
      title={limit ? t("limit.edit.title", { limit: visible(limit.name) }) : t("limits.new")}
      verb={t("action.save")}
      isBusy={isBusy}
      isWide
      onSubmit={() => send(save)}
      onClose={onClose}
    >
      <div class="form-row">
        <TextField
          label={t("limit.name")}
          {...text("name")}
          required
          readOnly={limit !== null}
          autoFocus={limit === null}
          pattern="[A-Za-z0-9_\-]{1,64}"
          hint={t("limit.name.hint")}
        />
        <TextField label={t("flow.description")} {...text("description")} />
      </div>
      <fieldset class="steps">
        <legend>{t("limit.match")}</legend>
        <div class="form-row">
          {MATCHES.filter((name) => name !== "tenant" || needsKey || texts.tenant !== "").map((name) => (
            <TextField
              key={name}
              label={t(`limit.match.${name}`)}
              {...text(name, `match.${name}`)}
              placeholder={t("limit.match.any")}
            />
          ))}
        </div>
      </fieldset>
      <TextField label={t("limit.key")} hint={t("limit.key.hint")} {...text("key")} class="mono" />
      <div class="form-row">
        <TextField label={t("limit.maxRunning")} {...text("max_running")} {...number} />
        <TextField label={t("limit.rate.count")} {...text("count", "rate.count")} {...number} />
        <TextField label={t("limit.rate.perSec")} {...text("per_sec", "rate.per_sec")} {...number} />
        <TextField label={t("limit.rate.burst")} {...text("burst", "rate.burst")} {...number} />
      </div>
      <div class="form-row">
        <ChoiceField
          label={t("limits.column.onFull")}
          {...text("on_full")}
          choices={ON_FULL.map((value) => ({ value, text: t(`limit.onFull.${value}`) }))}
        />
        <TextField label={t("limit.maxWaiting")} {...text("max_waiting")} {...number} />
      </div>
      {rest && <Problem error={rest} />}
    </FormDialog>
  );
}
