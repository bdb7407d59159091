import type { ComponentChildren } from "preact";
import type { Worker } from "../api/client";
import { now } from "../app/clock";
import { link } from "../app/router";
import { inbox } from "../executions/waits/inbox";
import type { ServedQueue } from "../fleet/queues";
import { isLost } from "../fleet/workers";
import { count, duration } from "../format";
import { language, t } from "../i18n";
import { Spark } from "./Spark";
import { type Change, changeOf, figuresOf, pointsOf, RANGES, slotsOf, successOf } from "./series";
import type { useSeries } from "./useOverview";

type Found = NonNullable<ReturnType<typeof useSeries>["value"]>;

const n = (value: number) => count(value, language.value);

export function rateText(rate: number | null): string {
  if (rate === null) return "–";
  // 99.96 % is not 100 %: what failed must show.
  return rate === 1 ? "100 %" : `${Math.min(99.9, rate * 100).toFixed(1)} %`;
}

export function Tiles({
  found: { name, ended, from },
  workers,
  queues,
}: {
  found: Found;
  workers: readonly Worker[];
  queues: readonly ServedQueue[];
}) {
  const range = RANGES[name];
  const slots = slotsOf(ended, range, from);
  const current = figuresOf(ended, from, from + range.sec);
  const before = figuresOf(ended, from - range.sec, from);
  const since = String(from);
  const running = queues.reduce((sum, queue) => sum + queue.running, 0);
  const places = workers.filter((one) => !isLost(one)).reduce((sum, one) => sum + (one.slots ?? 1), 0);
  const waiting = inbox.value?.items ?? [];
  return (
    <ul class="tiles">
      <Tile
        label={t("overview.tile.success")}
        value={rateText(current.success)}
        change={pointsOf(current.success, before.success)}
        href={link(["runs"], { since })}
      >
        <Spark values={slots.map(successOf)} tone="good" />
      </Tile>
      <Tile
        label={t("overview.tile.rate")}
        value={
          current.perMin === 0 ? "0" : current.perMin < 10 ? current.perMin.toFixed(1) : n(Math.round(current.perMin))
        }
        change={changeOf(current.perMin, before.perMin, null)}
        href={link(["runs"], { since })}
      >
        <Spark values={slots.map((one) => one.all)} tone="busy" />
      </Tile>
      <Tile
        label={t("overview.tile.failed")}
        value={n(current.failed)}
        change={changeOf(current.failed, before.failed, "less")}
        isBad={current.failed > 0}
        href={link(["runs"], { since, status: "FAILED" })}
      >
        <Spark values={slots.map((one) => one.FAILED)} tone="bad" />
      </Tile>
      <Tile
        label={t("overview.tile.running")}
        value={n(running)}
        of={places > 0 ? t("overview.tile.of", { n: n(places) }) : t("overview.queues.nobody")}
        href={link(["runs"], { status: "RUNNING" })}
      >
        <progress value={running} max={Math.max(places, running, 1)} aria-label={t("overview.tile.running")} />
      </Tile>
      <Tile
        label={t("overview.tile.wait")}
        value={current.wait === null ? "–" : duration(current.wait)}
        change={changeOf(current.wait, before.wait, "less")}
        href={link(["queues"])}
      >
        <Spark values={slots.map((one) => one.wait)} tone="quiet" />
      </Tile>
      <Tile
        label={t("overview.tile.people")}
        value={`${n(waiting.length)}${inbox.value?.cursor ? "+" : ""}`}
        isAsking={waiting.length > 0}
        href={link(["waits"])}
      >
        <span class="tile-note dim">
          {waiting.length === 0
            ? t("overview.tile.nobody")
            : t("overview.tile.oldest", {
                time: duration(now.value - Math.min(...waiting.map((one) => one.waiting_at))),
              })}
        </span>
      </Tile>
    </ul>
  );
}

function Tile({
  label,
  value,
  of,
  change,
  isBad,
  isAsking,
  href,
  children,
}: {
  label: string;
  value: string;
  of?: string;
  change?: Change | null;
  isBad?: boolean;
  isAsking?: boolean;
  href: string;
  children: ComponentChildren;
}) {
  return (
    <li>
      <a href={href} class={isAsking ? "is-asking" : undefined}>
        <span class="tile-label">{label}</span>
        <span class={`tile-value ${isBad ? "tone-bad tone-text" : ""}`}>
          {value}
          {of && <span class="dim"> {of}</span>}
        </span>
        {change && (
          <span
            class={`tile-change ${change.isGood === null ? "dim" : `tone-text tone-${change.isGood ? "good" : "bad"}`}`}
            title={t("overview.tile.change")}
          >
            {change.text}
          </span>
        )}
        {children}
      </a>
    </li>
  );
}
