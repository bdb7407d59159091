import { useState } from "preact/hooks";
import { type Action, ApiError, del, get, post, put, type Template } from "../api/client";
import { client } from "../app/commands";
import { go } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { FormDialog } from "../ui/FormDialog";
import { Glyph } from "../ui/icons";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useIdempotencyKey, useSending } from "../ui/useSending";
import { Definitions, REFRESH_MS } from "./Definitions";
import {
  bodyOf,
  changedStep,
  type Draft,
  draftOf,
  kindsAt,
  movedStep,
  newDraft,
  type TriggerKind,
  withoutStep,
  withStep,
} from "./templates";

export function TemplatesPart() {
  const templates = usePolling((signal) => get("/api/workflow-templates", { signal }), REFRESH_MS, "templates");
  const actions = usePolling((signal) => get("/api/workflow-actions", { signal }), REFRESH_MS, "actions");
  const [started, setStarted] = useState<Template | null>(null);
  return (
    <>
      <Definitions
        kind="templates"
        list={templates}
        command={client("templates put monthly-close --file template.yaml")}
        columns={[
          { title: t("events.column.template"), class: "cell-main", cell: (template) => <Name template={template} /> },
          { title: t("templates.column.steps"), isLabelled: true, cell: (template) => <Steps template={template} /> },
          {
            title: t("templates.column.trigger"),
            isLabelled: true,
            cell: (template) => template.steps[0] && t(`trigger.${template.steps[0].trigger_kind}`),
          },
        ]}
        idOf={(template) => template.id}
        nameOf={(template) => template.name}
        tools={(template) => (
          <button
            type="button"
            class="button quiet"
            aria-label={t("templates.start.label", { name: visible(template.name) })}
            onClick={() => setStarted(template)}
          >
            {t("templates.start")}
          </button>
        )}
        form={(template, onClose) => (
          <TemplateDialog
            draft={template ? draftOf(template) : newDraft()}
            actions={actions.value?.items ?? []}
            onClose={onClose}
            onSaved={templates.refresh}
          />
        )}
        remove={(template) =>
          del("/api/workflow-templates/{template_id}", {
            path: { template_id: template.id },
            headers: { "If-Match": template.updated_at },
          })
        }
      />
      {started && <StartTemplateDialog template={started} onClose={() => setStarted(null)} />}
    </>
  );
}

function Name({ template }: { template: Template }) {
  return (
    <>
      <span class="strong">{visible(template.name)}</span> <span class="dim mono">{visible(template.id)}</span>
    </>
  );
}

function Steps({ template }: { template: Template }) {
  return (
    <span class="steps-line">
      {template.steps.map((step, at) => (
        <span key={step.id}>
          {at > 0 && <Glyph name="chevron" size={10} />}
          <span class="tag">{visible(step.title ?? step.action)}</span>
        </span>
      ))}
    </span>
  );
}

function TemplateDialog({
  draft: start,
  actions,
  onClose,
  onSaved,
}: {
  draft: Draft;
  actions: readonly Action[];
  onClose: () => void;
  onSaved: () => Promise<void>;
}) {
  const [draft, setDraft] = useState(start);
  const { error, isBusy, send } = useSending();
  const change = (part: Partial<Draft>) => setDraft({ ...draft, ...part });
  const isLost = error instanceof ApiError && error.status === 409 && draft.updated_at !== null;

  async function save(ifMatch: string | null): Promise<void> {
    await put("/api/workflow-templates/{template_id}", {
      path: { template_id: draft.id.trim() },
      body: bodyOf(draft),
      ...(ifMatch ? { headers: { "If-Match": ifMatch } } : {}),
    });
    toast(t("templates.saved"));
    onClose();
    await onSaved();
  }

  async function loadTheirs(): Promise<void> {
    setDraft(draftOf(await get("/api/workflow-templates/{template_id}", { path: { template_id: draft.id } })));
  }

  return (
    <FormDialog
      title={start.updated_at === null ? t("templates.new") : t("templates.edit")}
      verb={t("action.save")}
      isBusy={isBusy}
      isWide
      onSubmit={() => send(() => save(draft.updated_at))}
      onClose={onClose}
    >
      <div class="form-row">
        <label>
          <span>{t("templates.id")}</span>
          <input
            required
            readOnly={start.updated_at !== null}
            value={draft.id}
            placeholder="monthly-close"
            onInput={(e) => change({ id: e.currentTarget.value })}
          />
        </label>
        <label>
          <span>{t("templates.name")}</span>
          <input required maxLength={80} value={draft.name} onInput={(e) => change({ name: e.currentTarget.value })} />
        </label>
      </div>
      <fieldset class="steps">
        <legend>{t("templates.column.steps")}</legend>
        <datalist id="known-actions">
          {actions.map((action) => (
            <option key={action.key} value={action.key} />
          ))}
        </datalist>
        <ol>
          {draft.steps.map((step, at) => (
            <li key={at}>
              <span class="step-number">{at + 1}</span>
              <label>
                <span>{t("templates.step.id")}</span>
                <input
                  required
                  value={step.id}
                  onInput={(e) => change({ steps: changedStep(draft.steps, at, { id: e.currentTarget.value }) })}
                />
              </label>
              <label>
                <span>{t("templates.step.action")}</span>
                <input
                  required
                  list="known-actions"
                  value={step.action}
                  onInput={(e) => change({ steps: changedStep(draft.steps, at, { action: e.currentTarget.value }) })}
                />
              </label>
              <label>
                <span>{t("templates.step.trigger")}</span>
                <select
                  value={step.trigger_kind}
                  onChange={(e) =>
                    change({
                      steps: changedStep(draft.steps, at, { trigger_kind: e.currentTarget.value as TriggerKind }),
                    })
                  }
                >
                  {kindsAt(at).map((kind) => (
                    <option key={kind} value={kind}>
                      {t(`trigger.${kind}`)}
                    </option>
                  ))}
                </select>
              </label>
              <label>
                <span>{t("templates.step.title")}</span>
                <input
                  maxLength={80}
                  value={step.title ?? ""}
                  onInput={(e) => change({ steps: changedStep(draft.steps, at, { title: e.currentTarget.value }) })}
                />
              </label>
              <span class="step-tools">
                <button
                  type="button"
                  class="icon-button"
                  disabled={at === 0}
                  aria-label={t("templates.step.up", { n: at + 1 })}
                  onClick={() => change({ steps: movedStep(draft.steps, at, -1) })}
                >
                  <Glyph name="up" />
                </button>
                <button
                  type="button"
                  class="icon-button"
                  disabled={at === draft.steps.length - 1}
                  aria-label={t("templates.step.down", { n: at + 1 })}
                  onClick={() => change({ steps: movedStep(draft.steps, at, 1) })}
                >
                  <Glyph name="down" />
                </button>
                <button
                  type="button"
                  class="icon-button danger"
                  disabled={draft.steps.length === 1}
                  aria-label={t("templates.step.remove", { n: at + 1 })}
                  onClick={() => change({ steps: withoutStep(draft.steps, at) })}
                >
                  <Glyph name="trash" />
                </button>
              </span>
            </li>
          ))}
        </ol>
        <button
          type="button"
          class="button quiet"
          disabled={draft.steps.length >= 30}
          onClick={() => change({ steps: withStep(draft.steps) })}
        >
          <Glyph name="plus" />
          {t("templates.step.add")}
        </button>
      </fieldset>
      <div class="form-row">
        <label>
          <span>{t("templates.year")}</span>
          <input
            type="number"
            min={2000}
            max={9999}
            value={draft.year}
            onInput={(e) => change({ year: e.currentTarget.value })}
          />
        </label>
        <label>
          <span>{t("templates.month")}</span>
          <input
            type="number"
            min={1}
            max={12}
            value={draft.month}
            onInput={(e) => change({ month: e.currentTarget.value })}
          />
        </label>
        <label class="grow">
          <span>{t("templates.url")}</span>
          <input
            maxLength={2000}
            value={draft.mfcloud_url}
            onInput={(e) => change({ mfcloud_url: e.currentTarget.value })}
          />
        </label>
      </div>
      <label>
        <span>{t("templates.when")}</span>
        <input
          class="mono"
          maxLength={1000}
          value={draft.when}
          placeholder={'event.ref == "refs/heads/main"'}
          onInput={(e) => change({ when: e.currentTarget.value })}
        />
      </label>
      <label>
        <span>{t("templates.notes")}</span>
        <textarea
          rows={2}
          maxLength={2000}
          value={draft.notes}
          onInput={(e) => change({ notes: e.currentTarget.value })}
        />
      </label>
      {error && !isLost && <Problem error={error} />}
      {isLost && (
        <div class="notice tone-warn conflict" role="alert">
          <p>{t("templates.conflict")}</p>
          <button type="button" class="button" onClick={() => send(loadTheirs)}>
            {t("templates.conflict.theirs")}
          </button>
          <button type="button" class="button danger" onClick={() => send(() => save(null))}>
            {t("templates.conflict.mine")}
          </button>
        </div>
      )}
    </FormDialog>
  );
}

function StartTemplateDialog({ template, onClose }: { template: Template; onClose: () => void }) {
  const [year, setYear] = useState(template.year ? String(template.year) : String(new Date().getFullYear()));
  const [month, setMonth] = useState(template.month ? String(template.month) : String(new Date().getMonth() + 1));
  const { error, isBusy, send } = useSending();
  const keyFor = useIdempotencyKey();

  async function start(): Promise<void> {
    const body = template.needs_month ? { year: Number(year), month: Number(month) } : {};
    const made = await post("/api/workflow-templates/{template_id}/start", {
      path: { template_id: template.id },
      body: { ...body, idempotency_key: keyFor(body)["Idempotency-Key"] ?? null },
    });
    toast(t("start.done"));
    onClose();
    go(made.execution_id ? ["executions", made.execution_id] : ["runs", made.run_id]);
  }

  return (
    <FormDialog
      title={t("templates.start.label", { name: visible(template.name) })}
      verb={t("start.do")}
      isBusy={isBusy}
      onSubmit={() => send(start)}
      onClose={onClose}
    >
      {template.needs_month && (
        <div class="form-row">
          <label>
            <span>{t("templates.year")}</span>
            <input
              type="number"
              required
              min={2000}
              max={9999}
              value={year}
              onInput={(e) => setYear(e.currentTarget.value)}
            />
          </label>
          <label>
            <span>{t("templates.month")}</span>
            <input
              type="number"
              required
              min={1}
              max={12}
              value={month}
              onInput={(e) => setMonth(e.currentTarget.value)}
            />
          </label>
        </div>
      )}
      {error && <Problem error={error} />}
    </FormDialog>
  );
}
