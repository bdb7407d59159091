import { useEffect, useState } from "preact/hooks";
import { post, put, type Schedule, type Schemas } from "../api/client";
import { PRIORITIES } from "../flows/flow";
import { visible } from "../format";
import { language, t } from "../i18n";
import { FormDialog } from "../ui/FormDialog";
import { AreaField, ChoiceField, TextField } from "../ui/fields";
import { placed } from "../ui/refusal";
import { Problem, ZonedTime } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";
import { CATCH_UPS, definitionOf, inputField, KINDS, OVERLAPS, type ScheduleTexts, textsOf, timingOf } from "./form";
import { interval, whenOf } from "./when";

const TIMING = ["cron", "every_sec", "timezone", "starts_at", "ends_at"];
/** Behind a summary, which is opened where one of them is wrong. */
const MORE = [
  ...["overlap", "catch_up", "catch_up_window_sec", "jitter_sec", "pause_after_failures"],
  ...["target.priority", "target.timeout_sec", "target.retry.max_attempts", "target.retry.backoff_sec"],
];
const TARGET = ["flow", "graph", "template", "params", "input", "data", "tag"].map((name) => `target.${name}`);
const FIELDS = [...TIMING, ...MORE, ...TARGET, "description"];
const INPUTS = { flow: "submit.params", graph: "start.input", template: "schedule.input.template" } as const;
const ZONES = ["UTC", ...Intl.supportedValuesOf("timeZone")];
const OWN_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** `schedule` null: a new one. */
export function ScheduleDialog({
  schedule,
  onSaved,
  onClose,
}: {
  schedule: Schedule | null;
  onSaved: (id: string) => unknown;
  onClose: () => void;
}) {
  const [texts, setTexts] = useState(() => textsOf(schedule, OWN_ZONE));
  const [badInput, setBadInput] = useState<string | undefined>();
  const { error, isBusy, send } = useSending();
  const preview = usePreview(texts, schedule);
  const refused = placed(error, FIELDS);
  const early = placed(preview.error, TIMING);

  async function save(): Promise<void> {
    const body = read();
    if (body === null) return;
    await put("/schedules/{schedule_id}", { path: { schedule_id: texts.id }, body });
    toast(t("schedule.saved"));
    await onSaved(texts.id);
    onClose();
  }

  function read() {
    try {
      setBadInput(undefined);
      return definitionOf(texts, schedule, t("submit.notObject"));
    } catch (problem) {
      setBadInput((problem as Error).message);
      return null;
    }
  }

  const text = <N extends keyof ScheduleTexts>(name: N, field: string = name) => ({
    value: texts[name] as string,
    onChange: (value: string) => setTexts({ ...texts, [name]: value }),
    problem: early.at(field) ?? refused.at(field),
  });
  const seconds = { type: "number", min: 0, step: "any" } as const;
  const time = { type: "datetime-local", step: 1, hint: t("schedule.ownTime", { zone: OWN_ZONE }) } as const;
  const window = interval(Number(texts.catch_up_window_sec) || 86_400, language.value);
  return (
    <FormDialog
      title={schedule ? t("templates.edit.label", { name: visible(schedule.id) }) : t("schedules.new")}
      verb={t("action.save")}
      isBusy={isBusy}
      isWide
      onSubmit={() => send(save)}
      onClose={onClose}
    >
      <div class="form-row">
        <TextField
          label={t("limit.name")}
          {...text("id")}
          required
          readOnly={schedule !== null}
          autoFocus={schedule === null}
          pattern="[A-Za-z0-9_\-]{1,64}"
          hint={t("limit.name.hint")}
        />
        <TextField label={t("flow.description")} {...text("description")} />
      </div>
      <fieldset class="steps">
        <legend>{t("schedule.target")}</legend>
        <div class="form-row">
          <ChoiceField
            label={t("alerts.type")}
            {...text("kind")}
            choices={KINDS.map((value) => ({ value, text: t(`schedule.target.${value}`) }))}
          />
          <TextField label={t("named.name")} {...text("name", `target.${texts.kind}`)} required />
          {texts.kind === "flow" && <TextField label={t("submit.tag")} {...text("tag", "target.tag")} />}
        </div>
        <AreaField
          label={t(INPUTS[texts.kind])}
          rows={3}
          {...text("input", inputField(texts.kind))}
          {...(badInput ? { problem: badInput } : {})}
        />
      </fieldset>
      <fieldset class="steps">
        <legend>{t("schedules.column.when")}</legend>
        <div class="form-row">
          <ChoiceField
            label={t("schedule.rhythm")}
            {...text("rhythm")}
            choices={[
              { value: "cron", text: t("schedule.rhythm.cron") },
              { value: "every", text: t("schedule.rhythm.every") },
            ]}
          />
          {texts.rhythm === "cron" ? (
            <TextField label="cron" {...text("cron")} required class="mono" hint={t("schedule.cron.hint")} />
          ) : (
            <TextField label={t("schedule.every")} {...text("every_sec")} {...seconds} required />
          )}
          <TextField label={t("schedule.zone")} {...text("timezone")} required list="zones" />
          <datalist id="zones">
            {ZONES.map((zone) => (
              <option key={zone} value={zone} />
            ))}
          </datalist>
        </div>
        <div class="form-row">
          <TextField label={t("schedule.from")} {...text("starts_at")} {...time} />
          <TextField label={t("schedule.until")} {...text("ends_at")} {...time} />
        </div>
        <NextTicks texts={texts} found={preview.found} error={early.rest} />
      </fieldset>
      <details class="more-fields" open={MORE.some(refused.at) || undefined}>
        <summary>{t("schedule.more")}</summary>
        <div class="form-row">
          <ChoiceField
            label={t("schedule.overlap")}
            {...text("overlap")}
            choices={OVERLAPS.map((value) => ({ value, text: t(`schedule.overlap.${value}`) }))}
          />
          <ChoiceField
            label={t("schedule.catchUp")}
            {...text("catch_up")}
            choices={CATCH_UPS.map((value) => ({ value, text: t(`schedule.catchUp.${value}`, { window }) }))}
          />
        </div>
        <div class="form-row">
          <TextField label={t("schedule.window")} {...text("catch_up_window_sec")} {...seconds} />
          <TextField label={t("schedule.jitter.sec")} {...text("jitter_sec")} {...seconds} />
          <TextField label={t("schedule.pauseAfter")} {...text("pause_after_failures")} {...seconds} step={1} />
        </div>
        {texts.kind === "flow" && (
          <div class="form-row">
            <ChoiceField
              label={t("flow.priority")}
              {...text("priority", "target.priority")}
              choices={[
                { value: "", text: t("flow.default") },
                ...PRIORITIES.map((value) => ({ value, text: t(`priority.${value}`) })),
              ]}
            />
            <TextField label={t("flow.timeout")} {...text("timeout_sec", "target.timeout_sec")} {...seconds} />
            <TextField
              label={t("flow.attempts")}
              {...text("max_attempts", "target.retry.max_attempts")}
              {...seconds}
              step={1}
            />
            <TextField label={t("flow.backoff")} {...text("backoff_sec", "target.retry.backoff_sec")} {...seconds} />
          </div>
        )}
      </details>
      {refused.rest && <Problem error={refused.rest} />}
    </FormDialog>
  );
}

interface Preview {
  found: Schemas["SchedulePreview"] | null;
  error: Error | null;
}

const TYPING_MS = 250;
const PREVIEWED = 5;

/** The next ticks of what is typed. The last ones stay until the server has answered. */
function usePreview(texts: ScheduleTexts, schedule: Schedule | null): Preview {
  const [preview, setPreview] = useState<Preview>({ found: null, error: null });
  const wanted = JSON.stringify({ ...timingOf(texts, schedule), target: { flow: "preview" } });
  useEffect(() => {
    const leaving = new AbortController();
    const { signal } = leaving;
    const timer = setTimeout(() => {
      const text = { content: wanted, type: "application/json" };
      post("/schedules/preview", { query: { n: PREVIEWED }, text, signal }).then(
        (found) => setPreview({ found, error: null }),
        (error) => signal.aborted || setPreview({ found: null, error }),
      );
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      leaving.abort();
    };
  }, [wanted]);
  return preview;
}

function NextTicks({ texts, found, error }: { texts: ScheduleTexts; found: Preview["found"]; error: Error | null }) {
  const isCron = texts.rhythm === "cron";
  const words = whenOf(
    { cron: isCron ? texts.cron : null, every_sec: isCron ? null : Number(texts.every_sec) || null },
    language.value,
  );
  return (
    <section class="form-preview" aria-label={t("schedule.preview")} aria-live="polite">
      <h3>
        {t("schedule.preview")}
        {found && words && ` · ${t(words.key, words.values)}`}
      </h3>
      {error && <Problem error={error} />}
      {found?.items.length === 0 && <p class="dim">{t("schedule.preview.none")}</p>}
      <ol>
        {found?.items.map(({ due_at }) => (
          <li key={due_at}>
            <ZonedTime at={due_at} zone={found.timezone} />
          </li>
        ))}
      </ol>
    </section>
  );
}
