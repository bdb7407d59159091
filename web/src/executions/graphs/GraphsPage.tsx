import { useState } from "preact/hooks";
import { type GraphSummary, get } from "../../api/client";
import { client } from "../../app/commands";
import { link } from "../../app/router";
import { visible } from "../../format";
import { t } from "../../i18n";
import { usePolling } from "../../live/usePolling";
import { Act } from "../../ui/Act";
import { Age, Command, Empty, Problem } from "../../ui/texts";
import { RegisterDialog } from "./RegisterDialog";

const REFRESH_MS = 5000;
const MOST = 200;

export function GraphsPage() {
  const graphs = usePolling((signal) => get("/graphs", { query: { limit: MOST }, signal }), REFRESH_MS, "graphs");
  const [isRegistering, setRegistering] = useState(false);
  const sorted = [...(graphs.value?.items ?? [])].sort((a, b) => a.graph_id.localeCompare(b.graph_id));
  return (
    <>
      <header class="page-head">
        <h1>{t("graphs.title")}</h1>
        <Act icon="plus" kind="primary" onClick={() => setRegistering(true)}>
          {t("graphs.register")}
        </Act>
      </header>
      <p class="lead">{t("graphs.lead")}</p>
      {graphs.error && <Problem error={graphs.error} />}
      {graphs.value === null && !graphs.error && <p class="dim loading">{t("runs.loading")}</p>}
      {graphs.value !== null && sorted.length === 0 && (
        <Empty title={t("graphs.empty.title")}>
          <p>{t("graphs.empty.lead")}</p>
          <Command text={client("graphs put monthly-close.yaml")} />
        </Empty>
      )}
      {sorted.length > 0 && <GraphTable graphs={sorted} />}
      {graphs.value?.next_cursor && <p class="dim list-end">{t("graphs.more", { n: MOST })}</p>}
      {isRegistering && <RegisterDialog onClose={() => setRegistering(false)} />}
    </>
  );
}

function GraphTable({ graphs }: { graphs: readonly GraphSummary[] }) {
  return (
    <div class="table-frame">
      <table class="graphs stack">
        <thead>
          <tr>
            <th scope="col">{t("executions.column.graph")}</th>
            <th scope="col">{t("graphs.column.version")}</th>
            <th scope="col" class="num">
              {t("executions.column.nodes")}
            </th>
            <th scope="col">{t("graphs.column.registered")}</th>
            <th scope="col">{t("graphs.column.by")}</th>
            <th scope="col">{t("wheels.column.sha")}</th>
          </tr>
        </thead>
        <tbody>
          {graphs.map((graph) => (
            <tr class="row" key={graph.graph_id}>
              <td class="cell-main">
                <a class="row-link" href={link(["graphs", graph.graph_id])}>
                  <bdi>{visible(graph.graph_id)}</bdi>
                </a>
              </td>
              <td data-label={t("graphs.column.version")}>
                <span class="tag">v{graph.version}</span>
              </td>
              <td class="num" data-label={t("executions.column.nodes")}>
                {graph.nodes}
              </td>
              <td data-label={t("graphs.column.registered")}>
                <Age at={graph.registered_at} />
              </td>
              <td data-label={t("graphs.column.by")}>{visible(graph.registered_by)}</td>
              <td class="dim wide-only">
                <span class="mono" title={graph.sha256}>
                  {graph.sha256.slice(0, 12)}
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
