import { useState } from "preact/hooks";
import { get, type Limit } from "../api/client";
import { client } from "../app/commands";
import { link } from "../app/router";
import { count, visible } from "../format";
import { language, t } from "../i18n";
import { usePages } from "../live/usePages";
import { Act } from "../ui/Act";
import { More } from "../ui/lists";
import { Command, Empty, Problem } from "../ui/texts";
import { LimitDialog } from "./LimitDialog";
import { fullness } from "./limit";
import { Allows, Concerns } from "./parts";

const REFRESH_MS = 3000;
const SAMPLE = "match: {flow: imports}\nkey: params.customer\nmax_running: 3";

export function LimitsPage() {
  const { rows, isLoaded, isMore, error, more, refresh } = usePages<Limit>(
    "limits",
    (query, signal) => get("/limits", { query, signal }),
    (limit) => limit.name,
    REFRESH_MS,
  );
  const [isMaking, setMaking] = useState(false);
  return (
    <>
      <header class="page-head">
        <h1>{t("limits.title")}</h1>
        <div class="actions">
          <Act icon="plus" kind="primary" onClick={() => setMaking(true)}>
            {t("limits.new")}
          </Act>
        </div>
      </header>
      <p class="lead">{t("limits.lead")}</p>
      {error && <Problem error={error} />}
      {!isLoaded && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {isLoaded && rows.length === 0 && <NoLimits />}
      {rows.length > 0 && (
        <>
          <LimitTable rows={rows} />
          <More isMore={isMore} shown={rows.length} onMore={more} />
        </>
      )}
      {isMaking && <LimitDialog limit={null} onSaved={refresh} onClose={() => setMaking(false)} />}
    </>
  );
}

function LimitTable({ rows }: { rows: readonly Limit[] }) {
  return (
    <div class="table-frame">
      <table class="limits stack">
        <thead>
          <tr>
            <th scope="col">{t("limits.column.limit")}</th>
            <th scope="col">{t("limits.column.match")}</th>
            <th scope="col">{t("limits.column.allows")}</th>
            <th scope="col">{t("limits.column.onFull")}</th>
            <th scope="col" class="num">
              {t("limits.column.holders")}
            </th>
            <th scope="col" class="num">
              {t("limits.column.waiting")}
            </th>
            <th scope="col" class="num">
              {t("limits.column.admitted")}
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((limit) => (
            <Row key={limit.name} limit={limit} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ limit }: { limit: Limit }) {
  const n = (value: number) => count(value, language.value);
  return (
    <tr class={`row ${limit.waiting > 0 ? "tone-waiting" : ""}`} data-limit={limit.name}>
      <td class="cell-main">
        <a class="row-link" href={link(["limits", limit.name])}>
          <bdi>{visible(limit.name)}</bdi>
        </a>
        {limit.description && <span class="row-reason">{visible(limit.description)}</span>}
      </td>
      <td class="cell-links" data-label={t("limits.column.match")}>
        <Concerns limit={limit} />
      </td>
      <td data-label={t("limits.column.allows")}>
        <Allows limit={limit} />
      </td>
      <td data-label={t("limits.column.onFull")}>{t(`limit.onFull.${limit.on_full}`)}</td>
      <td class="num" data-label={t("limits.column.holders")}>
        <Holders limit={limit} />
      </td>
      <td class={`num ${limit.waiting > 0 ? "strong" : "dim"}`} data-label={t("limits.column.waiting")}>
        {n(limit.waiting)}
      </td>
      <td class="num" data-label={t("limits.column.admitted")}>
        {n(limit.admitted)}
      </td>
    </tr>
  );
}

function Holders({ limit }: { limit: Limit }) {
  const share = fullness(limit);
  const n = count(limit.holders, language.value);
  if (share === null) return <>{n}</>;
  return (
    <span class={`progress ${share >= 1 ? "tone-waiting" : ""}`}>
      <progress value={share} max={1} aria-label={t("limits.column.holders")} />
      <span>
        {n}/{count(limit.max_running ?? 0, language.value)}
      </span>
    </span>
  );
}

function NoLimits() {
  return (
    <Empty title={t("limits.empty.title")}>
      <p>{t("limits.empty.lead")}</p>
      <pre class="sample" tabIndex={0} aria-label="per-customer.yaml">
        {SAMPLE}
      </pre>
      <p>{t("limits.empty.put")}</p>
      <Command text={client("limits put per-customer.yaml")} />
    </Empty>
  );
}
