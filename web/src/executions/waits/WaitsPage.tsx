import { useEffect, useState } from "preact/hooks";
import { get, type Wait } from "../../api/client";
import { now } from "../../app/clock";
import { client } from "../../app/commands";
import { link } from "../../app/router";
import { visible } from "../../format";
import { t } from "../../i18n";
import { Deadline } from "../../ui/Deadline";
import { Glyph } from "../../ui/icons";
import { Age, Command, Empty, Plain, Problem } from "../../ui/texts";
import { type Definition, definitionOf } from "../graphs/definition";
import { badge, groupsOf } from "./answer";
import { inbox, inboxError } from "./inbox";
import { ResumeForm } from "./ResumeForm";

export function WaitsPage() {
  const found = inbox.value;
  return (
    <>
      <header class="page-head">
        <h1>{t("waits.title")}</h1>
        {found && found.items.length > 0 && (
          <span class="status tone-waiting">
            {t("waits.count", { n: badge(found.items.length, found.cursor !== null) })}
          </span>
        )}
      </header>
      <p class="lead">{t("waits.lead")}</p>
      {inboxError.value && <Problem error={inboxError.value} />}
      {found === null && !inboxError.value && <p class="dim loading">{t("runs.loading")}</p>}
      {found?.items.length === 0 && (
        <Empty title={t("waits.empty.title")}>
          <p>{t("waits.empty.lead")}</p>
          <Command text={client("waits")} />
        </Empty>
      )}
      {found &&
        groupsOf(found.items, now.value).map(({ group, waits }) => (
          <section key={group} class="wait-group" aria-labelledby={`waits-${group}`}>
            <h2 id={`waits-${group}`}>
              {t(`waits.group.${group}`)} <span class="count dim">{waits.length}</span>
            </h2>
            <ol class="waits">
              {waits.map((wait) => (
                <li key={`${wait.execution_id}/${wait.node_id}`}>
                  <WaitCard wait={wait} />
                </li>
              ))}
            </ol>
          </section>
        ))}
      {found?.cursor && <p class="dim list-end">{t("waits.more", { n: found.items.length })}</p>}
    </>
  );
}

function WaitCard({ wait }: { wait: Wait }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <article class="panel wait" data-wait={`${wait.execution_id}/${wait.node_id}`}>
      <div class="wait-head">
        <span class="status-icon tone-waiting">
          <Glyph name="waiting" size={20} />
        </span>
        <div class="wait-text">
          <h3>{wait.prompt ? <Plain text={wait.prompt} /> : <span class="dim">{t("waits.noPrompt")}</span>}</h3>
          <p class="wait-facts">
            <a href={link(["executions", wait.execution_id], { node: wait.node_id })}>
              <bdi>{visible(wait.graph_id)}</bdi> <Glyph name="chevron" size={11} /> <bdi>{visible(wait.node_id)}</bdi>
            </a>
            <span class="dim">
              {t("waits.since")} <Age at={wait.waiting_at} />
            </span>
            {wait.deadline !== null && <Deadline at={wait.deadline} />}
            {wait.resume_requested_by && (
              <span class="tag is-asked">{t("waits.asked", { who: visible(wait.resume_requested_by) })}</span>
            )}
            <span class="dim mono wide-only">{visible(wait.execution_id)}</span>
          </p>
        </div>
        <button
          type="button"
          class={`button ${isOpen ? "" : "primary"}`}
          aria-expanded={isOpen}
          onClick={() => setOpen(!isOpen)}
        >
          {isOpen ? t("waits.later") : t("waits.answer")}
        </button>
      </div>
      {isOpen && <Answering wait={wait} onDone={() => setOpen(false)} />}
    </article>
  );
}

/** The form needs to know what the graph reads of the answer. */
function Answering({ wait, onDone }: { wait: Wait; onDone: () => void }) {
  const [definition, setDefinition] = useState<Definition | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    async function read(): Promise<void> {
      const execution = await get("/executions/{execution_id}", { path: { execution_id: wait.execution_id }, signal });
      const query = { version: execution.graph_version };
      setDefinition(
        definitionOf(await get("/graphs/{graph_id}", { path: { graph_id: wait.graph_id }, query, signal })),
      );
    }
    read().catch((problem: Error) => {
      if (!signal.aborted) setError(problem);
    });
    return () => controller.abort();
  }, [wait.execution_id]);
  if (error) return <Problem error={error} />;
  if (!definition) return <p class="dim pad">{t("runs.loading")}</p>;
  return <ResumeForm wait={wait} definition={definition} onDone={() => Promise.resolve(onDone())} />;
}
