import { useState } from "preact/hooks";
import { get, post } from "../api/client";
import { now } from "../app/clock";
import { link } from "../app/router";
import { useTitle } from "../app/title";
import { count, duration, shortId, visible } from "../format";
import { language, t } from "../i18n";
import { useLive } from "../live/useLive";
import { usePages } from "../live/usePages";
import { Act } from "../ui/Act";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { DataTable, Facts, Listed } from "../ui/DataTable";
import { Missing } from "../ui/Missing";
import { Status } from "../ui/Status";
import { Age, Empty, Problem, RunId, Took } from "../ui/texts";
import { toast } from "../ui/toasts";
import { type Operation, secondsLeft, share } from "./bulk";

export { BulkDialog } from "./BulkDialog";

const REFRESH_MS = 3000;
const number = (value: number) => count(value, language.value);

export function BulkListPage() {
  const pages = usePages<Operation>(
    "bulk",
    (query, signal) => get("/bulk", { query, signal }),
    (one) => one.id,
    REFRESH_MS,
  );
  return (
    <>
      <header class="page-head">
        <h1>{t("nav.bulk")}</h1>
      </header>
      <p class="lead">{t("bulk.lead")}</p>
      <Listed
        pages={pages}
        none={
          <Empty title={t("bulk.empty.title")}>
            <p>{t("bulk.empty.lead")}</p>
          </Empty>
        }
      >
        <DataTable
          name="bulk"
          rows={pages.rows}
          keyOf={(one) => one.id}
          columns={[
            { title: t("runs.column.status"), class: "cell-status", cell: (one) => <Status state={one.status} /> },
            {
              title: t("bulk.column.action"),
              class: "cell-main",
              cell: (one) => (
                <a class="row-link" href={link(["bulk", one.id])}>
                  {t(`bulk.action.${one.action}`)}
                </a>
              ),
            },
            { title: t("bulk.column.done"), class: "num", cell: (one) => `${number(one.done)} / ${number(one.total)}` },
            {
              title: t("state.FAILED"),
              class: "num",
              cell: (one) => <span class={one.failed ? "tone-bad strong" : "dim"}>{number(one.failed)}</span>,
            },
            { title: t("bulk.column.started"), cell: (one) => <Age at={one.created_at} /> },
            { title: t("runs.column.duration"), cell: (one) => <Took from={one.created_at} to={one.ended_at} /> },
            { title: t("bulk.column.id"), class: "cell-id dim", cell: (one) => <RunId id={one.id} /> },
          ]}
        />
      </Listed>
    </>
  );
}

function useOperation(id: string) {
  const path = { bulk_id: id };
  return useLive<Operation | null>(
    id,
    {
      read: async ({ signal, change }) => {
        const found = await get("/bulk/{bulk_id}", { path, signal });
        change(() => found);
      },
      watch: {
        path: "/bulk/{bulk_id}/watch",
        options: { path },
        apply: (_, { data }) => data as Operation,
        isOver: (known) => known !== null && known.status !== "RUNNING",
      },
    },
    () => null,
  );
}

/** How far one is, as it goes on. */
export function BulkPage({ id }: { id: string }) {
  const { state: operation, error, refresh } = useOperation(id);
  useTitle(operation ? `${t(`bulk.action.${operation.action}`)} · ${shortId(id)}` : shortId(id));
  if (!operation) return <Missing error={error} title={t("bulk.notFound")} section="bulk" />;
  return (
    <>
      <Head operation={operation} onChanged={refresh} />
      {error && <Problem error={error} />}
      <Advance operation={operation} />
      <Facts
        facts={[
          [t("bulk.total"), number(operation.total)],
          [t("bulk.done"), <span class="strong">{number(operation.done)}</span>],
          [
            t("state.FAILED"),
            <span class={operation.failed ? "tone-bad strong" : ""}>{number(operation.failed)}</span>,
          ],
          [t("bulk.left"), number(operation.left)],
          [t("bulk.column.started"), <Age at={operation.created_at} />],
          [t("runs.column.duration"), <Took from={operation.created_at} to={operation.ended_at} />],
        ]}
      />
      {operation.errors && operation.errors.length > 0 && <Errors operation={operation} />}
    </>
  );
}

function Head({ operation, onChanged }: { operation: Operation; onChanged: () => Promise<void> }) {
  const [isAsking, setAsking] = useState(false);

  async function cancel(): Promise<void> {
    await post("/bulk/{bulk_id}/cancel", { path: { bulk_id: operation.id } });
    toast(t("bulk.stopped"));
    await onChanged();
  }

  return (
    <header class="page-head">
      <h1>{t(`bulk.action.${operation.action}`)}</h1>
      <Status state={operation.status} />
      {operation.status === "RUNNING" && (
        <div class="actions">
          <Act icon="stop" kind="danger" onClick={() => setAsking(true)}>
            {t("bulk.stop")}
          </Act>
        </div>
      )}
      {isAsking && (
        <ConfirmDialog
          title={t("bulk.stop.title")}
          lead={t("bulk.stop.lead", { n: number(operation.left) })}
          verb={t("bulk.stop")}
          onConfirm={cancel}
          onClose={() => setAsking(false)}
        />
      )}
    </header>
  );
}

function Advance({ operation }: { operation: Operation }) {
  const percent = share(operation);
  const left = operation.status === "RUNNING" ? secondsLeft(operation, now.value) : null;
  return (
    <div class="advance">
      <progress value={operation.done + operation.failed} max={operation.total || 1} aria-label={t("bulk.progress")} />
      <span class="strong">{percent} %</span>
      {left !== null && <span class="dim">{t("bulk.about", { time: duration(left) })}</span>}
    </div>
  );
}

function Errors({ operation }: { operation: Operation }) {
  const errors = operation.errors ?? [];
  const section = operation.action === "redrive" ? "dead-letters" : "runs";
  return (
    <section aria-label={t("bulk.errors")}>
      <header class="part-head">
        <h2>{t("bulk.errors")}</h2>
        {operation.failed > errors.length && <p class="dim">{t("bulk.errors.first", { n: number(errors.length) })}</p>}
      </header>
      <DataTable
        name="bulk-errors"
        rows={errors}
        keyOf={(one) => one.id}
        columns={[
          {
            title: t("bulk.column.item"),
            cell: (one) => (
              <a href={link([section, one.id])}>
                <RunId id={one.id} />
              </a>
            ),
          },
          { title: t("bulk.column.error"), class: "cell-main", cell: (one) => visible(one.error) },
        ]}
      />
    </section>
  );
}
