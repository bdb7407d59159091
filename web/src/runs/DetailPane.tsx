import type { ComponentChildren } from "preact";
import type { LogLine, Run } from "../api/client";
import { place, refine } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { Glyph } from "../ui/icons";
import { JsonValue } from "../ui/JsonValue";
import { Status } from "../ui/Status";
import { Moment, Plain, Took } from "../ui/texts";
import { ArtifactsPart } from "./ArtifactsPart";
import { problemOf, shownTab, tabsOf } from "./detail";
import { ErrorPart } from "./ErrorPart";
import { LogView } from "./LogView";
import { ofTask } from "./logs";
import { isEnded } from "./useRun";

/** Log, input, output, artifacts and error of a task, or of the whole run. */
export function DetailPane({ run, task, lines }: { run: Run; task: string | null; lines: readonly LogLine[] }) {
  const problem = problemOf(run, task);
  const artifacts = (run.artifacts ?? []).filter((one) => task === null || one.task === task);
  const tabs = tabsOf(problem !== null, artifacts.length > 0);
  const tab = shownTab(place.value.query.tab, tabs);
  const name = task === null ? t("run.whole") : visible(task);
  return (
    <section class="panel task" aria-label={name}>
      <header class="panel-head">
        <h2>{task === null ? t("run.whole") : <Plain text={task} />}</h2>
        {task !== null && <TaskFacts run={run} task={task} />}
      </header>
      <div class="tabs detail-tabs" role="group" aria-label={t("run.detail")}>
        {tabs.map((one) => (
          <button
            key={one}
            type="button"
            aria-pressed={one === tab}
            class={one === "error" ? "tone-bad" : undefined}
            onClick={() => refine({ ...place.value.query, tab: one })}
          >
            {t(`run.tab.${one}`)}
            {one === "artifacts" && <span class="count"> {artifacts.length}</span>}
          </button>
        ))}
      </div>
      {tab === "log" && (
        <LogView
          key={task}
          lines={ofTask(lines, task)}
          withTask={task === null}
          name={[run.flow_name, run.run_id, ...(task === null ? [] : [task])].join("-")}
        />
      )}
      {tab === "error" && problem && <ErrorPart problem={problem} run={run} />}
      {tab === "input" && <Input run={run} task={task} />}
      {tab === "output" && <Output run={run} task={task} />}
      {tab === "artifacts" && <ArtifactsPart run={run} artifacts={artifacts} />}
    </section>
  );
}

function TaskFacts({ run, task }: { run: Run; task: string }) {
  const record = run.task_records?.[task];
  return (
    <>
      <Status state={run.tasks[task] ?? "PENDING"} />
      {run.kept_tasks?.includes(task) && <span class="tag">{t("task.kept")}</span>}
      {record?.started_at != null && (
        <span class="dim task-when">
          <Took from={record.started_at} to={record.ended_at ?? run.end_time} /> · <Moment at={record.started_at} />
        </span>
      )}
      <button
        type="button"
        class="icon-button"
        aria-label={t("task.close")}
        title={t("task.close")}
        onClick={() =>
          refine({
            ...place.value.query,
            task: undefined,
            tab: undefined,
            line: undefined,
            artifact: undefined,
            whole: "1",
          })
        }
      >
        <Glyph name="close" />
      </button>
    </>
  );
}

function Input({ run, task }: { run: Run; task: string | null }) {
  if (task === null) return <Value label={t("run.params")} value={run.params} />;
  return <Value label={t("task.inputs")} value={run.task_records?.[task]?.inputs} />;
}

function Output({ run, task }: { run: Run; task: string | null }) {
  if (task === null) return <Value label={t("run.result")} value={run.result} none={missingResult(run)} />;
  const record = run.task_records?.[task];
  const artifacts = record?.artifacts;
  return (
    <>
      <Value label={t("task.output")} value={record?.output} />
      {artifacts && Object.keys(artifacts).length > 0 && (
        <>
          <h3 class="pad">{t("task.artifacts")}</h3>
          <Value label={t("task.artifacts")} value={artifacts} />
        </>
      )}
    </>
  );
}

function missingResult(run: Run): string {
  if (run.result_truncated) return t("run.result.truncated");
  return isEnded(run) ? t("run.result.none") : t("run.result.later");
}

function Value({
  label,
  value,
  none = t("task.nothing"),
}: {
  label: string;
  value: unknown;
  none?: ComponentChildren;
}) {
  return (
    <section class="detail-value" aria-label={label}>
      {value == null ? <p class="dim pad">{none}</p> : <JsonValue value={value} label={label} />}
    </section>
  );
}
