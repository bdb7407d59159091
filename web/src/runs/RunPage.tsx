import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Run } from "../api/client";
import { now } from "../app/clock";
import { worker } from "../app/commands";
import { link, place, refine } from "../app/router";
import { settings } from "../app/settings";
import { useTitle } from "../app/title";
import { needsKey } from "../auth/session";
import { GraphView } from "../drawing/GraphView";
import { ago, shortId, visible } from "../format";
import { language, t } from "../i18n";
import { Act } from "../ui/Act";
import { Deadline } from "../ui/Deadline";
import { Glyph } from "../ui/icons";
import { JsonValue } from "../ui/JsonValue";
import { Status } from "../ui/Status";
import { Command, CopyButton, Empty, Moment, Plain, Problem } from "../ui/texts";
import { CancelDialog } from "./CancelDialog";
import { LogView } from "./LogView";
import { RetryDialog } from "./RetryDialog";
import { RunFacts } from "./RunFacts";
import { SubmitDialog } from "./SubmitDialog";
import { asCommand, asCurl, submissionOf } from "./submission";
import { TaskPanel } from "./TaskPanel";
import { TimelineView } from "./TimelineView";
import { FailureKind, TriesPanel } from "./TriesPanel";
import { shownTries, startsAt } from "./tries";
import { isEnded, useRun } from "./useRun";

export function RunPage({ id }: { id: string }) {
  const { run, lines, error } = useRun(id);
  const task = place.value.query.task ?? null;
  const [logTask, setLogTask] = useState<string | null>(null);
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

  const selected = task !== null && task in run.tasks ? task : null;
  const select = (name: string | null) =>
    refine({ ...place.value.query, task: name === selected ? undefined : (name ?? undefined) });
  return (
    <>
      <Head run={run} />
      {error && <Problem error={error} />}
      <Notices run={run} />
      <RunFacts run={run} />
      <RunError run={run} />
      <TriesPanel tries={shownTries(run)} most={run.retry?.max_attempts ?? 1} />
      <Warnings run={run} />
      <Tasks run={run} selected={selected} onSelect={select} />
      {selected !== null && (
        <TaskPanel run={run} task={selected} onClose={() => select(null)} onLogs={() => setLogTask(selected)} />
      )}
      <div class="columns">
        <Values run={run} />
        <LogView
          lines={lines}
          task={logTask}
          tasks={Object.keys(run.tasks)}
          name={`${run.flow_name}-${run.run_id}`}
          onTask={setLogTask}
        />
      </div>
    </>
  );
}

function Head({ run }: { run: Run }) {
  const [open, setOpen] = useState<"cancel" | "again" | "retry" | null>(null);
  const submission = submissionOf(run);
  const header = needsKey ? settings.api_key_header : null;
  return (
    <>
      <header class="page-head">
        <h1>
          <Plain text={run.flow_name} />
        </h1>
        <Status state={run.status} />
        <div class="actions">
          {run.workflow_yaml_sha256 === null && (
            <>
              <CopyButton
                short="curl"
                text={() => asCurl(submission, location.origin, header)}
                label={t("copy.curl")}
              />
              <CopyButton
                short="CLI"
                text={() => asCommand(submission, location.origin, needsKey)}
                label={t("copy.cli")}
              />
            </>
          )}
          {run.workflow_yaml_sha256 === null && (
            <Act icon="edit" title={t("run.again.hint")} onClick={() => setOpen("again")}>
              {t("run.again")}
            </Act>
          )}
          {isEnded(run) && (
            <Act icon="again" onClick={() => setOpen("retry")}>
              {t("run.retry")}
            </Act>
          )}
          {!isEnded(run) && (
            <Act icon="stop" kind="danger" disabled={run.status === "CANCELLING"} onClick={() => setOpen("cancel")}>
              {t("run.cancel")}
            </Act>
          )}
        </div>
      </header>
      {open === "cancel" && <CancelDialog run={run} onClose={() => setOpen(null)} />}
      {open === "retry" && <RetryDialog run={run} onClose={() => setOpen(null)} />}
      {open === "again" && <SubmitDialog like={submission} onClose={() => setOpen(null)} />}
    </>
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
      {run.status === "PENDING" && starts === null && <Waiting run={run} />}
      {run.status === "RUNNING" && run.worker_alive === false && (
        <div class="notice tone-bad">
          <p>{t("run.workerGone", { worker: visible(run.worker_id ?? "?") })}</p>
        </div>
      )}
    </>
  );
}

/** Why it does not start: a limit, a pause, or no worker. */
function Waiting({ run }: { run: Run }) {
  const reason = run.waiting_for;
  if (reason?.paused) return <Paused pause={reason.paused} />;
  if (reason?.limit !== undefined) {
    const { limit, key, position } = reason;
    return (
      <div class="notice waits">
        <p>
          <Glyph name="clock" />
          <strong>
            {key
              ? t("run.waits.key", { limit, key: visible(key), n: position ?? 1 })
              : t("run.waits.limit", { limit, n: position ?? 1 })}
          </strong>
        </p>
      </div>
    );
  }
  return (
    <div class="notice">
      <p>{t("run.waiting", { tag: run.tag ?? "default" })}</p>
      <p class="dim">{t("run.waiting.how")}</p>
      <Command text={worker(run.tag ?? "default")} />
    </div>
  );
}

function Paused({ pause }: { pause: NonNullable<NonNullable<Run["waiting_for"]>["paused"]> }) {
  return (
    <div class="notice tone-warn waits">
      <p>
        <Glyph name="clock" />
        <strong>
          {pause.tag !== undefined
            ? t("run.waits.tag", { tag: pause.tag })
            : t("run.waits.flow", { flow: visible(pause.flow ?? "") })}
        </strong>
        {pause.reason && <> · {t("run.cancel.because", { reason: visible(pause.reason) })}</>}
      </p>
      {pause.until !== null && (
        <p class="dim">
          {t("run.waits.until")} <Moment at={pause.until} />
        </p>
      )}
    </div>
  );
}

function RunError({ run }: { run: Run }) {
  const text = run.failure?.message || run.error;
  if (!text) return null;
  const failed = Object.entries(run.task_records ?? {}).find(([, record]) => record.state === "FAILED");
  const task = run.failure?.task ?? failed?.[0];
  const traceback = run.failure?.traceback ?? failed?.[1].traceback;
  return (
    <section class="panel run-error" aria-label={t("run.error")}>
      <header class="panel-head">
        <h2>
          {t("run.error")} {task != null && <span class="dim">{t("run.error.inTask", { task: visible(task) })}</span>}
        </h2>
        {run.failure && run.failure.kind !== "error" && <FailureKind kind={run.failure.kind} />}
        <CopyButton text={() => traceback ?? text} label={t("copy.text")} />
      </header>
      <pre class="error-text" tabIndex={0} aria-label={t("run.error")}>
        {visible(text)}
      </pre>
      {traceback && <Traceback text={traceback} />}
    </section>
  );
}

/** Open, at its end: the line that failed comes last. */
function Traceback({ text }: { text: string }) {
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return (
    <details open>
      <summary>{t("run.traceback")}</summary>
      <pre class="traceback" ref={box} tabIndex={0} aria-label={t("run.traceback")}>
        {visible(text)}
      </pre>
    </details>
  );
}

const VIEWS = ["timeline", "graph"] as const;

function Tasks({ run, selected, onSelect }: { run: Run; selected: string | null; onSelect: (task: string) => void }) {
  const view = VIEWS.find((one) => one === place.value.query.view) ?? "timeline";
  const isEmpty = Object.keys(run.tasks).length === 0;
  if (isEmpty && run.status !== "RUNNING") return null;
  return (
    <section class="panel" aria-label={t("run.view")}>
      <header class="panel-head">
        <div class="tabs" role="group" aria-label={t("run.view")}>
          {VIEWS.map((one) => (
            <button
              key={one}
              type="button"
              aria-pressed={one === view}
              onClick={() => refine({ ...place.value.query, view: one === "timeline" ? undefined : one })}
            >
              {t(`run.view.${one}`)}
            </button>
          ))}
        </div>
        {run.task_records_truncated && <p class="dim note">{t("run.tasks.truncated")}</p>}
      </header>
      {isEmpty ? (
        <p class="dim pad">{t("run.tasks.none")}</p>
      ) : view === "timeline" ? (
        <TimelineView run={run} selected={selected} onSelect={onSelect} />
      ) : (
        <FlowGraph run={run} selected={selected} onSelect={onSelect} />
      )}
    </section>
  );
}

function FlowGraph({
  run,
  selected,
  onSelect,
}: {
  run: Run;
  selected: string | null;
  onSelect: (task: string) => void;
}) {
  if (!run.task_dependencies) return <p class="dim pad">{t("run.graph.none")}</p>;
  const names = Object.keys(run.task_dependencies).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const nodes = names.map((name) => ({ id: name, label: name, state: run.tasks[name] ?? ("PENDING" as const) }));
  const edges = names.flatMap((to) => (run.task_dependencies?.[to] ?? []).map((from) => ({ from, to })));
  return <GraphView nodes={nodes} edges={edges} selected={selected} onSelect={onSelect} />;
}

function missingResult(run: Run): string {
  if (run.result_truncated) return t("run.result.truncated");
  return isEnded(run) ? t("run.result.none") : t("run.result.later");
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

function Values({ run }: { run: Run }) {
  return (
    <div class="values">
      <section class="panel" aria-label={t("run.params")}>
        <header class="panel-head">
          <h2>{t("run.params")}</h2>
        </header>
        <JsonValue value={run.params} label={t("run.params")} />
      </section>
      {run.status !== "FAILED" && run.status !== "CANCELLED" && (
        <section class="panel" aria-label={t("run.result")}>
          <header class="panel-head">
            <h2>{t("run.result")}</h2>
          </header>
          {run.result != null ? (
            <JsonValue value={run.result} label={t("run.result")} />
          ) : (
            <p class="dim pad">{missingResult(run)}</p>
          )}
        </section>
      )}
    </div>
  );
}
