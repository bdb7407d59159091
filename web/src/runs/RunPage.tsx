import { useState } from "preact/hooks";
import { ApiError, type Run } from "../api/client";
import { now } from "../app/clock";
import { link, place, refine } from "../app/router";
import { settings } from "../app/settings";
import { needsKey } from "../auth/session";
import { GraphView } from "../drawing/GraphView";
import { ago, visible } from "../format";
import { language, t } from "../i18n";
import { Glyph } from "../ui/icons";
import { JsonValue } from "../ui/JsonValue";
import { Live } from "../ui/Live";
import { Status } from "../ui/Status";
import { Age, Command, CopyButton, Empty, Moment, Plain, Problem, Tags, Took } from "../ui/texts";
import { CancelDialog } from "./CancelDialog";
import { LogView } from "./LogView";
import { SubmitDialog } from "./SubmitDialog";
import { asCommand, asCurl, submissionOf } from "./submission";
import { TaskPanel } from "./TaskPanel";
import { TimelineView } from "./TimelineView";
import { isEnded, useRun } from "./useRun";

export function RunPage({ id }: { id: string }) {
  const { run, lines, isLive, error } = useRun(id);
  const task = place.value.query.task ?? null;
  const [logTask, setLogTask] = useState<string | null>(null);

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
      <Head run={run} isLive={isLive} />
      {error && <Problem error={error} />}
      <Notices run={run} />
      <Facts run={run} />
      <RunError run={run} />
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

function Head({ run, isLive }: { run: Run; isLive: boolean }) {
  const [open, setOpen] = useState<"cancel" | "again" | null>(null);
  const submission = submissionOf(run);
  const header = needsKey ? settings.api_key_header : null;
  return (
    <>
      <nav class="crumbs">
        <a href={link(["runs"])}>{t("nav.runs")}</a>
        <Glyph name="chevron" size={12} />
      </nav>
      <header class="page-head">
        <h1>
          <Plain text={run.flow_name} />
        </h1>
        <Status state={run.status} />
        {!isEnded(run) && <Live isLive={isLive} />}
        <div class="actions">
          {run.workflow_yaml_sha256 === null && (
            <>
              <CopyButton
                short="curl"
                text={() => asCurl(submission, location.origin, header)}
                label={t("copy.curl")}
              />
              <CopyButton short="CLI" text={() => asCommand(submission, location.origin)} label={t("copy.cli")} />
            </>
          )}
          <button
            type="button"
            class="button"
            onClick={() => setOpen("again")}
            disabled={run.workflow_yaml_sha256 !== null}
          >
            <Glyph name="again" />
            {t("run.again")}
          </button>
          {!isEnded(run) && (
            <button
              type="button"
              class="button danger"
              disabled={run.status === "CANCELLING"}
              onClick={() => setOpen("cancel")}
            >
              <Glyph name="stop" />
              {t("run.cancel")}
            </button>
          )}
        </div>
      </header>
      {open === "cancel" && <CancelDialog run={run} onClose={() => setOpen(null)} />}
      {open === "again" && <SubmitDialog like={submission} onClose={() => setOpen(null)} />}
    </>
  );
}

function Notices({ run }: { run: Run }) {
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
      {run.status === "PENDING" && (
        <div class="notice">
          <p>{t("run.waiting", { tag: run.tag ?? "default" })}</p>
          <p class="dim">{t("run.waiting.how")}</p>
          <Command text={`pyoco-worker --flow-resolver flows.py:resolve --tags ${run.tag ?? "default"}`} />
        </div>
      )}
      {run.status === "RUNNING" && run.worker_alive === false && (
        <div class="notice tone-bad">
          <p>{t("run.workerGone", { worker: visible(run.worker_id ?? "?") })}</p>
        </div>
      )}
      {run.workflow_yaml_sha256 !== null && isEnded(run) && (
        <div class="notice">
          <p>{t("run.again.yaml")}</p>
          <Command
            text={`pyoco-client submit-yaml --server ${location.origin} --workflow-file flow.yaml --flow-name ${run.flow_name}`}
          />
        </div>
      )}
    </>
  );
}

function Facts({ run }: { run: Run }) {
  return (
    <dl class="facts" aria-label={t("run.facts")}>
      <div>
        <dt>{t("run.fact.duration")}</dt>
        <dd class="strong">
          <Took from={run.start_time} to={run.end_time} />
        </dd>
      </div>
      <div>
        <dt>{t("run.fact.wait")}</dt>
        <dd>
          <Took from={run.submitted_at} to={run.start_time ?? run.end_time} />
        </dd>
      </div>
      <div>
        <dt>{t("run.fact.submitted")}</dt>
        <dd>
          <Age at={run.submitted_at} /> <span class="dim wide-only">·</span>{" "}
          <span class="dim wide-only">
            <Moment at={run.submitted_at} />
          </span>
        </dd>
      </div>
      <div>
        <dt>{t("run.fact.worker")}</dt>
        <dd>{run.worker_id ? visible(run.worker_id) : <span class="dim">–</span>}</dd>
      </div>
      <div>
        <dt>{t("run.fact.tag")}</dt>
        <dd>
          <Tags tags={run.tag ? [run.tag] : []} />
        </dd>
      </div>
      {run.tags?.some((tag) => tag !== run.tag) && (
        <div>
          <dt>{t("run.fact.tags")}</dt>
          <dd>
            <Tags tags={run.tags} />
          </dd>
        </div>
      )}
      {(run.attempt ?? 1) > 1 && (
        <div>
          <dt>{t("run.fact.attempt")}</dt>
          <dd>{run.attempt}</dd>
        </div>
      )}
      {run.tenant_id !== null && (
        <div>
          <dt>{t("run.fact.tenant")}</dt>
          <dd>{visible(run.tenant_id)}</dd>
        </div>
      )}
      {run.execution_id !== null && (
        <div>
          <dt>{t("run.fact.execution")}</dt>
          <dd class="mono">
            <a href={link(["executions", run.execution_id])}>{visible(run.execution_id)}</a>
          </dd>
        </div>
      )}
      {run.workflow_yaml_sha256 !== null && (
        <div>
          <dt>{t("run.fact.yaml")}</dt>
          <dd class="mono" title={run.workflow_yaml_sha256}>
            {run.workflow_yaml_sha256.slice(0, 12)}
          </dd>
        </div>
      )}
      {run.wheels !== null && run.wheels.length > 0 && (
        <div>
          <dt>{t("run.fact.wheels")}</dt>
          <dd>
            <Tags tags={run.wheels.map((wheel) => `${wheel.name.split("-")[0]} ${wheel.version}`)} />
          </dd>
        </div>
      )}
      <div>
        <dt>{t("run.fact.id")}</dt>
        <dd class="mono id">
          {run.run_id}
          <CopyButton text={() => run.run_id} label={t("copy.id")} />
        </dd>
      </div>
    </dl>
  );
}

function RunError({ run }: { run: Run }) {
  if (!run.error) return null;
  const failed = Object.entries(run.task_records ?? {}).find(([, record]) => record.state === "FAILED");
  const traceback = failed?.[1].traceback;
  return (
    <section class="panel run-error" aria-label={t("run.error")}>
      <header class="panel-head">
        <h2>
          {t("run.error")} {failed && <span class="dim">{t("run.error.inTask", { task: visible(failed[0]) })}</span>}
        </h2>
        <CopyButton text={() => traceback ?? run.error ?? ""} label={t("copy.text")} />
      </header>
      <pre class="error-text" tabIndex={0} aria-label={t("run.error")}>
        {visible(run.error)}
      </pre>
      {traceback && (
        <details>
          <summary>{t("run.traceback")}</summary>
          <pre tabIndex={0} aria-label={t("run.traceback")}>
            {visible(traceback)}
          </pre>
        </details>
      )}
    </section>
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
