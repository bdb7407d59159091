import type { Run } from "../api/client";
import { now } from "../app/clock";
import { link } from "../app/router";
import { tickLabel, visible } from "../format";
import { t } from "../i18n";
import { Fact } from "../ui/DataTable";
import { Age, CopyButton, Moment, RunId, Tags, Took } from "../ui/texts";
import { pauses, retriedKinds, waitsFrom } from "./tries";

/** The details of a run, in one line or a few. */
export function RunFacts({ run }: { run: Run }) {
  return (
    <dl class="facts" aria-label={t("run.facts")}>
      <Fact name={t("run.fact.duration")} class="strong">
        <Took from={run.start_time} to={run.end_time} />
      </Fact>
      <Fact name={t("run.fact.wait")}>
        <Took from={waitsFrom(run, now.value)} to={run.start_time ?? run.end_time} />
      </Fact>
      <Fact name={t("run.fact.submitted")}>
        <Age at={run.submitted_at} /> <span class="dim wide-only">·</span>{" "}
        <span class="dim wide-only">
          <Moment at={run.submitted_at} />
        </span>
      </Fact>
      <Fact name={t("run.fact.worker")}>{run.worker_id ? visible(run.worker_id) : <span class="dim">–</span>}</Fact>
      <Fact name={t("run.fact.tag")}>
        <Tags tags={run.tag ? [run.tag] : []} />
      </Fact>
      {run.tags?.some((tag) => tag !== run.tag) && (
        <Fact name={t("run.fact.tags")}>
          <Tags tags={run.tags} />
        </Fact>
      )}
      {(run.attempt ?? 1) > 1 && <Fact name={t("run.fact.attempt")}>{run.attempt}</Fact>}
      <Timing run={run} />
      {run.retried_as !== null && (
        <Fact name={t("run.fact.retried_as")}>
          <a href={link(["runs", run.retried_as])}>
            <RunId id={run.retried_as} />
          </a>
        </Fact>
      )}
      {run.tenant_id !== null && <Fact name={t("run.fact.tenant")}>{visible(run.tenant_id)}</Fact>}
      {run.workflow_yaml_sha256 !== null && (
        <Fact name={t("run.fact.yaml")} class="mono" title={run.workflow_yaml_sha256}>
          {run.workflow_yaml_sha256.slice(0, 12)}
        </Fact>
      )}
      {run.wheels !== null && run.wheels.length > 0 && (
        <Fact name={t("run.fact.wheels")}>
          <Tags tags={run.wheels.map((wheel) => `${wheel.name.split("-")[0]} ${wheel.version}`)} />
        </Fact>
      )}
      <Fact name={t("run.fact.id")} class="mono id">
        {run.run_id}
        <CopyButton text={() => run.run_id} label={t("copy.id")} />
      </Fact>
    </dl>
  );
}

/** How long it may wait and take, and how often it is tried. */
function Timing({ run }: { run: Run }) {
  const kinds = run.retry && retriedKinds(run.retry);
  return (
    <>
      {run.start_within_sec !== null && <Fact name={t("run.fact.startWithin")}>{tickLabel(run.start_within_sec)}</Fact>}
      {run.timeout_sec !== null && <Fact name={t("run.fact.timeout")}>{tickLabel(run.timeout_sec)}</Fact>}
      {run.retry !== null && run.retry.max_attempts > 1 && (
        <Fact name={t("run.fact.retry")}>
          {t("run.fact.retry.policy", { n: run.retry.max_attempts, pauses: pauses(run.retry) })}
          {kinds && <Tags tags={kinds.map((kind) => t(`failure.${kind}`))} />}
        </Fact>
      )}
    </>
  );
}
