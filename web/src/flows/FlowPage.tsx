import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ApiError, type FlowDetails, get, post, type RunSummary, type Schemas } from "../api/client";
import { link } from "../app/router";
import { useTitle } from "../app/title";
import { duration, tickLabel, visible } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { pauses } from "../runs/tries";
import { Act } from "../ui/Act";
import { Fact } from "../ui/DataTable";
import { PauseDialog, PauseFacts, ResumeDialog } from "../ui/Pausing";
import { Status } from "../ui/Status";
import { Age, Empty, Plain, Problem, Tags } from "../ui/texts";
import { DefaultsDialog } from "./DefaultsDialog";
import { FlowTabs } from "./FlowTabs";
import { Rate } from "./parts";
import { RunDialog } from "./RunDialog";

const REFRESH_MS = 3000;
const STRIP = 50;

export function FlowPage({ id }: { id: string }) {
  useTitle(id);
  const path = { name: id };
  const { value, error, refresh } = usePolling(
    async (signal) => {
      // With `updated_after` the answer is a page; without it, a bare array.
      const query = { flow: id, limit: STRIP, updated_after: 0, stale: "ok" as const };
      const [flow, runs] = await Promise.all([
        get("/flows/{name}", { path, query: { stale: "ok" }, signal }),
        get("/runs", { query, signal }),
      ]);
      return { flow, runs: (runs as Schemas["RunPage"]).items as RunSummary[] };
    },
    REFRESH_MS,
    id,
  );

  if (error instanceof ApiError && error.status === 404) {
    return (
      <Empty title={t("flow.notFound")}>
        <p>
          <a class="button" href={link(["flows"])}>
            {t("flow.toList")}
          </a>
        </p>
      </Empty>
    );
  }
  if (!value) return error ? <Problem error={error} /> : <p class="dim loading">{t("runs.loading")}</p>;

  const { flow, runs } = value;
  return (
    <>
      <Head flow={flow} runs={runs} onChanged={refresh} />
      {error && <Problem error={error} />}
      {flow.description && <p class="lead">{visible(flow.description)}</p>}
      {flow.paused && (
        <div class="notice tone-warn">
          <p>
            {t("flow.isPaused")} <PauseFacts pause={flow.paused} />
          </p>
        </div>
      )}
      <Facts flow={flow} />
      <FlowTabs flow={flow} runs={runs} defaults={defaultsShown(flow)} />
    </>
  );
}

function Head({
  flow,
  runs,
  onChanged,
}: {
  flow: FlowDetails;
  runs: readonly RunSummary[];
  onChanged: () => Promise<void>;
}) {
  const [open, setOpen] = useState<"run" | "pause" | "resume" | "edit" | null>(null);
  const close = () => setOpen(null);
  const path = { name: flow.name };
  const change = flow.paused ? "resume" : "pause";
  return (
    <>
      <header class="page-head">
        <h1>
          <Plain text={flow.name} />
        </h1>
        {flow.paused && <Status state="PAUSED" />}
        <div class="actions">
          <Act icon={flow.paused ? "play" : "pause"} onClick={() => setOpen(change)}>
            {t(flow.paused ? "pause.resume" : "pause.do")}
          </Act>
          <Act icon="edit" onClick={() => setOpen("edit")}>
            {t("flow.edit")}
          </Act>
          <Act icon="play" kind="primary" onClick={() => setOpen("run")}>
            {t("flow.run")}
          </Act>
        </div>
      </header>
      {open === "run" && <RunDialog flow={flow} last={runs[0]?.run_id ?? null} onClose={close} />}
      {open === "edit" && <DefaultsDialog flow={flow} onSaved={onChanged} onClose={close} />}
      {open === "pause" && (
        <PauseDialog
          title={t("flow.pause.title", { flow: visible(flow.name) })}
          lead={t("flow.pause.lead")}
          onPause={async (body) => {
            await post("/flows/{name}/pause", { path, body });
            await onChanged();
          }}
          onClose={close}
        />
      )}
      {open === "resume" && (
        <ResumeDialog
          title={t("flow.resume.title", { flow: visible(flow.name) })}
          lead={t("flow.resume.lead")}
          onResume={async () => {
            await post("/flows/{name}/resume", { path });
            await onChanged();
          }}
          onClose={close}
        />
      )}
    </>
  );
}

function Facts({ flow }: { flow: FlowDetails }) {
  const seconds = (value: number | null) => (value === null ? <span class="dim">–</span> : duration(value));
  return (
    <dl class="facts" aria-label={t("run.facts")}>
      <Fact name={t("flows.column.success")} class="strong">
        <Rate rate={flow.success_rate} />
      </Fact>
      <Fact name="p50">{seconds(flow.p50_sec)}</Fact>
      <Fact name="p95">{seconds(flow.p95_sec)}</Fact>
      <Fact name={t("runs.column.tags")}>
        <Tags tags={flow.tags} />
      </Fact>
      <Fact name={t("flows.column.workers")}>
        {flow.workers.length === 0 ? (
          <span class="dim">{t("flows.unreported")}</span>
        ) : (
          <a href={link(["queues"])}>{flow.workers.map(visible).join(", ")}</a>
        )}
      </Fact>
      {flow.wheel_version !== null && <Fact name={t("flows.column.wheel")}>{visible(flow.wheel_version)}</Fact>}
      <Links title={t("flow.schedules")} section="schedules" names={flow.schedules} />
      <Links title={t("flow.limits")} section="limits" names={flow.limits} />
      {flow.owner && <Fact name={t("flow.owner")}>{visible(flow.owner)}</Fact>}
    </dl>
  );
}

function Links({ title, section, names }: { title: string; section: string; names: readonly string[] }) {
  if (names.length === 0) return null;
  return (
    <Fact name={title}>
      {names.map((name) => (
        <a key={name} href={link([section, name])}>
          {visible(name)}
        </a>
      ))}
    </Fact>
  );
}

/** Defaults for its runs. */
function defaultsShown(flow: FlowDetails): [string, ComponentChildren][] {
  const { retry, priority, timeout_sec, start_within_sec } = flow;
  const found: [string, ComponentChildren][] = [
    [t("flow.priority"), priority && t(`priority.${priority}`)],
    [t("run.fact.timeout"), timeout_sec && tickLabel(timeout_sec)],
    [t("run.fact.startWithin"), start_within_sec && tickLabel(start_within_sec)],
    [
      t("run.fact.retry"),
      retry && retry.max_attempts > 1 && t("run.fact.retry.policy", { n: retry.max_attempts, pauses: pauses(retry) }),
    ],
    [t("flow.changed"), flow.updated_at && <Age at={flow.updated_at} />],
  ];
  return found.filter(([, value]) => value);
}
