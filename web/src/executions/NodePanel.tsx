import type { Execution, NodeState } from "../api/client";
import { link } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { Fact } from "../ui/DataTable";
import { Deadline } from "../ui/Deadline";
import { Glyph } from "../ui/icons";
import { JsonValue } from "../ui/JsonValue";
import { Status } from "../ui/Status";
import { Age, Moment, Plain, RunId, Took } from "../ui/texts";
import { type Definition, isAsking, kindOf, lookOf } from "./graphs/definition";
import { ItemsView } from "./ItemsView";
import { ResumeForm } from "./waits/ResumeForm";

/** Stands for itself where the log leaves it out. */
const FAILED = "FAILED";

/** One node: where it stands, what went in, what came out, and the answer it waits for. */
export function NodePanel({
  id,
  execution,
  definition,
  isPast,
  onClose,
  onChanged,
}: {
  id: string;
  execution: Execution;
  definition: Definition | null;
  isPast: boolean;
  onClose: () => void;
  onChanged: () => Promise<void>;
}) {
  const node = execution.nodes[id];
  const plan = definition?.nodes[id];
  const work = plan?.node ?? plan;
  const state = node ? lookOf(node.status) : "UNREACHED";
  return (
    <section class={`panel task ${isPast ? "is-past" : ""}`} aria-label={visible(id)}>
      <header class="panel-head">
        <h2>
          <Plain text={id} /> <span class="dim">{t(`node.kind.${kindOf(plan)}`)}</span>
        </h2>
        <Status state={state} />
        <button type="button" class="icon-button" aria-label={t("node.close")} onClick={onClose}>
          <Glyph name="close" />
        </button>
      </header>
      {node && <NodeFacts id={id} node={node} flow={work?.flow} graph={plan?.graph} />}
      {node && isAsking(node) && (
        <div class="wait-here">
          {node.prompt && (
            <p class="prompt">
              <Plain text={node.prompt} />
            </p>
          )}
          {isPast ? (
            <p class="dim">{t("travel.noAnswer")}</p>
          ) : (
            execution.status === "ACTIVE" && (
              <ResumeForm
                key={`${execution.execution_id}/${id}`}
                wait={{
                  execution_id: execution.execution_id,
                  node_id: id,
                  wait_key: node.wait_key,
                  prompt: node.prompt,
                  resume_data: node.resume_request?.data ?? null,
                  resume_requested_by: node.resume_request?.requested_by ?? null,
                }}
                definition={definition}
                onDone={onChanged}
              />
            )
          )}
        </div>
      )}
      {node?.error && (
        <pre class="error-text" tabIndex={0} aria-label={t("run.error")}>
          {`${node.error.code ?? FAILED}: ${visible(node.error.message)}`}
        </pre>
      )}
      {node?.gate && <GateView gate={node.gate} />}
      {node?.items && <ItemsView executionId={execution.execution_id} nodeId={id} items={node.items} />}
      <Ways id={id} execution={execution} definition={definition} />
      <div class="task-values">
        {work?.params && Object.keys(work.params).length > 0 && <Value title={t("run.params")} value={work.params} />}
        {node?.output != null && <Value title={t("task.output")} value={node.output} />}
        {node?.output == null && node?.resume_data != null && (
          <Value title={t("node.resumedWith")} value={node.resume_data} />
        )}
        {node?.error?.details != null && <Value title={t("node.errorDetails")} value={node.error.details} />}
        {node?.metrics && <Value title={t("node.metrics")} value={node.metrics} />}
      </div>
    </section>
  );
}

function NodeFacts({
  id,
  node,
  flow,
  graph,
}: {
  id: string;
  node: NodeState;
  flow: string | undefined;
  graph: string | undefined;
}) {
  return (
    <dl class="facts">
      {node.started_at !== null && (
        <Fact name={t("task.duration")}>
          <Took from={node.started_at} to={node.ended_at} />
        </Fact>
      )}
      {flow !== undefined && <Fact name={t("runs.column.flow")}>{visible(flow)}</Fact>}
      {graph !== undefined && (
        <Fact name={t("executions.column.graph")}>
          <a href={link(["graphs", graph])}>{visible(graph)}</a>
        </Fact>
      )}
      {node.child_execution_id !== null && (
        <Fact name={t("node.child")}>
          <a href={link(["executions", node.child_execution_id])}>
            <RunId id={node.child_execution_id} />
          </a>
        </Fact>
      )}
      {node.run_id !== null && (
        <Fact name={t("run.fact.id")}>
          <a href={link(["runs", node.run_id])}>
            <RunId id={node.run_id} />
          </a>
          {node.run_status && <Status state={node.run_status} />}
        </Fact>
      )}
      {node.carried_from !== null && (
        <Fact name={t("node.carriedFrom")}>
          <a href={link(["executions", node.carried_from], { node: id })}>
            <RunId id={node.carried_from} />
          </a>
        </Fact>
      )}
      {node.undoes !== null && <Fact name={t("edge.undo")}>{visible(node.undoes)}</Fact>}
      {node.iteration !== null && <Fact name={t("node.kind.repeat")}>{node.iteration}</Fact>}
      {node.attempt > 0 && <Fact name={t("run.fact.attempt")}>{node.attempt}</Fact>}
      {node.worker_id !== null && <Fact name={t("run.fact.worker")}>{visible(node.worker_id)}</Fact>}
      {node.progress !== null && (
        <Fact name={t("node.progress")}>
          <progress value={node.progress} max={100} aria-label={t("node.progress")} /> {Math.round(node.progress)} %
          {node.progress_message && <span class="dim">{visible(node.progress_message)}</span>}
        </Fact>
      )}
      {node.message !== null && (
        <Fact name={t("node.message")}>
          <span class="mono">{visible(node.message)}</span>
        </Fact>
      )}
      {node.wait_key !== null && (
        <Fact name={t("resume.key")}>
          <span class="mono">{visible(node.wait_key)}</span>
        </Fact>
      )}
      {node.deadline !== null && node.status === "WAITING" && (
        <Fact name={t("node.deadline")}>
          <Deadline at={node.deadline} />
        </Fact>
      )}
      {node.wake_at !== null && (
        <Fact name={t("node.wakeAt")}>
          <Moment at={node.wake_at} />
        </Fact>
      )}
      {node.retry_at !== null && node.status === "READY" && (
        <Fact name={t("node.retryAt")}>
          <Moment at={node.retry_at} />
        </Fact>
      )}
      {node.waiting_at !== null && (
        <Fact name={t("node.waitingSince")}>
          <Age at={node.waiting_at} />
        </Fact>
      )}
      {node.started_at !== null && (
        <Fact name={t("task.started")}>
          <Moment at={node.started_at} />
        </Fact>
      )}
      {node.ended_at !== null && (
        <Fact name={t("task.ended")}>
          <Moment at={node.ended_at} />
        </Fact>
      )}
      {node.stop_reason !== null && <Fact name={t("node.stopReason")}>{visible(node.stop_reason)}</Fact>}
    </dl>
  );
}

function GateView({ gate }: { gate: NonNullable<NodeState["gate"]> }) {
  const looks = [
    ["SUCCEEDED", gate.completed_branches],
    ["FAILED", gate.failed_branches],
    ["CANCELED", gate.canceled_branches],
  ] as const;
  const ended = new Set(looks.flatMap(([, branches]) => branches));
  const rows = [...looks, ["PENDING", gate.expected_branches.filter((branch) => !ended.has(branch))] as const];
  return (
    <div class="gate">
      <h3>
        {t("node.gate")} <span class="mono">{visible(gate.policy)}</span> ·{" "}
        {gate.is_passable ? t("node.gate.open") : t("node.gate.closed")}
      </h3>
      <ul>
        {rows.flatMap(([state, branches]) =>
          branches.map((branch) => (
            <li key={branch}>
              <Status state={state} /> <bdi>{visible(branch)}</bdi>
            </li>
          )),
        )}
      </ul>
    </div>
  );
}

/** Where it leads, and under which conditions. */
function Ways({ id, execution, definition }: { id: string; execution: Execution; definition: Definition | null }) {
  const ways = (definition?.edges ?? []).map((edge, at) => ({ edge, at })).filter(({ edge }) => edge.from === id);
  const telling = ways.filter(({ edge }) => edge.when || edge.on === "failure");
  if (telling.length === 0) return null;
  return (
    <div class="gate">
      <h3>{t("node.ways")}</h3>
      <ul>
        {ways.map(({ edge, at }) => (
          <li key={at}>
            <Glyph name="chevron" size={11} /> <bdi>{visible(edge.to)}</bdi>
            {edge.on === "failure" && <span class="tag is-bad">{t("edge.failure")}</span>}
            {edge.when && <code>{visible(edge.when)}</code>}
            <span class="dim">{t(`edge.${execution.edges?.[at]?.fate ?? "open"}`)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Value({ title, value }: { title: string; value: unknown }) {
  return (
    <div>
      <h3>{title}</h3>
      <JsonValue value={value} label={title} />
    </div>
  );
}
