import type { ComponentChild } from "preact";
import { useState } from "preact/hooks";
import { ApiError, type Run } from "../api/client";
import { now } from "../app/clock";
import { link, place, refine } from "../app/router";
import { settings } from "../app/settings";
import { useTitle } from "../app/title";
import { needsKey } from "../auth/session";
import { ago, shortId, visible } from "../format";
import { language, t } from "../i18n";
import { Act } from "../ui/Act";
import { Deadline } from "../ui/Deadline";
import { Glyph, type IconName } from "../ui/icons";
import { Advance } from "../ui/lists";
import { Menu } from "../ui/Menu";
import { Panes } from "../ui/Panes";
import { Status, toneOf } from "../ui/Status";
import { copy, Empty, Moment, Plain, Problem, RunId } from "../ui/texts";
import { CancelDialog } from "./CancelDialog";
import { ComparePage } from "./ComparePage";
import { DetailPane } from "./DetailPane";
import { DiagnosisNotice } from "./DiagnosisNotice";
import { LATEST, shownTask } from "./detail";
import { RetryDialog, type Start } from "./RetryDialog";
import { RunFacts } from "./RunFacts";
import { SubmitDialog } from "./SubmitDialog";
import { asCommand, asCurl, submissionOf } from "./submission";
import { TasksPane } from "./TasksPane";
import { TriesPanel } from "./TriesPanel";
import { keepable, shownTries, startsAt } from "./tries";
import { isEnded, useRun } from "./useRun";

export function RunPage({ id }: { id: string }) {
  const other = place.value.query.with;
  return other ? <ComparePage id={id} other={other} /> : <OneRun id={id} />;
}

function OneRun({ id }: { id: string }) {
  const { run, lines, error } = useRun(id);
  useTitle(run && `${visible(run.flow_name)} · ${shortId(id)}`);

  if (error instanceof ApiError && error.status === 404) {
    return (
      <Empty title={t("run.notFound")}>
        <p>
          <a class="button" href={link(["runs"])}>
            {t("problem.toRuns")}
          </a>
        </p>
      </Empty>
    );
  }
  if (!run) return error ? <Problem error={error} /> : <p class="dim loading">{t("runs.loading")}</p>;

  const task = shownTask(run, place.value.query);
  const select = (name: string) => {
    const { tab: _tab, line: _line, artifact: _artifact, whole: _whole, ...rest } = place.value.query;
    refine(name === task ? { ...rest, task: undefined, whole: "1" } : { ...rest, task: name });
  };
  return (
    <>
      <Head run={run} />
      {error && <Problem error={error} />}
      <Notices run={run} />
      <DiagnosisNotice run={run} />
      <RunFacts run={run} />
      {run.progress && run.status !== "COMPLETED" && (
        <div class={`advance tone-${toneOf(run.status)}`}>
          <Advance progress={run.progress} />
        </div>
      )}
      <TriesPanel tries={shownTries(run)} most={run.retry?.max_attempts ?? 1} />
      <Warnings run={run} />
      <Panes name="run">
        <TasksPane run={run} selected={task} onSelect={select} />
        <DetailPane run={run} task={task} lines={lines} />
      </Panes>
    </>
  );
}

function Head({ run }: { run: Run }) {
  return (
    <header class="page-head run-head">
      <Origin run={run} />
      <h1>
        <Plain text={run.flow_name} />{" "}
        <span class="dim">
          · <RunId id={run.run_id} />
        </span>
      </h1>
      <Status state={run.status} />
      <Actions run={run} />
    </header>
  );
}

/** What started it, where in an execution it stands, and which try it is. */
function Origin({ run }: { run: Run }) {
  const steps: ComponentChild[] = [];
  if (run.schedule_id !== null) {
    steps.push(
      <>
        <a href={link(["schedules", run.schedule_id])}>{visible(run.schedule_id)}</a>
        {run.due_at !== null && (
          <>
            {" "}
            <Moment at={run.due_at} />
          </>
        )}
      </>,
    );
  } else if (run.retried_from !== null) {
    steps.push(
      <a href={link(["runs", run.retried_from])}>
        {t("run.fact.retried_from")} <RunId id={run.retried_from} />
      </a>,
    );
  } else if (run.execution_id === null) {
    steps.push(<a href={link(["flows", run.flow_name])}>{t("run.submitted")}</a>);
  }
  if (run.execution_id !== null) {
    steps.push(<a href={link(["executions", run.execution_id])}>{visible(run.execution_id)}</a>);
    if (run.node_id !== null) {
      steps.push(<a href={link(["executions", run.execution_id], { node: run.node_id })}>{visible(run.node_id)}</a>);
    }
  }
  const most = run.retry?.max_attempts ?? 1;
  const n = Math.min((run.tries.at(-1)?.n ?? 0) + (run.status === "FAILED" ? 0 : 1), most) || 1;
  steps.push(<span>{t("run.tryOf", { n, most })}</span>);
  return (
    <ol class="origin" aria-label={t("run.origin")}>
      {steps.map((step, at) => (
        <li key={at}>{step}</li>
      ))}
    </ol>
  );
}

function Actions({ run }: { run: Run }) {
  const [open, setOpen] = useState<"cancel" | "edit" | Start | null>(null);
  const submission = submissionOf(run);
  const header = needsKey ? settings.api_key_header : null;
  const isPlain = run.workflow_yaml_sha256 === null;
  const close = () => setOpen(null);
  return (
    <div class="actions">
      <a class="button" href={link(["runs", run.run_id], { with: LATEST })}>
        <Glyph name="compare" />
        {t("compare.title")}
      </a>
      {(isPlain || isEnded(run)) && (
        <Menu icon="again" label={t("run.again")}>
          {isEnded(run) && <Item icon="again" text={t("run.again.same")} onClick={() => setOpen("start")} />}
          {isEnded(run) && keepable(run) > 0 && (
            <Item icon="skipped" text={t("run.again.failed")} onClick={() => setOpen("failed")} />
          )}
          {isPlain && <Item icon="edit" text={t("run.again.edit")} onClick={() => setOpen("edit")} />}
          {isPlain && (
            <Item
              icon="copy"
              text={t("copy.curl")}
              onClick={() => void copy(asCurl(submission, location.origin, header))}
            />
          )}
          {isPlain && (
            <Item
              icon="copy"
              text={t("copy.cli")}
              onClick={() => void copy(asCommand(submission, location.origin, needsKey))}
            />
          )}
        </Menu>
      )}
      {!isEnded(run) && (
        <Act icon="stop" kind="danger" disabled={run.status === "CANCELLING"} onClick={() => setOpen("cancel")}>
          {t("run.cancel")}
        </Act>
      )}
      {open === "cancel" && <CancelDialog run={run} onClose={close} />}
      {(open === "start" || open === "failed") && <RetryDialog run={run} first={open} onClose={close} />}
      {open === "edit" && <SubmitDialog like={submission} onClose={close} />}
    </div>
  );
}

function Item({ icon, text, onClick }: { icon: IconName; text: string; onClick: () => void }) {
  return (
    <button type="button" onClick={onClick}>
      <Glyph name={icon} />
      {text}
    </button>
  );
}

function Notices({ run }: { run: Run }) {
  const starts = startsAt(run, now.value);
  return (
    <>
      {run.cancel_requested_at !== null && (
        <div class="notice tone-warn">
          <p>
            {t("run.cancel.by", {
              who: visible(run.cancel_requested_by ?? "?"),
              when: ago(now.value - run.cancel_requested_at, language.value),
            })}
            {run.cancel_reason && <> · {t("run.cancel.because", { reason: visible(run.cancel_reason) })}</>}
          </p>
        </div>
      )}
      {starts !== null && (
        <div class="notice starts">
          <p>
            <Glyph name="clock" />
            <strong>
              {run.tries.length > 0
                ? t("run.nextTry", { n: run.tries.at(-1)!.n + 1, most: run.retry?.max_attempts ?? 1 })
                : t("run.starts")}{" "}
              <Deadline at={starts} isTime />
            </strong>{" "}
            <span class="dim">
              <Moment at={starts} />
            </span>
          </p>
        </div>
      )}
    </>
  );
}

function Warnings({ run }: { run: Run }) {
  const warnings = run.warnings ?? [];
  if (warnings.length === 0) return null;
  return (
    <section class="panel warnings" aria-label={t("run.warnings")}>
      <header class="panel-head">
        <h2>{t("run.warnings")}</h2>
      </header>
      <ul class="pad">
        {warnings.map((warning, index) => (
          <li key={index}>{visible(warning)}</li>
        ))}
      </ul>
    </section>
  );
}
