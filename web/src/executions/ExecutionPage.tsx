import { useState } from "preact/hooks";
import { ApiError, type Execution, type ExecutionEvent, post } from "../api/client";
import { now } from "../app/clock";
import { go, link, place, refine } from "../app/router";
import { settings } from "../app/settings";
import { useTitle } from "../app/title";
import { needsKey } from "../auth/session";
import { GraphView } from "../drawing/GraphView";
import { ago, shortId, visible } from "../format";
import { language, t } from "../i18n";
import { Act } from "../ui/Act";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Fact } from "../ui/DataTable";
import { JsonValue } from "../ui/JsonValue";
import { Status } from "../ui/Status";
import { Age, Moment as At, CopyButton, Empty, Plain, Problem, RunId, Took } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useIdempotencyKey } from "../ui/useSending";
import { asCommand, asCurl } from "./commands";
import { EventLog } from "./EventLog";
import { type Definition, isAsking, picture } from "./graphs/definition";
import { endedAt, standing } from "./list";
import { NodePanel } from "./NodePanel";
import { type Moment, momentOf } from "./travel";
import { useExecution, usePast } from "./useExecution";
import { refreshInbox } from "./waits/inbox";

export function ExecutionPage({ id }: { id: string }) {
  const { execution, definition, events, error, refresh } = useExecution(id);
  const at = momentOf(place.value.query.at, events.at(-1)?.sequence ?? 0);
  const { past, error: pastError } = usePast(id, at);
  useTitle(execution && `${visible(execution.graph_id)} · ${shortId(id)}`);

  if (error instanceof ApiError && error.status === 404) {
    return (
      <Empty title={t("execution.notFound")}>
        <p>
          <a class="button" href={link(["executions"])}>
            {t("execution.toList")}
          </a>
        </p>
      </Empty>
    );
  }
  if (!execution) return error ? <Problem error={error} /> : <p class="dim loading">{t("runs.loading")}</p>;

  const shown = (at !== null && past) || execution;
  const node = place.value.query.node;
  const selected =
    node !== undefined && (node in shown.nodes || (definition && node in definition.nodes)) ? node : null;
  const select = (name: string | null) =>
    refine({ ...place.value.query, node: name === selected ? undefined : (name ?? undefined) });
  const travel = (to: Moment) => refine({ ...place.value.query, at: to === null ? undefined : String(to) });
  return (
    <>
      <Head execution={execution} onChanged={refresh} />
      {error && <Problem error={error} />}
      {pastError && <Problem error={pastError} />}
      {at === null && (
        <Notices
          execution={execution}
          selected={selected}
          onNode={(name) => refine({ ...place.value.query, node: name })}
        />
      )}
      <Facts execution={shown} />
      {shown.error && <Failure execution={shown} />}
      {definition && (
        <Picture
          definition={definition}
          execution={shown}
          at={at}
          events={events}
          selected={selected}
          onSelect={select}
          onNow={() => travel(null)}
        />
      )}
      {selected !== null && (
        <NodePanel
          id={selected}
          execution={shown}
          definition={definition}
          isPast={at !== null}
          onClose={() => select(null)}
          onChanged={refresh}
        />
      )}
      <div class="columns">
        <Values execution={shown} />
        <EventLog events={events} at={at} onTravel={travel} onNode={select} name={`${execution.graph_id}-${id}`} />
      </div>
    </>
  );
}

type Asked = "cancel" | "archive" | "start" | "failed" | null;

function Head({ execution, onChanged }: { execution: Execution; onChanged: () => Promise<void> }) {
  const [asked, setAsked] = useState<Asked>(null);
  const keyFor = useIdempotencyKey();
  const header = needsKey ? settings.api_key_header : null;
  const path = { execution_id: execution.execution_id };
  const isEnded = execution.status !== "ACTIVE";

  async function rerun(from: "start" | "failed"): Promise<void> {
    const body = { from };
    const made = await post("/executions/{execution_id}/rerun", { path, body, headers: keyFor(body) });
    toast(t("start.done"));
    go(["executions", made.execution_id]);
  }

  async function command(verb: "cancel" | "archive", reason: string): Promise<void> {
    await post(`/executions/{execution_id}/${verb}`, { path, body: reason ? { reason } : {} });
    toast(t(`execution.${verb}.done`));
    await Promise.all([onChanged(), refreshInbox()]);
  }

  return (
    <>
      <header class="page-head">
        <h1>
          <Plain text={execution.graph_id} />
        </h1>
        <Status state={standing(execution, isWaiting(execution))} />
        {execution.archived_at !== null && <span class="tag">{t("execution.archived")}</span>}
        <div class="actions">
          <CopyButton short="curl" text={() => asCurl(execution, location.origin, header)} label={t("copy.curl")} />
          <CopyButton short="CLI" text={() => asCommand(execution, location.origin, needsKey)} label={t("copy.cli")} />
          {isEnded && execution.archived_at === null && (
            <Act icon="archive" onClick={() => setAsked("archive")}>
              {t("execution.archive")}
            </Act>
          )}
          {isEnded && execution.status !== "COMPLETED" && (
            <Act icon="again" title={t("execution.rerun.failed.hint")} onClick={() => setAsked("failed")}>
              {t("execution.rerun.failed")}
            </Act>
          )}
          <Act icon="again" onClick={() => setAsked("start")}>
            {t("execution.rerun.start")}
          </Act>
          {!isEnded && (
            <Act
              icon="stop"
              kind="danger"
              disabled={execution.cancel_requested_at !== null}
              onClick={() => setAsked("cancel")}
            >
              {t("run.cancel")}
            </Act>
          )}
        </div>
      </header>
      {(asked === "start" || asked === "failed") && (
        <ConfirmDialog
          title={t("execution.rerun.title")}
          lead={t(`execution.rerun.${asked}.lead`)}
          verb={t(`execution.rerun.${asked}`)}
          isHarmless
          onConfirm={() => rerun(asked)}
          onClose={() => setAsked(null)}
        />
      )}
      {(asked === "cancel" || asked === "archive") && (
        <ConfirmDialog
          title={t(`execution.${asked}.title`)}
          lead={t(`execution.${asked}.lead`)}
          reason={t("execution.reason")}
          verb={t(`execution.${asked}.do`)}
          isHarmless={asked === "archive"}
          onConfirm={(reason) => command(asked, reason)}
          onClose={() => setAsked(null)}
        />
      )}
    </>
  );
}

function isWaiting(execution: Execution): boolean {
  return Object.values(execution.nodes).some(isAsking);
}

function Notices({
  execution,
  selected,
  onNode,
}: {
  execution: Execution;
  selected: string | null;
  onNode: (id: string) => void;
}) {
  const isActive = execution.status === "ACTIVE";
  const waiting = Object.entries(execution.nodes).filter(([id, node]) => isActive && isAsking(node) && id !== selected);
  return (
    <>
      {waiting.map(([id, node]) => (
        <div class="notice tone-waiting waits-here" key={id}>
          <p>
            <strong>{visible(node.prompt ?? t("waits.noPrompt"))}</strong> <span class="dim">{visible(id)}</span>
          </p>
          <button type="button" class="button primary" onClick={() => onNode(id)}>
            {t("waits.answer")}
          </button>
        </div>
      ))}
      {execution.cancel_requested_at !== null && (
        <div class="notice tone-warn">
          <p>
            {t("run.cancel.by", {
              who: visible(execution.cancel_requested_by ?? "?"),
              when: ago(now.value - execution.cancel_requested_at, language.value),
            })}
            {execution.cancel_reason && <> · {t("run.cancel.because", { reason: visible(execution.cancel_reason) })}</>}
          </p>
        </div>
      )}
    </>
  );
}

function Facts({ execution }: { execution: Execution }) {
  return (
    <dl class="facts" aria-label={t("run.facts")}>
      <Fact name={t("run.fact.duration")} class="strong">
        <Took from={execution.started_at} to={endedAt(execution)} />
      </Fact>
      <Fact name={t("executions.column.created")}>
        <Age at={execution.created_at} />{" "}
        <span class="dim wide-only">
          · <At at={execution.created_at} />
        </span>
      </Fact>
      <Fact name={t("executions.column.graph")}>
        <a href={link(["graphs", execution.graph_id], { version: String(execution.graph_version) })}>
          <bdi>{visible(execution.graph_id)}</bdi> v{execution.graph_version}
        </a>
      </Fact>
      {execution.rerun_of !== null && (
        <Fact name={t("execution.fact.rerunOf")}>
          <a href={link(["executions", execution.rerun_of])}>
            <RunId id={execution.rerun_of} />
          </a>
        </Fact>
      )}
      {execution.parent_execution_id !== null && (
        <Fact name={t("execution.fact.parent")}>
          <a
            href={link(["executions", execution.parent_execution_id], {
              node: execution.parent_node_id ?? undefined,
            })}
          >
            <RunId id={execution.parent_execution_id} />
          </a>
        </Fact>
      )}
      {execution.tenant_id !== null && <Fact name={t("run.fact.tenant")}>{visible(execution.tenant_id)}</Fact>}
      <Fact name={t("executions.column.id")} class="mono id">
        {visible(execution.execution_id)}
        <CopyButton text={() => execution.execution_id} label={t("execution.copyId")} />
      </Fact>
    </dl>
  );
}

function Failure({ execution }: { execution: Execution }) {
  const { error, failed_node_id: node, handled_failures: handled } = execution;
  if (handled.length > 0) return <p class="dim">{t("execution.handled", { nodes: visible(handled.join(", ")) })}</p>;
  if (!error) return null;
  return (
    <section class="panel run-error" aria-label={t("run.error")}>
      <header class="panel-head">
        <h2>
          {t("run.error")} {node && <span class="dim">{t("execution.error.inNode", { node: visible(node) })}</span>}
        </h2>
        <CopyButton text={() => error.message} label={t("copy.text")} />
      </header>
      <pre class="error-text" tabIndex={0} aria-label={t("run.error")}>
        {visible(error.message)}
      </pre>
    </section>
  );
}

function Picture({
  definition,
  execution,
  at,
  events,
  selected,
  onSelect,
  onNow,
}: {
  definition: Definition;
  execution: Execution;
  at: Moment;
  events: readonly ExecutionEvent[];
  selected: string | null;
  onSelect: (id: string) => void;
  onNow: () => void;
}) {
  const drawn = picture(definition, execution, (kind) => t(`node.kind.${kind}`), t("edge.failure"), t("edge.undo"));
  const moment = events.find((event) => event.sequence === at);
  return (
    <section class={`panel ${at === null ? "" : "is-past"}`} aria-label={t("run.view.graph")}>
      {at !== null && (
        <div class="past-bar" role="status">
          <p>
            <strong>{t("travel.past")}</strong> {t("travel.after", { n: at, total: events.length })}
            {moment && (
              <>
                {" "}
                · <At at={moment.occurred_at} />
              </>
            )}
          </p>
          <button type="button" class="button" onClick={onNow}>
            {t("travel.now")}
          </button>
        </div>
      )}
      <header class="panel-head with-tools">
        <h2>{t("run.view.graph")}</h2>
      </header>
      <GraphView
        {...drawn}
        label={t("execution.graph", { n: drawn.nodes.length })}
        selected={selected}
        onSelect={onSelect}
      />
    </section>
  );
}

function Values({ execution }: { execution: Execution }) {
  return (
    <div class="values">
      <section class="panel" aria-label={t("execution.input")}>
        <header class="panel-head">
          <h2>{t("execution.input")}</h2>
        </header>
        {execution.input != null ? (
          <JsonValue value={execution.input} label={t("execution.input")} />
        ) : (
          <p class="dim pad">{t("execution.input.none")}</p>
        )}
      </section>
      {(execution.status === "COMPLETED" || execution.status === "ACTIVE") && (
        <section class="panel" aria-label={t("run.result")}>
          <header class="panel-head">
            <h2>{t("run.result")}</h2>
          </header>
          {execution.result != null ? (
            <JsonValue value={execution.result} label={t("run.result")} />
          ) : (
            <p class="dim pad">
              {execution.status === "ACTIVE" ? t("execution.result.later") : t("execution.result.none")}
            </p>
          )}
        </section>
      )}
    </div>
  );
}
