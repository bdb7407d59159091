import { useState } from "preact/hooks";
import { get, post, type RetryJob } from "../api/client";
import { client } from "../app/commands";
import { link } from "../app/router";
import { count, visible } from "../format";
import { language, t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Deadline } from "../ui/Deadline";
import { Glyph } from "../ui/icons";
import { Status, StatusIcon, toneOf } from "../ui/Status";
import { Age, Command, Empty, Problem, RunId } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";

const REFRESH_MS = 2000;
const SHOWN = 200;
const JOB_STATUSES = ["pending", "retrying", "escalated", "succeeded", "discarded"] as const;

export function QueuePart() {
  const queue = usePolling(
    (signal) => get("/api/workflow-events/retry-jobs", { query: { limit: SHOWN }, signal }),
    REFRESH_MS,
    "queue",
  );
  const { isBusy, send } = useSending();
  const [doomed, setDoomed] = useState<RetryJob | null>(null);
  const found = queue.value;
  const active = found ? (found.by_status.pending ?? 0) + (found.by_status.retrying ?? 0) : 0;

  async function drain(force: boolean): Promise<void> {
    try {
      const done = await post("/api/workflow-events/retry-jobs/drain", { body: { force, limit: SHOWN } });
      toast(t("queue.drained", { processed: done.processed, succeeded: done.succeeded }));
    } catch (problem) {
      toast((problem as Error).message, "bad");
    }
    await queue.refresh();
  }

  async function again(job: RetryJob): Promise<void> {
    try {
      await post("/api/workflow-events/retry-jobs/{job_id}/retry", { path: { job_id: job.id } });
      toast(t("queue.retried"));
    } catch (problem) {
      toast((problem as Error).message, "bad");
    }
    await queue.refresh();
  }

  return (
    <>
      <div class="part-head">
        <p class="lead">{t("queue.lead")}</p>
        <div class="actions">
          <button
            type="button"
            class="button"
            disabled={isBusy || active === 0}
            onClick={() => send(() => drain(false))}
          >
            {t("queue.drain", { n: found?.due ?? 0 })}
          </button>
          <button
            type="button"
            class="button primary"
            disabled={isBusy || active === 0}
            onClick={() => send(() => drain(true))}
          >
            {t("queue.force", { n: active })}
          </button>
        </div>
      </div>
      {queue.error && <Problem error={queue.error} />}
      {!found && !queue.error && <p class="dim loading">{t("runs.loading")}</p>}
      {found && (
        <ul class="chips" aria-label={t("queue.byStatus")}>
          {JOB_STATUSES.map((status) => (
            <li key={status} class={`chip tone-${toneOf(status)} ${found.by_status[status] ? "" : "is-zero"}`}>
              <StatusIcon state={status} />
              {t(`state.${status}`)}
              <span class="count">{count(found.by_status[status] ?? 0, language.value)}</span>
            </li>
          ))}
        </ul>
      )}
      {found?.jobs.length === 0 && (
        <Empty title={t("queue.empty.title")}>
          <p>{t("queue.empty.lead")}</p>
          <Command text={client("events retry-jobs")} />
        </Empty>
      )}
      {found && found.jobs.length > 0 && (
        <JobTable jobs={found.jobs} onAgain={(job) => send(() => again(job))} onDiscard={setDoomed} />
      )}
      {doomed && (
        <ConfirmDialog
          title={t("queue.discard.title")}
          lead={t("queue.discard.lead", { name: visible(doomed.template_name) })}
          verb={t("queue.discard")}
          onConfirm={async () => {
            await post("/api/workflow-events/retry-jobs/{job_id}/discard", { path: { job_id: doomed.id } });
            toast(t("queue.discarded"));
            await queue.refresh();
          }}
          onClose={() => setDoomed(null)}
        />
      )}
    </>
  );
}

function JobTable({
  jobs,
  onAgain,
  onDiscard,
}: {
  jobs: readonly RetryJob[];
  onAgain: (job: RetryJob) => void;
  onDiscard: (job: RetryJob) => void;
}) {
  return (
    <div class="table-frame">
      <table class="jobs stack">
        <thead>
          <tr>
            <th scope="col">{t("runs.column.status")}</th>
            <th scope="col">{t("events.column.template")}</th>
            <th scope="col">{t("queue.column.attempts")}</th>
            <th scope="col">{t("queue.column.next")}</th>
            <th scope="col">{t("events.column.key")}</th>
            <th scope="col">{t("runs.column.updated")}</th>
            <th scope="col">
              <span class="sr-only">{t("queue.retry")}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {jobs.map((job) => (
            <JobRow key={job.id} job={job} onAgain={() => onAgain(job)} onDiscard={() => onDiscard(job)} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function JobRow({ job, onAgain, onDiscard }: { job: RetryJob; onAgain: () => void; onDiscard: () => void }) {
  const isActive = job.status === "pending" || job.status === "retrying";
  return (
    <tr class={`row tone-${toneOf(job.status)}`} data-job={job.id}>
      <td class="cell-status">
        <Status state={job.status} />
      </td>
      <td class="cell-main">
        <span class="strong">{visible(job.template_name)}</span>{" "}
        <span class="dim note">{visible(job.event_name ?? job.action)}</span>
        {job.status !== "succeeded" && job.last_error && <span class="row-error">{visible(job.last_error)}</span>}
        {job.status === "succeeded" && job.last_run_id && (
          <span class="row-reason">
            <a href={link(["runs", job.last_run_id])}>
              <RunId id={job.last_run_id} />
            </a>
          </span>
        )}
      </td>
      <td data-label={t("queue.column.attempts")}>
        {job.attempts}/{job.max_attempts}
      </td>
      <td data-label={t("queue.column.next")}>
        {isActive ? <Deadline at={Date.parse(job.next_retry_at) / 1000} isTime /> : <span class="dim">–</span>}
      </td>
      <td data-label={t("events.column.key")} class="dim cell-key">
        <span class="mono">{visible(job.idempotency_key)}</span>
      </td>
      <td>
        <Age at={Date.parse(job.updated_at) / 1000} />
      </td>
      <td class="cell-actions">
        {job.status !== "succeeded" && (
          <>
            <button
              type="button"
              class="button quiet"
              aria-label={t("queue.retry.label", {
                name: visible(job.template_name),
                key: visible(job.idempotency_key),
              })}
              onClick={onAgain}
            >
              <Glyph name="again" />
              {t("queue.retry")}
            </button>
            {job.status !== "discarded" && (
              <button
                type="button"
                class="icon-button danger"
                title={t("queue.discard")}
                aria-label={t("queue.discard.label", {
                  name: visible(job.template_name),
                  key: visible(job.idempotency_key),
                })}
                onClick={onDiscard}
              >
                <Glyph name="trash" />
              </button>
            )}
          </>
        )}
      </td>
    </tr>
  );
}
