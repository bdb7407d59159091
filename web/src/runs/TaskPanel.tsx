import type { Run } from "../api/client";
import { visible } from "../format";
import { t } from "../i18n";
import { Glyph } from "../ui/icons";
import { JsonValue } from "../ui/JsonValue";
import { Status } from "../ui/Status";
import { Moment, Plain, Took } from "../ui/texts";

/** One task: its times, what went in, what came out. */
export function TaskPanel({
  run,
  task,
  onClose,
  onLogs,
}: {
  run: Run;
  task: string;
  onClose: () => void;
  onLogs: () => void;
}) {
  const record = run.task_records?.[task];
  const state = run.tasks[task] ?? "PENDING";
  return (
    <section class="panel task" aria-label={visible(task)}>
      <header class="panel-head">
        <h2>
          <Plain text={task} />
        </h2>
        <Status state={state} />
        {run.kept_tasks?.includes(task) && <span class="tag">{t("task.kept")}</span>}
        <button type="button" class="button quiet" onClick={onLogs}>
          {t("task.logs")}
        </button>
        <button type="button" class="icon-button" aria-label={t("task.close")} onClick={onClose}>
          <Glyph name="close" />
        </button>
      </header>
      <dl class="facts">
        <div>
          <dt>{t("task.duration")}</dt>
          <dd class="strong">
            <Took from={record?.started_at} to={record?.ended_at ?? run.end_time} />
          </dd>
        </div>
        <div>
          <dt>{t("task.started")}</dt>
          <dd>
            <Moment at={record?.started_at} />
          </dd>
        </div>
        <div>
          <dt>{t("task.ended")}</dt>
          <dd>
            <Moment at={record?.ended_at} />
          </dd>
        </div>
      </dl>
      {record?.error && <pre class="error-text">{visible(record.error)}</pre>}
      {record?.traceback && (
        <pre tabIndex={0} aria-label={t("run.traceback")}>
          {visible(record.traceback)}
        </pre>
      )}
      <div class="task-values">
        <Value label={t("task.inputs")} value={record?.inputs} />
        <Value label={t("task.output")} value={record?.output} />
        <Value label={t("task.artifacts")} value={record?.artifacts} />
      </div>
    </section>
  );
}

function Value({ label, value }: { label: string; value: unknown }) {
  if (value == null || (typeof value === "object" && Object.keys(value).length === 0)) return null;
  return (
    <div>
      <h3>{label}</h3>
      <JsonValue value={value} label={label} />
    </div>
  );
}
