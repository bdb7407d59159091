import { useState } from "preact/hooks";
import { post } from "../api/client";
import { worker } from "../app/commands";
import { link } from "../app/router";
import { count, duration, visible } from "../format";
import { language, t } from "../i18n";
import { Act } from "../ui/Act";
import { PauseDialog, PauseFacts, ResumeDialog } from "../ui/Pausing";
import { Status, toneOf } from "../ui/Status";
import { Command } from "../ui/texts";
import { isUnserved, type ServedQueue, stateOf } from "./queues";

export function QueueTable({ queues, onChanged }: { queues: readonly ServedQueue[]; onChanged: () => Promise<void> }) {
  const [tag, setTag] = useState<string | null>(null);
  const chosen = queues.find((queue) => queue.tag === tag);
  return (
    <>
      <div class="table-frame">
        <table class="queues stack">
          <thead>
            <tr>
              <th scope="col">{t("workers.column.state")}</th>
              <th scope="col">{t("queues.column.tag")}</th>
              <th scope="col" class="num">
                {t("queues.column.waiting")}
              </th>
              <th scope="col" class="num">
                {t("queues.column.oldest")}
              </th>
              <th scope="col" class="num">
                {t("queues.column.running")}
              </th>
              <th scope="col" class="num">
                {t("queues.column.throughput")}
              </th>
              <th scope="col" class="num">
                {t("queues.column.workers")}
              </th>
              <th scope="col">
                <span class="sr-only">{t("pause.do")}</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {queues.map((queue) => (
              <Row key={queue.tag} queue={queue} onAct={() => setTag(queue.tag)} />
            ))}
          </tbody>
        </table>
      </div>
      {chosen && <ActDialog queue={chosen} onChanged={onChanged} onClose={() => setTag(null)} />}
    </>
  );
}

function Row({ queue, onAct }: { queue: ServedQueue; onAct: () => void }) {
  const state = stateOf(queue);
  const n = (value: number) => count(value, language.value);
  const act = queue.paused ? "resume" : "pause";
  return (
    <tr class={`row tone-${isUnserved(queue) ? "bad" : toneOf(state)}`} data-queue={queue.tag}>
      <td class="cell-status">
        <Status state={state} />
      </td>
      <td class="cell-main">
        <a class="strong" href={link(["runs"], { tag: queue.tag })}>
          <bdi>{visible(queue.tag)}</bdi>
        </a>
        {queue.paused && (
          <span class="row-reason tone-warn">
            <PauseFacts pause={queue.paused} />
          </span>
        )}
        {isUnserved(queue) && <Alone queue={queue} />}
      </td>
      <td class={`num ${queue.waiting > 0 ? "strong" : "dim"}`} data-label={t("queues.column.waiting")}>
        {n(queue.waiting)}
      </td>
      <td class="num" data-label={t("queues.column.oldest")}>
        {queue.waiting === 0 ? <span class="dim">–</span> : duration(queue.oldest_wait_sec)}
      </td>
      <td class="num" data-label={t("queues.column.running")}>
        {n(queue.running)}
        {queue.slots !== null && queue.slots > 0 && <span class="dim"> / {n(queue.slots)}</span>}
      </td>
      <td class="num" data-label={t("queues.column.throughput")}>
        {n(queue.throughput_per_min)}
      </td>
      <td class="num" data-label={t("queues.column.workers")}>
        {n(queue.workers)}
        {queue.lost.length > 0 && (
          <span class="tone-text tone-bad" title={queue.lost.join("\n")}>
            {" "}
            {t("queues.lost", { n: queue.lost.length })}
          </span>
        )}
      </td>
      <td class="cell-actions">
        <Act
          kind="icon"
          icon={queue.paused ? "play" : "pause"}
          label={t(`queues.${act}.label`, { tag: queue.tag })}
          onClick={onAct}
        />
      </td>
    </tr>
  );
}

function Alone({ queue }: { queue: ServedQueue }) {
  return (
    <>
      <span class="row-error">{t("queues.alone")}</span>
      <Command text={worker(queue.tag)} />
    </>
  );
}

function ActDialog({
  queue,
  onChanged,
  onClose,
}: {
  queue: ServedQueue;
  onChanged: () => Promise<void>;
  onClose: () => void;
}) {
  // What the dialog asks does not change when somebody else was faster.
  const [isPaused] = useState(queue.paused !== null);
  const path = { tag: queue.tag };
  if (isPaused) {
    return (
      <ResumeDialog
        title={t("queues.resume.title", { tag: queue.tag })}
        lead={t("queues.resume.lead")}
        onResume={async () => {
          await post("/queues/{tag}/resume", { path });
          await onChanged();
        }}
        onClose={onClose}
      />
    );
  }
  return (
    <PauseDialog
      title={t("queues.pause.title", { tag: queue.tag })}
      lead={t("queues.pause.lead")}
      onPause={async (body) => {
        await post("/queues/{tag}/pause", { path, body });
        await onChanged();
      }}
      onClose={onClose}
    />
  );
}
