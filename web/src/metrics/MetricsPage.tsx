import { link } from "../app/router";
import { count, tickLabel } from "../format";
import { language, t } from "../i18n";
import { Problem } from "../ui/texts";
import { ChartView, type Series } from "./ChartView";
import { quantiles, type Reading, rates, readingError, readings } from "./history";

const perMinute = (value: number) => (value < 10 && value % 1 ? value.toFixed(1) : String(Math.round(value)));

export function MetricsPage() {
  const all = readings.value;
  const now = all.at(-1);
  return (
    <>
      <header class="page-head">
        <h1>{t("metrics.title")}</h1>
      </header>
      <p class="lead">{t("metrics.lead")}</p>
      {readingError.value && <Problem error={readingError.value} />}
      {now && <Figures now={now} />}
      {all.length < 2 ? (
        !readingError.value && <p class="dim loading">{t("metrics.collecting")}</p>
      ) : (
        <div class="charts">
          <ChartView
            title={t("metrics.throughput")}
            unit={t("metrics.throughput.unit")}
            series={throughput(all)}
            format={perMinute}
          />
          <ChartView
            title={t("metrics.duration")}
            unit={t("metrics.quantiles")}
            series={both(all, "durations")}
            format={tickLabel}
          />
          <ChartView
            title={t("metrics.wait")}
            unit={t("metrics.quantiles")}
            series={both(all, "waits")}
            format={tickLabel}
          />
          <ChartView
            title={t("metrics.http")}
            unit={t("metrics.quantiles")}
            series={both(all, "http")}
            format={tickLabel}
          />
        </div>
      )}
    </>
  );
}

function throughput(all: readonly Reading[]): Series[] {
  return [
    { name: t("metrics.completed"), tone: "good", points: rates(all, "completed") },
    { name: t("metrics.failed"), tone: "bad", points: rates(all, "failed") },
    { name: t("metrics.cancelled"), tone: "warn", points: rates(all, "cancelled") },
  ];
}

function both(all: readonly Reading[], of: "durations" | "waits" | "http"): Series[] {
  return [
    { name: t("metrics.median"), tone: "busy", points: quantiles(all, of, 0.5) },
    { name: t("metrics.p95"), tone: "quiet", points: quantiles(all, of, 0.95) },
  ];
}

function Figures({ now }: { now: Reading }) {
  return (
    <ul class="figures" aria-label={t("metrics.now")}>
      <Figure label={t("metrics.running")} value={now.running} href={link(["runs"], { status: "RUNNING" })} />
      <Figure label={t("metrics.pending")} value={now.pending} href={link(["runs"], { status: "PENDING" })} />
      <Figure label={t("metrics.workers")} value={now.workers} href={link(["workers"])} />
      <Figure label={t("metrics.dlq")} value={now.deadLetters} isBad={now.deadLetters > 0} />
    </ul>
  );
}

function Figure({ label, value, href, isBad }: { label: string; value: number; href?: string; isBad?: boolean }) {
  const inside = (
    <>
      <span class="figure-label">{label}</span>
      <span class={`figure-value ${isBad ? "tone-bad" : ""}`}>{count(value, language.value)}</span>
    </>
  );
  return <li>{href ? <a href={href}>{inside}</a> : <div>{inside}</div>}</li>;
}
