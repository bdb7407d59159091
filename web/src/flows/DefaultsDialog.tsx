import { useState } from "preact/hooks";
import { type FlowDetails, put } from "../api/client";
import { visible } from "../format";
import { t } from "../i18n";
import { FormDialog } from "../ui/FormDialog";
import { AreaField, ChoiceField, TextField } from "../ui/fields";
import { placed } from "../ui/refusal";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";
import { type DefaultTexts, defaultsOf, PRIORITIES, textsOf } from "./flow";

const FIELDS = [
  "description",
  "owner",
  "priority",
  "timeout_sec",
  "start_within_sec",
  "retry.max_attempts",
  "retry.backoff_sec",
  "params_schema",
];

/** Defaults for the runs of a flow. */
export function DefaultsDialog({
  flow,
  onSaved,
  onClose,
}: {
  flow: FlowDetails;
  onSaved: () => Promise<void>;
  onClose: () => void;
}) {
  const [texts, setTexts] = useState(() => textsOf(flow));
  const [badSchema, setBadSchema] = useState<string | undefined>();
  const { error, isBusy, send } = useSending();
  const { at, rest } = placed(error, FIELDS);

  async function save(): Promise<void> {
    const body = read();
    if (body === null) return;
    await put("/flows/{name}", { path: { name: flow.name }, body });
    toast(t("flow.edit.done"));
    await onSaved();
    onClose();
  }

  function read() {
    try {
      setBadSchema(undefined);
      return defaultsOf(texts, flow);
    } catch (problem) {
      setBadSchema((problem as Error).message);
      return null;
    }
  }

  const text = (name: keyof DefaultTexts) => ({
    value: texts[name],
    onChange: (value: string) => setTexts({ ...texts, [name]: value }),
  });
  const number = { type: "number", min: 0, step: "any" } as const;
  return (
    <FormDialog
      title={t("flow.edit.title", { flow: visible(flow.name) })}
      verb={t("action.save")}
      isBusy={isBusy}
      isWide
      onSubmit={() => send(save)}
      onClose={onClose}
    >
      <p class="dim">{t("flow.edit.lead")}</p>
      <TextField label={t("flow.description")} {...text("description")} problem={at("description")} autoFocus />
      <div class="form-row">
        <TextField label={t("flow.owner")} {...text("owner")} problem={at("owner")} />
        <ChoiceField
          label={t("flow.priority")}
          {...text("priority")}
          problem={at("priority")}
          choices={[
            { value: "", text: t("flow.default") },
            ...PRIORITIES.map((value) => ({ value, text: t(`priority.${value}`) })),
          ]}
        />
      </div>
      <div class="form-row">
        <TextField label={t("flow.timeout")} {...text("timeout_sec")} {...number} problem={at("timeout_sec")} />
        <TextField
          label={t("flow.startWithin")}
          {...text("start_within_sec")}
          {...number}
          problem={at("start_within_sec")}
        />
        <TextField
          label={t("flow.attempts")}
          {...text("max_attempts")}
          {...number}
          step={1}
          problem={at("retry.max_attempts")}
        />
        <TextField label={t("flow.backoff")} {...text("backoff_sec")} {...number} problem={at("retry.backoff_sec")} />
      </div>
      <AreaField
        label={t("flow.schema.json")}
        hint={t("flow.schema.hint")}
        {...text("params_schema")}
        rows={8}
        problem={badSchema ?? at("params_schema")}
      />
      {rest && <Problem error={rest} />}
    </FormDialog>
  );
}
