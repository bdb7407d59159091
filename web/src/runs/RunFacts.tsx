import type { Run } from "../api/client";
import { now } from "../app/clock";
import { link } from "../app/router";
import { tickLabel, visible } from "../format";
import { t } from "../i18n";
import { Age, CopyButton, Moment, RunId, Tags, Took } from "../ui/texts";
import { pauses, retriedKinds, waitsFrom } from "./tries";

/** The details of a run, in one line or a few. */
export function RunFacts({ run }: { run: Run }) {
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
          <Took from={waitsFrom(run, now.value)} to={run.start_time ?? run.end_time} />
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
      <Timing run={run} />
      {run.retried_as !== null && (
        <div>
          <dt>{t("run.fact.retried_as")}</dt>
          <dd>
            <a href={link(["runs", run.retried_as])}>
              <RunId id={run.retried_as} />
            </a>
          </dd>
        </div>
      )}
      {run.tenant_id !== null && (
        <div>
          <dt>{t("run.fact.tenant")}</dt>
          <dd>{visible(run.tenant_id)}</dd>
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

/** How long it may wait and take, and how often it is tried. */
function Timing({ run }: { run: Run }) {
  const kinds = run.retry && retriedKinds(run.retry);
  return (
    <>
      {run.start_within_sec !== null && (
        <div>
          <dt>{t("run.fact.startWithin")}</dt>
          <dd>{tickLabel(run.start_within_sec)}</dd>
        </div>
      )}
      {run.timeout_sec !== null && (
        <div>
          <dt>{t("run.fact.timeout")}</dt>
          <dd>{tickLabel(run.timeout_sec)}</dd>
        </div>
      )}
      {run.retry !== null && run.retry.max_attempts > 1 && (
        <div>
          <dt>{t("run.fact.retry")}</dt>
          <dd>
            {t("run.fact.retry.policy", { n: run.retry.max_attempts, pauses: pauses(run.retry) })}
            {kinds && <Tags tags={kinds.map((kind) => t(`failure.${kind}`))} />}
          </dd>
        </div>
      )}
    </>
  );
}
