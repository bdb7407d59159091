/** Is everything all right, and if not, where. */
import type { ComponentChildren } from "preact";
import { now } from "../app/clock";
import { link, place } from "../app/router";
import { inbox } from "../executions/waits/inbox";
import { isUnserved, type ServedQueue } from "../fleet/queues";
import { percent } from "../flows/flow";
import { ago, count, duration, visible } from "../format";
import { language, t } from "../i18n";
import { Glyph, type IconName } from "../ui/icons";
import { toneOf } from "../ui/Status";
import { Problem } from "../ui/texts";
import { type Need, needsOf } from "./attention";
import { EndedChart } from "./EndedChart";
import { FailureGroups } from "./FailureGroups";
import { type Failures, grouped } from "./failures";
import { Spark } from "./Spark";
import { countsOf, RANGES, type RangeName, rangeOf, type Stats } from "./series";
import { Tiles } from "./Tiles";
import { useFleet, useSeries } from "./useOverview";

const n = (value: number) => count(value, language.value);

export function OverviewPage() {
  const range = rangeOf(place.value.query.range);
  const fleet = useFleet();
  const series = useSeries(range);
  const error = fleet.error ?? series.error;
  const found = series.value;
  const isLoaded = fleet.value !== null && found !== null;
  return (
    <>
      <header class="page-head">
        <h1>{t("nav.overview")}</h1>
        <div class="actions">
          <Ranges chosen={range} />
        </div>
      </header>
      {error && <Problem error={error} />}
      {!isLoaded && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {fleet.value && found && (
        <>
          <Attention needs={needsOf({ ...fleet.value, flows: found.failing, waits: inbox.value })} />
          <Tiles found={found} workers={fleet.value.workers} queues={fleet.value.queues} />
          <EndedChart stats={found.ended} range={RANGES[found.name]} from={found.from} />
          <div class="overview-columns">
            <FlowsPart strips={found.strips} since={found.from} />
            <QueuesPart queues={fleet.value.queues} stats={found.tags} range={found.name} from={found.from} />
          </div>
          <FailuresPart groups={grouped(found.failed)} />
        </>
      )}
    </>
  );
}

function Ranges({ chosen }: { chosen: RangeName }) {
  return (
    <nav class="tabs" aria-label={t("overview.range")}>
      {(Object.keys(RANGES) as RangeName[]).map((name) => (
        <a key={name} href={link(["overview"], { range: name })} aria-current={name === chosen ? "true" : undefined}>
          {t(`overview.range.${name}`)}
        </a>
      ))}
    </nav>
  );
}

// Needs attention

const ICONS: Record<Need["kind"], { icon: IconName; tone: string }> = {
  flow: { icon: "failed", tone: "bad" },
  queue: { icon: "disconnected", tone: "bad" },
  worker: { icon: "disconnected", tone: "bad" },
  delivery: { icon: "bell", tone: "bad" },
  paused: { icon: "pause", tone: "warn" },
  waits: { icon: "waiting", tone: "waiting" },
};

function textOf(need: Need): string {
  switch (need.kind) {
    case "flow":
      return t("overview.need.flow", { flow: visible(need.flow), failed: n(need.failed), all: n(need.all) });
    case "queue":
      return t("overview.need.queue", { tag: visible(need.tag), n: n(need.n), oldest: duration(need.oldest) });
    case "worker":
      return t("overview.need.worker", {
        worker: visible(need.worker),
        ago: ago(now.value - need.at, language.value),
      });
    case "delivery":
      return t("overview.need.delivery", { channel: need.channel, n: n(need.n), error: visible(need.error) });
    case "paused":
      return t("overview.need.paused", { tag: visible(need.tag), n: n(need.n) });
    case "waits":
      return t("overview.need.waits", {
        n: `${n(need.n)}${need.isMore ? "+" : ""}`,
        oldest: duration(now.value - need.oldest),
      });
  }
}

function hrefOf(need: Need): string {
  switch (need.kind) {
    case "flow":
      return link(["runs"], { flow: need.flow, status: "FAILED", since: String(Math.floor(now.value - 3600)) });
    case "delivery":
      return link(["alerts", "deliveries"], { channel: need.channel, status: "FAILED" });
    case "waits":
      return link(["waits"]);
    default:
      return link(["queues"]);
  }
}

function Attention({ needs }: { needs: readonly Need[] }) {
  return (
    <section class={`attention panel ${needs.length === 0 ? "is-quiet" : ""}`} aria-labelledby="attention">
      <h2 id="attention">{t("overview.attention")}</h2>
      {needs.length === 0 ? (
        <p class="tone-good">
          <Glyph name="succeeded" />
          {t("overview.quiet")}
        </p>
      ) : (
        <ul>
          {needs.map((need) => {
            const { icon, tone } = ICONS[need.kind];
            const text = textOf(need);
            return (
              <li key={text} class={`tone-${tone}`} data-need={need.kind}>
                <span class="status-icon">
                  <Glyph name={icon} />
                </span>
                <span class="attention-text">{text}</span>
                <a class="button" href={hrefOf(need)}>
                  {t(`overview.do.${need.kind}`)}
                </a>
              </li>
            );
          })}
        </ul>
      )}
    </section>
  );
}

// Flows, queues, errors

function Part({ title, href, children }: { title: string; href: string; children: ComponentChildren }) {
  return (
    <section class="panel overview-part" aria-label={title}>
      <header class="panel-head">
        <h2>{title}</h2>
        <a class="button quiet" href={href}>
          {t("overview.all")}
          <Glyph name="chevron" size={12} />
        </a>
      </header>
      {children}
    </section>
  );
}

type Strip = NonNullable<ReturnType<typeof useSeries>["value"]>["strips"][number];

function FlowsPart({ strips, since }: { strips: readonly Strip[]; since: number }) {
  return (
    <Part title={t("overview.flows")} href={link(["flows"])}>
      {strips.length === 0 && <p class="dim pad">{t("overview.flows.none")}</p>}
      <ul class="overview-rows">
        {strips.map((one) => (
          <li key={one.flow} class="flow-failures">
            <a class="strong" href={link(["flows", one.flow])}>
              <bdi>{visible(one.flow)}</bdi>
            </a>
            <a
              class="tone-bad tone-text"
              href={link(["runs"], { flow: one.flow, status: "FAILED", since: String(since) })}
            >
              {t("overview.flows.failed", { failed: n(one.failed), all: n(one.all) })}{" "}
              <span class="dim">{percent(one.failed / Math.max(one.all, 1))}</span>
            </a>
            <ol class="squares" aria-label={t("overview.flows.last")}>
              {one.last.map((run) => (
                <li key={run.run_id}>
                  <a
                    class={`tone-${toneOf(run.status)}`}
                    href={link(["runs", run.run_id])}
                    title={t(`state.${run.status}`)}
                  >
                    <span class="sr-only">{t(`state.${run.status}`)}</span>
                  </a>
                </li>
              ))}
            </ol>
          </li>
        ))}
      </ul>
    </Part>
  );
}

function QueuesPart({
  queues,
  stats,
  range,
  from,
}: {
  queues: readonly ServedQueue[];
  stats: Stats;
  range: RangeName;
  from: number;
}) {
  return (
    <Part title={t("overview.queues")} href={link(["queues"])}>
      {queues.length === 0 && <p class="dim pad">{t("overview.queues.none")}</p>}
      <ul class="overview-rows">
        {queues.slice(0, 8).map((queue) => (
          <li key={queue.tag} class="queue-line">
            <a class="strong" href={link(["runs"], { tag: queue.tag })}>
              <bdi>{visible(queue.tag)}</bdi>
            </a>
            <span class={isUnserved(queue) ? "tone-bad tone-text" : queue.waiting > 0 ? "" : "dim"}>
              {t("overview.queues.waiting", { n: n(queue.waiting) })}
              {queue.waiting > 0 && ` · ${duration(queue.oldest_wait_sec)}`}
            </span>
            <span class="dim">
              {queue.paused
                ? t("state.PAUSED")
                : queue.slots
                  ? t("overview.queues.slots", { n: n(queue.running), slots: n(queue.slots) })
                  : queue.workers === 0
                    ? t("overview.queues.nobody")
                    : n(queue.running)}
            </span>
            <Spark values={countsOf(stats, queue.tag, RANGES[range], from)} tone="quiet" />
          </li>
        ))}
      </ul>
    </Part>
  );
}

function FailuresPart({ groups }: { groups: readonly Failures[] }) {
  return (
    <Part title={t("overview.errors")} href={link(["runs"], { status: "FAILED" })}>
      <FailureGroups groups={groups.slice(0, 8)} />
    </Part>
  );
}
