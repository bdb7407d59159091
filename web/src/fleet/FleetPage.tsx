import { get, patch, type Worker } from "../api/client";
import { now } from "../app/clock";
import { worker as workerCommand } from "../app/commands";
import { link, place, refine } from "../app/router";
import { canAct } from "../app/standing";
import { visible } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { Act } from "../ui/Act";
import { DataTable } from "../ui/DataTable";
import { Status, toneOf } from "../ui/Status";
import { Age, Command, Empty, Problem, RunId, Tags } from "../ui/texts";
import { toast } from "../ui/toasts";
import { QueueTable } from "./QueueTable";
import { servedQueues } from "./queues";
import { isLost, shownWorkers } from "./workers";

const REFRESH_MS = 2000;
const LIMIT = 500;

/** What waits and runs per tag, and who runs it. */
export function FleetPage() {
  const all = place.value.query.all === "1";
  const hidden = place.value.query.hidden === "1";
  const query = { include_hidden: hidden, limit: LIMIT, stale: "ok" as const };
  const { value, error, refresh } = usePolling(
    async (signal) => {
      // Asked for apart: a long list of stopped workers must not push living ones off the page.
      const others = all ? { scope: "all" as const } : { state: "DISCONNECTED" as const };
      const [queues, alive, rest] = await Promise.all([
        get("/queues", { query: { stale: "ok" }, signal }),
        get("/workers", { query: { ...query, scope: "active" }, signal }),
        get("/workers", { query: { ...query, ...others }, signal }),
      ]);
      const workers = shownWorkers(alive, rest, all, now.value);
      return { workers, queues: servedQueues(queues.items, workers) };
    },
    REFRESH_MS,
    JSON.stringify([all, query]),
  );

  async function setHidden(worker: Worker): Promise<void> {
    try {
      await patch("/workers/{worker_id}", { path: { worker_id: worker.worker_id }, body: { hidden: !worker.hidden } });
      await refresh();
    } catch (problem) {
      toast((problem as Error).message, "bad");
    }
  }

  return (
    <>
      <header class="page-head">
        <h1>{t("fleet.title")}</h1>
      </header>
      {error && <Problem error={error} />}
      {value === null && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {value !== null && value.queues.length > 0 && <QueueTable queues={value.queues} onChanged={refresh} />}
      <header class="part-head fleet-workers">
        <h2>{t("workers.title")}</h2>
        <div class="actions">
          <Toggle
            label={t("workers.scope")}
            isOn={all}
            onChange={(on) => refine({ ...place.value.query, all: on ? "1" : "" })}
          />
          <Toggle
            label={t("workers.hidden")}
            isOn={hidden}
            onChange={(on) => refine({ ...place.value.query, hidden: on ? "1" : "" })}
          />
        </div>
      </header>
      {value?.workers.length === 0 && !error && canAct.value && (
        <Empty title={t("workers.empty.title")}>
          <p>{t("workers.empty.lead")}</p>
          <Command text={workerCommand()} />
          <p class="dim">{t("command.nats")}</p>
        </Empty>
      )}
      {value !== null && value.workers.length > 0 && (
        <WorkerTable workers={value.workers} onHide={(worker) => void setHidden(worker)} />
      )}
    </>
  );
}

function Toggle({ label, isOn, onChange }: { label: string; isOn: boolean; onChange: (on: boolean) => void }) {
  return (
    <label class="inline">
      <input type="checkbox" checked={isOn} onChange={(event) => onChange(event.currentTarget.checked)} />
      <span>{label}</span>
    </label>
  );
}

function WorkerTable({ workers, onHide }: { workers: readonly Worker[]; onHide: (worker: Worker) => void }) {
  return (
    <DataTable
      name="workers"
      rows={workers}
      keyOf={(worker) => worker.worker_id}
      look={(worker) => `tone-${toneOf(worker.state)} ${worker.hidden ? "is-hidden" : ""}`}
      columns={[
        { title: t("workers.column.state"), class: "cell-status", cell: ({ state }) => <Status state={state} /> },
        { title: t("workers.column.worker"), class: "cell-main", cell: (worker) => <Name worker={worker} /> },
        { title: t("workers.column.current"), cell: (worker) => <RunLink id={worker.current_run_id} /> },
        { title: t("workers.column.slots"), class: "num", cell: ({ slots }) => slots ?? <span class="dim">–</span> },
        {
          title: t("workers.column.last"),
          cell: (worker) => (
            <span class="last-run">
              {worker.last_run_status && <Status state={worker.last_run_status} />}
              <RunLink id={worker.last_run_id} />
            </span>
          ),
        },
        { title: t("workers.column.heartbeat"), cell: (worker) => <Age at={worker.last_heartbeat_at} /> },
        { title: t("workers.column.tags"), cell: (worker) => <Tags tags={worker.tags} /> },
        { title: t("workers.column.wheels"), cell: (worker) => <Wheels sync={worker.wheel_sync} /> },
        {
          title: t("workers.hide"),
          isSilent: true,
          class: "cell-actions",
          cell: (worker) => (
            <Act
              kind="icon"
              icon={worker.hidden ? "eye" : "hide"}
              label={t(worker.hidden ? "workers.show.label" : "workers.hide.label", {
                worker: visible(worker.worker_id),
              })}
              onClick={() => onHide(worker)}
            />
          ),
        },
      ]}
    />
  );
}

/** With where and as what it runs; an older worker does not report that. */
function Name({ worker }: { worker: Worker }) {
  const { host, version, python } = worker.figures ?? {};
  return (
    <>
      <bdi class="strong">{visible(worker.worker_id)}</bdi>
      {worker.hidden && <span class="tag">{t("workers.isHidden")}</span>}
      {version && (
        <span class="row-reason">
          {visible(`${host ? `${host} · ` : ""}pyoco-server ${version} · Python ${python}`)}
        </span>
      )}
      {isLost(worker) && <span class="row-error">{t("workers.lost")}</span>}
    </>
  );
}

function RunLink({ id }: { id: string | null | undefined }) {
  if (!id) return <span class="dim">–</span>;
  return (
    <a href={link(["runs", id])}>
      <RunId id={id} />
    </a>
  );
}

function Wheels({ sync }: { sync: Worker["wheel_sync"] }) {
  if (!sync?.enabled) return <span class="dim">{t("workers.sync.off")}</span>;
  const installed = sync.installed_wheels ?? [];
  return (
    <span class="wheel-sync">
      {installed.length === 0 && <span class="dim">{t("workers.sync.none")}</span>}
      <span class="tags">
        {installed.map((wheel) => (
          <span class="tag" key={wheel.name} title={wheel.name}>
            {visible(wheel.package)} {visible(wheel.version)}
          </span>
        ))}
      </span>
      {(sync.skipped_incompatible_count ?? 0) > 0 && (
        <span
          class="dim"
          title={(sync.skipped_incompatible ?? []).map((one) => `${one.name}: ${one.reason}`).join("\n")}
        >
          {t("workers.sync.skipped", { n: sync.skipped_incompatible_count ?? 0 })}
        </span>
      )}
      {sync.error && (
        <span class="tone-bad" title={sync.error}>
          {t("workers.sync.error")}
        </span>
      )}
    </span>
  );
}
