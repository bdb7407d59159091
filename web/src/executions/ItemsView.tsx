import { useState } from "preact/hooks";
import { get, type NodeState, type Schemas } from "../api/client";
import { link } from "../app/router";
import { t } from "../i18n";
import { usePages } from "../live/usePages";
import { FilterSelect, More, Progress } from "../ui/lists";
import { Status } from "../ui/Status";
import { Problem, RunId } from "../ui/texts";
import { lookOf } from "./graphs/definition";

type Item = Schemas["MapItem"];
const STATUSES = ["RUNNING", "SUCCEEDED", "FAILED", "CANCELED"] as const;
const EVERY_MS = 3000;

/** The items of a map: how many have ended how, and each of them once somebody asks. */
export function ItemsView({
  executionId,
  nodeId,
  items,
}: {
  executionId: string;
  nodeId: string;
  items: NonNullable<NodeState["items"]>;
}) {
  const [isOpen, setOpen] = useState(false);
  const counts = { n: items.total, succeeded: items.succeeded, failed: items.failed, carried: items.carried };
  return (
    <details class="gate" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {t("items.title")}{" "}
        <Progress done={items.succeeded + items.failed} total={items.total} label={t("items.ended")} />{" "}
        <span class="dim">{t("items.counts", counts)}</span>
      </summary>
      {isOpen && <Rows executionId={executionId} nodeId={nodeId} />}
    </details>
  );
}

function Rows({ executionId, nodeId }: { executionId: string; nodeId: string }) {
  const [status, setStatus] = useState<Item["status"] | "">("");
  const path = { execution_id: executionId, node_id: nodeId };
  const pages = usePages<Item>(
    `${executionId} ${nodeId} ${status}`,
    (asking, signal) =>
      get("/executions/{execution_id}/nodes/{node_id}/items", {
        path,
        query: { ...asking, status: status || null },
        signal,
      }),
    (item) => String(item.index),
    EVERY_MS,
  );
  return (
    <>
      <div class="filters">
        <FilterSelect
          label={t("items.status")}
          value={status}
          choices={STATUSES.map((one) => ({ value: one, text: t(`state.${one}`) }))}
          onChange={(chosen) => setStatus(chosen as Item["status"] | "")}
        />
      </div>
      {pages.error && <Problem error={pages.error} />}
      <ul>
        {pages.rows.map((item) => (
          <li key={item.index}>
            <span class="mono">{item.index}</span> <Status state={lookOf(item.status)} /> <Work item={item} />
          </li>
        ))}
      </ul>
      {pages.isLoaded && <More isMore={pages.isMore} shown={pages.rows.length} onMore={pages.more} />}
    </>
  );
}

function Work({ item }: { item: Item }) {
  const { run_id: run, execution_id: child, carried_from: kept } = item;
  if (kept !== null) {
    return (
      <span class="dim">
        {t("node.carriedFrom")} <RunId id={kept} />
      </span>
    );
  }
  const to = run !== null ? link(["runs", run]) : child !== null ? link(["executions", child]) : null;
  if (to === null) return null;
  return (
    <a href={to}>
      <RunId id={run ?? child ?? ""} />
    </a>
  );
}
