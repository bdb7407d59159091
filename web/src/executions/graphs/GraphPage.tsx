import { useState } from "preact/hooks";
import { ApiError, get } from "../../api/client";
import { link, place, refine } from "../../app/router";
import { useTitle } from "../../app/title";
import { GraphView } from "../../drawing/GraphView";
import { visible } from "../../format";
import { t } from "../../i18n";
import { usePolling } from "../../live/usePolling";
import { Act } from "../../ui/Act";
import { Fact } from "../../ui/DataTable";
import { JsonValue } from "../../ui/JsonValue";
import { Age, Empty, Moment, Plain, Problem } from "../../ui/texts";
import { StartDialog } from "../StartDialog";
import { type Definition, definitionOf, kindOf, picture } from "./definition";
import { RegisterDialog } from "./RegisterDialog";

const REFRESH_MS = 10_000;

export function GraphPage({ id }: { id: string }) {
  useTitle(id);
  const wanted = Number(place.value.query.version) || null;
  const path = { graph_id: id };
  const newest = usePolling((signal) => get("/graphs/{graph_id}", { path, signal }), REFRESH_MS, id);
  const older = usePolling(
    async (signal) =>
      wanted === null ? null : get("/graphs/{graph_id}", { path, query: { version: wanted }, signal }),
    REFRESH_MS,
    `${id} ${wanted}`,
  );
  const [open, setOpen] = useState<"start" | "register" | null>(null);
  const graph = wanted === null ? newest.value : older.value?.version === wanted ? older.value : null;
  const error = (wanted === null ? newest : older).error;

  if (error instanceof ApiError && error.status === 404) {
    return (
      <Empty title={t("graph.notFound")}>
        <p>
          <a class="button" href={link(["graphs"])}>
            {t("graph.toList")}
          </a>
        </p>
      </Empty>
    );
  }
  if (!graph) return error ? <Problem error={error} /> : <p class="dim loading">{t("runs.loading")}</p>;

  const definition = definitionOf(graph);
  const selected = place.value.query.node ?? null;
  return (
    <>
      <header class="page-head">
        <h1>
          <Plain text={graph.graph_id} />
        </h1>
        <label class="inline">
          <span>{t("graphs.column.version")}</span>
          <select
            value={graph.version}
            onChange={(event) =>
              refine({
                version:
                  Number(event.currentTarget.value) === newest.value?.version ? undefined : event.currentTarget.value,
              })
            }
          >
            {Array.from({ length: Math.max(newest.value?.version ?? 0, graph.version) }, (_, n) => n + 1)
              .reverse()
              .map((version) => (
                <option key={version} value={version}>
                  v{version}
                </option>
              ))}
          </select>
        </label>
        {newest.value !== null && newest.value.version !== graph.version && <span class="tag">{t("graph.older")}</span>}
        <div class="actions">
          <a class="button quiet" href={link(["executions"], { graph: graph.graph_id })}>
            {t("graph.executions")}
          </a>
          <button type="button" class="button" onClick={() => setOpen("register")}>
            {t("graph.next")}
          </button>
          <Act icon="plus" kind="primary" onClick={() => setOpen("start")}>
            {t("executions.new")}
          </Act>
        </div>
      </header>
      <dl class="facts" aria-label={t("run.facts")}>
        <Fact name={t("graphs.column.registered")}>
          <Age at={graph.registered_at} />{" "}
          <span class="dim wide-only">
            · <Moment at={graph.registered_at} />
          </span>
        </Fact>
        <Fact name={t("graphs.column.by")}>{visible(graph.registered_by)}</Fact>
        <Fact name={t("wheels.column.sha")} class="mono" title={graph.sha256}>
          {graph.sha256.slice(0, 12)}
        </Fact>
      </dl>
      <section class="panel" aria-label={t("run.view.graph")}>
        <header class="panel-head with-tools">
          <h2>{t("run.view.graph")}</h2>
        </header>
        <GraphView
          {...picture(definition, null, (kind) => t(`node.kind.${kind}`), t("edge.failure"), t("edge.undo"))}
          label={t("execution.graph", { n: Object.keys(definition.nodes).length })}
          selected={selected}
          onSelect={(node) => refine({ ...place.value.query, node: node === selected ? undefined : node })}
        />
      </section>
      {selected !== null && selected in definition.nodes && <Plan id={selected} definition={definition} />}
      <section class="panel" aria-label={t("graph.definition")}>
        <header class="panel-head">
          <h2>{t("graph.definition")}</h2>
        </header>
        <JsonValue value={graph.definition} label={t("graph.definition")} />
      </section>
      {open === "start" && <StartDialog graph={graph.graph_id} onClose={() => setOpen(null)} />}
      {open === "register" && (
        <RegisterDialog
          id={graph.graph_id}
          text={JSON.stringify(graph.definition, null, 2)}
          onClose={() => setOpen(null)}
        />
      )}
    </>
  );
}

function Plan({ id, definition }: { id: string; definition: Definition }) {
  const node = definition.nodes[id];
  return (
    <section class="panel task" aria-label={visible(id)}>
      <header class="panel-head">
        <h2>
          <Plain text={id} /> <span class="dim">{t(`node.kind.${kindOf(node)}`)}</span>
        </h2>
      </header>
      <JsonValue value={node} label={visible(id)} />
    </section>
  );
}
