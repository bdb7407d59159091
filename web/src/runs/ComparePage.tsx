import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { changes } from "../admin/audit";
import { get, type Json, type Run, type RunSummary, type Schemas } from "../api/client";
import { now } from "../app/clock";
import { link, place, refine } from "../app/router";
import { useTitle } from "../app/title";
import { ago, duration, shortId, visible } from "../format";
import { language, t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { DataTable } from "../ui/DataTable";
import { ChoiceField } from "../ui/fields";
import { Missing } from "../ui/Missing";
import { Status } from "../ui/Status";
import { Age, RunId, Took } from "../ui/texts";
import { pairsOf, type TaskPair, valuesOf } from "./compare";
import { LATEST } from "./detail";
import { waitsFrom } from "./tries";

const REFRESH_MS = 5000;
const CHOICES = 30;

/** A run beside another of its flow; `LATEST`: beside the newest that completed. */
export function ComparePage({ id, other }: { id: string; other: string }) {
  const { value, error } = usePolling(
    async (signal) => {
      const read = (run_id: string) =>
        get("/runs/{run_id}", { path: { run_id }, query: { include: ["records" as const] }, signal });
      const run = await read(id);
      const query = { flow: run.flow_name, updated_after: 0, limit: CHOICES, stale: "ok" as const };
      const page = (await get("/runs", { query, signal })) as Schemas["RunPage"];
      const others = (page.items as RunSummary[]).filter((one) => one.run_id !== id);
      const latest = others.find((one) => one.status === "COMPLETED") ?? others[0];
      const wanted = other === LATEST ? latest?.run_id : other;
      return { run, others, with: wanted === undefined ? null : await read(wanted) };
    },
    REFRESH_MS,
    `${id} ${other}`,
  );
  const found = value?.with?.run_id;
  useEffect(() => {
    // It stays the same one while newer ones complete.
    if (other === LATEST && found) refine({ ...place.value.query, with: found });
  }, [other, found]);
  useTitle(value && `${visible(value.run.flow_name)} · ${shortId(id)} · ${t("compare.title")}`);
  if (!value) return <Missing error={error} title={t("run.notFound")} section="runs" />;
  return (
    <>
      <header class="page-head">
        <h1>
          {t("compare.title")} <span class="dim">· {visible(value.run.flow_name)}</span>
        </h1>
        <div class="actions">
          <a class="button" href={link(["runs", id])}>
            {t("compare.back")}
          </a>
        </div>
      </header>
      {value.with === null ? (
        <p class="dim">{t("compare.none")}</p>
      ) : (
        <>
          <Choice others={value.others} chosen={value.with} />
          <Parts runs={[value.run, value.with]} />
        </>
      )}
    </>
  );
}

function Choice({ others, chosen }: { others: readonly RunSummary[]; chosen: Run }) {
  const isListed = others.some((one) => one.run_id === chosen.run_id);
  const all = isListed ? others : [chosen as unknown as RunSummary, ...others];
  return (
    <form class="compare-with" onSubmit={(event) => event.preventDefault()}>
      <ChoiceField
        label={t("compare.with")}
        value={chosen.run_id}
        onChange={(run) => refine({ ...place.value.query, with: run })}
        choices={all.map((one) => ({
          value: one.run_id,
          text: [t(`state.${one.status}`), ago(now.value - one.updated_at, language.value), shortId(one.run_id)].join(
            " · ",
          ),
        }))}
      />
    </form>
  );
}

type Two = readonly [Run, Run];

function Parts({ runs }: { runs: Two }) {
  const [one, other] = runs.map(valuesOf) as [ReturnType<typeof valuesOf>, ReturnType<typeof valuesOf>];
  return (
    <>
      <FactTable runs={runs} />
      <h2 class="compare-head">{t("runs.column.tasks")}</h2>
      <TaskTable runs={runs} />
      <h2 class="compare-head">{t("run.params")}</h2>
      <Values runs={runs} before={one.params} after={other.params} />
      <h2 class="compare-head">{t("run.result")}</h2>
      <Values runs={runs} before={one.result} after={other.result} />
    </>
  );
}

function titleOf(run: Run): string {
  return shortId(run.run_id);
}

interface Fact {
  name: string;
  cell: (run: Run) => ComponentChildren;
  /** What is compared; null: differences mean nothing. */
  text: ((run: Run) => string) | null;
}

function FactTable({ runs }: { runs: Two }) {
  const wheels = (run: Run) => (run.wheels ?? []).map((one) => `${one.name.split("-")[0]} ${one.version}`).join(", ");
  const plain = (name: string, text: (run: Run) => string): Fact => ({
    name,
    text,
    cell: (run) => visible(text(run)) || <span class="dim">–</span>,
  });
  const facts: Fact[] = [
    { name: t("runs.column.status"), cell: (run) => <Status state={run.status} />, text: (run) => run.status },
    { name: t("run.fact.submitted"), cell: (run) => <Age at={run.submitted_at} />, text: null },
    {
      name: t("run.fact.duration"),
      cell: (run) => <Took from={run.start_time} to={run.end_time} />,
      text: null,
    },
    {
      name: t("run.fact.wait"),
      cell: (run) => <Took from={waitsFrom(run, now.value)} to={run.start_time ?? run.end_time} />,
      text: null,
    },
    plain(t("run.fact.worker"), (run) => run.worker_id ?? ""),
    plain(t("run.fact.tag"), (run) => run.tag ?? ""),
    plain(t("run.fact.wheels"), wheels),
    plain(t("run.error"), (run) => run.failure?.message ?? run.error ?? ""),
  ];
  return (
    <DataTable
      name="compare"
      rows={facts}
      keyOf={(fact) => fact.name}
      look={({ text }) => (text && text(runs[0]) !== text(runs[1]) ? "is-other" : "")}
      columns={[
        { title: t("compare.what"), class: "cell-main", cell: (fact) => fact.name },
        ...runs.map((run) => ({
          title: titleOf(run),
          head: <RunLink run={run} />,
          cell: (fact: Fact) => fact.cell(run),
        })),
      ]}
    />
  );
}

function RunLink({ run }: { run: Run }) {
  return (
    <a href={link(["runs", run.run_id])}>
      <RunId id={run.run_id} />
    </a>
  );
}

function TaskTable({ runs }: { runs: Two }) {
  const side = (at: 0 | 1) => ({
    title: titleOf(runs[at]),
    cell: ({ sides, task }: TaskPair) => {
      const { state, seconds } = sides[at];
      if (state === null) return <span class="dim">–</span>;
      return (
        <a class="compare-side" href={link(["runs", runs[at].run_id], { task })}>
          <Status state={state} />
          <span class="dim">{seconds === null ? "–" : duration(seconds)}</span>
        </a>
      );
    },
  });
  return (
    <DataTable
      name="compare"
      rows={pairsOf(...runs)}
      keyOf={(pair) => pair.task}
      look={({ differs }) => (differs ? "is-other" : "")}
      columns={[
        { title: t("run.tasks"), class: "cell-main", cell: (pair) => <bdi>{visible(pair.task)}</bdi> },
        side(0),
        side(1),
        {
          title: t("compare.times"),
          class: "num",
          cell: ({ times }) => (times === null ? <span class="dim">–</span> : `×${times.toFixed(times < 10 ? 1 : 0)}`),
        },
      ]}
    />
  );
}

function Values({ runs, before, after }: { runs: Two; before: Json; after: Json }) {
  const found = changes(before, after);
  if (found.length === 0) return <p class="dim">{t("compare.same")}</p>;
  const text = (value: Json | undefined) =>
    value === undefined ? <span class="dim">–</span> : <code>{visible(JSON.stringify(value))}</code>;
  return (
    <DataTable
      name="compare"
      rows={found}
      keyOf={(change) => change.path}
      columns={[
        { title: t("audit.field"), class: "cell-main", cell: ({ path }) => <code>{visible(path) || "–"}</code> },
        { title: titleOf(runs[0]), cell: (change) => text(change.before) },
        { title: titleOf(runs[1]), cell: (change) => text(change.after) },
      ]}
    />
  );
}
