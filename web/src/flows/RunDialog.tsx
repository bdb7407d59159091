import { useEffect, useState } from "preact/hooks";
import { type FlowDetails, get, type Json, post } from "../api/client";
import { go } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { readParams } from "../runs/submission";
import { FormDialog } from "../ui/FormDialog";
import { AreaField, ChoiceField, TextField } from "../ui/fields";
import { placed } from "../ui/refusal";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useIdempotencyKey, useSending } from "../ui/useSending";
import { formLike, formOf, others, type ParamField, type Params, readFields, startOf } from "./params";

type Texts = { [name: string]: string };

/** Starts a run: with a field per param where they are known, else with JSON. */
export function RunDialog({ flow, last, onClose }: { flow: FlowDetails; last: string | null; onClose: () => void }) {
  const params = useLastParams(last);
  if (params === null) return null;
  return <Form flow={flow} last={params} onClose={onClose} />;
}

/** Of the newest run; null until they are known. */
function useLastParams(run_id: string | null): Params | null {
  const [params, setParams] = useState<Params | null>(run_id === null ? {} : null);
  useEffect(() => {
    if (run_id === null) return;
    get("/runs/{run_id}", { path: { run_id } }).then(
      (run) => setParams((run.params ?? {}) as Params),
      // They are only a start: the run may have expired.
      () => setParams({}),
    );
  }, []);
  return params;
}

function Form({ flow, last, onClose }: { flow: FlowDetails; last: Params; onClose: () => void }) {
  const form = formOf(flow.params_schema) ?? formLike(last);
  const [asJson, setAsJson] = useState(form === null);
  const [texts, setTexts] = useState<Texts>(() => (form ? startOf(form, flow.params_schema, last) : {}));
  const [json, setJson] = useState(() => JSON.stringify(form?.isOpen ? others(form, last) : {}, null, 2));
  const [tag, setTag] = useState("");
  const [unread, setUnread] = useState<ReadonlyMap<string, string>>(new Map());
  const { error, isBusy, send } = useSending();
  const keyFor = useIdempotencyKey();
  const refused = placed(error, form && !asJson ? form.fields.map((field) => `params.${field.name}`) : []);

  function rest(): Params {
    try {
      return readParams(json, t("submit.notObject"));
    } catch (problem) {
      throw new Error(t("submit.badJson", { reason: (problem as Error).message }));
    }
  }

  /** Null: something cannot be read, and is marked. */
  function read(): Params | null {
    if (form === null || asJson) return rest();
    const { params, problems } = readFields(form, texts);
    setUnread(problems);
    return problems.size > 0 ? null : { ...(form.isOpen ? rest() : {}), ...params };
  }

  async function submit(): Promise<void> {
    const params = read();
    if (params === null) return;
    const body = { flow_name: flow.name, params, ...(tag ? { tag } : {}) };
    const answer = await post("/runs", { body, headers: keyFor(body) });
    toast(t("submit.done"));
    onClose();
    go(["runs", answer.run_id]);
  }

  function showJson(): void {
    const params = form ? readFields(form, texts).params : {};
    setJson(JSON.stringify({ ...(form?.isOpen ? safely(rest) : {}), ...params }, null, 2));
    setAsJson(true);
  }

  return (
    <FormDialog
      title={t("flow.run.title", { flow: visible(flow.name) })}
      verb={t("submit.do")}
      isBusy={isBusy}
      onSubmit={() => send(submit)}
      onClose={onClose}
    >
      {form && !asJson && (
        <>
          {form.fields.map((field) => (
            <Param
              key={field.name}
              field={field}
              value={texts[field.name] ?? ""}
              problem={unread.get(field.name) ?? refused.at(`params.${field.name}`)}
              onChange={(text) => setTexts({ ...texts, [field.name]: text })}
            />
          ))}
          {form.isOpen && <AreaField label={t("flow.run.others")} rows={2} value={json} onChange={setJson} />}
          <button type="button" class="button quiet" onClick={showJson}>
            {t("flow.run.asJson")}
          </button>
        </>
      )}
      {(form === null || asJson) && <AreaField label={t("submit.params")} rows={10} value={json} onChange={setJson} />}
      {flow.tags.length > 1 && (
        <ChoiceField
          label={t("submit.tag")}
          value={tag}
          onChange={setTag}
          choices={[{ value: "", text: t("flow.default") }, ...flow.tags.map((value) => ({ value, text: value }))]}
        />
      )}
      {refused.rest && <Problem error={refused.rest} />}
    </FormDialog>
  );
}

function safely(read: () => Params): Params {
  try {
    return read();
  } catch {
    return {}; // what cannot be read cannot be kept either
  }
}

function Param({
  field,
  value,
  problem,
  onChange,
}: {
  field: ParamField;
  value: string;
  problem: string | undefined;
  onChange: (text: string) => void;
}) {
  const shared = {
    label: field.isRequired ? `${visible(field.name)} *` : visible(field.name),
    hint: field.hint || undefined,
    value,
    problem,
    onChange,
  };
  if (field.kind === "choice") return <ChoiceField {...shared} choices={choices(field)} />;
  if (field.kind === "json") return <AreaField {...shared} rows={3} />;
  const isNumber = field.kind === "integer" || field.kind === "number";
  return (
    <TextField
      {...shared}
      type={isNumber ? "number" : field.kind === "date" ? "date" : "text"}
      required={field.isRequired && isNumber}
      {...(isNumber ? { step: field.kind === "integer" ? 1 : ("any" as const) } : {})}
    />
  );
}

function choices(field: ParamField): { value: string; text: string }[] {
  const text = (value: Json) => (typeof value === "string" ? visible(value) : JSON.stringify(value));
  const found = field.choices.map((value) => ({ value: JSON.stringify(value), text: text(value) }));
  return field.isRequired ? found : [{ value: "", text: t("flow.default") }, ...found];
}
