import { useState } from "preact/hooks";
import { get, type Json, request, type Schemas } from "../api/client";
import { client } from "../app/commands";
import { place, refine } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { usePages } from "../live/usePages";
import { DataTable, Facts, Listed } from "../ui/DataTable";
import { Dialog } from "../ui/Dialog";
import { Glyph } from "../ui/icons";
import { JsonValue } from "../ui/JsonValue";
import { FilterForm } from "../ui/ListPage";
import { FilterInput } from "../ui/lists";
import { save } from "../ui/save";
import { Age, Command, Empty, Moment, Problem } from "../ui/texts";
import { useSending } from "../ui/useSending";
import { changes, FILTERS, filterOf } from "./audit";

type Entry = Schemas["AuditEntry"];
type Page = Schemas["AuditPage"];

const REFRESH_MS = 5000;
const DAYS = ["since", "until"] as const;

export function AuditPage() {
  const { query } = place.value;
  const wanted = filterOf(query);
  const isFiltered = Object.values(query).some(Boolean);
  const pages = usePages<Entry>(
    JSON.stringify(query),
    async (asking, signal) => (await get("/audit", { query: { ...wanted, ...asking }, signal })) as Page,
    (one) => one.id,
    REFRESH_MS,
  );
  return (
    <>
      <header class="page-head">
        <h1>{t("nav.audit")}</h1>
        {pages.rows.length > 0 && <Export wanted={wanted} />}
      </header>
      <p class="lead">{t("audit.lead")}</p>
      <Filters query={query} isFiltered={isFiltered} />
      <Listed
        pages={pages}
        none={
          <Empty title={t(isFiltered ? "runs.none.title" : "audit.empty.title")}>
            <p>{t("audit.empty.lead")}</p>
            <Command text={client("audit")} />
          </Empty>
        }
      >
        <EntryTable rows={pages.rows} />
      </Listed>
    </>
  );
}

function Filters({ query, isFiltered }: { query: Record<string, string>; isFiltered: boolean }) {
  const change = (part: Record<string, string>) => refine({ ...query, ...part });
  return (
    <FilterForm section="audit" isFiltered={isFiltered}>
      {FILTERS.map((name) => (
        <label key={name}>
          <span>{t(`audit.filter.${name}`)}</span>
          <FilterInput
            value={query[name]}
            hint={t(`audit.filter.${name}.hint`)}
            onChange={(text) => change({ [name]: text })}
          />
        </label>
      ))}
      {DAYS.map((name) => (
        <label key={name}>
          <span>{t(`audit.filter.${name}`)}</span>
          <input
            type="date"
            value={query[name] ?? ""}
            onChange={(event) => change({ [name]: event.currentTarget.value })}
          />
        </label>
      ))}
    </FilterForm>
  );
}

/** All that match, one per line. */
function Export({ wanted }: { wanted: Record<string, string> }) {
  const { error, isBusy, send } = useSending();

  async function download(): Promise<void> {
    const response = await request("get", "/audit", { query: { ...wanted, format: "jsonl" } });
    save("audit.jsonl", await response.blob());
  }

  return (
    <div class="actions">
      {error && <Problem error={error} />}
      <button type="button" class="button" disabled={isBusy} onClick={() => send(download)}>
        <Glyph name="download" />
        {t("audit.export")}
      </button>
    </div>
  );
}

function EntryTable({ rows }: { rows: readonly Entry[] }) {
  const [shown, setShown] = useState<Entry | null>(null);
  return (
    <>
      <DataTable
        name="audit"
        rows={rows}
        keyOf={(one) => one.id}
        columns={[
          { title: t("audit.column.at"), class: "cell-age", cell: (one) => <Age at={one.at} /> },
          {
            title: t("audit.filter.action"),
            class: "cell-main",
            cell: (one) => (
              <button type="button" class="row-link as-text" aria-haspopup="dialog" onClick={() => setShown(one)}>
                {one.action}
              </button>
            ),
          },
          { title: t("audit.filter.target"), cell: (one) => <Target entry={one} /> },
          { title: t("audit.column.who"), cell: (one) => <Who entry={one} /> },
          { title: t("audit.column.from"), cell: (one) => visible(one.source.remote_addr ?? "–") },
          {
            title: t("audit.column.changed"),
            class: "cell-changed dim",
            cell: (one) => visible(namesOf(one)),
          },
        ]}
      />
      {shown && <EntryDialog entry={shown} onClose={() => setShown(null)} />}
    </>
  );
}

function namesOf({ before, after }: Entry): string {
  if (before == null) return after == null ? "–" : t("audit.new");
  if (after == null) return t("audit.gone");
  const names = changes(before as Json, after as Json).map((one) => one.path);
  return names.join(", ") || "–";
}

function Target({ entry }: { entry: Entry }) {
  return (
    <>
      <span class="dim">{visible(entry.target.kind)}</span> <bdi>{visible(entry.target.id)}</bdi>
    </>
  );
}

function Who({ entry: { actor } }: { entry: Entry }) {
  const key = actor.api_key_id ? <span class="mono">{visible(actor.api_key_id)}</span> : t("audit.anybody");
  return (
    <>
      {key}
      {actor.claimed && <span class="row-reason">{t("audit.claimed", { name: visible(actor.claimed) })}</span>}
    </>
  );
}

function EntryDialog({ entry, onClose }: { entry: Entry; onClose: () => void }) {
  const found = changes(entry.before as Json, entry.after as Json);
  const isEdit = entry.before != null && entry.after != null;
  return (
    <Dialog title={`${entry.action} · ${visible(entry.target.id)}`} onClose={onClose} isWide>
      <div class="entry">
        <Facts
          facts={[
            [t("audit.column.at"), <Moment at={entry.at} />],
            [t("audit.column.who"), <Who entry={entry} />],
            [t("audit.column.from"), visible(entry.source.remote_addr ?? "–")],
            [t("audit.agent"), visible(entry.source.user_agent ?? "–")],
          ]}
        />
        {isEdit && found.length > 0 && (
          <table class="changes">
            <thead>
              <tr>
                <th scope="col">{t("audit.field")}</th>
                <th scope="col">{t("audit.before")}</th>
                <th scope="col">{t("audit.after")}</th>
              </tr>
            </thead>
            <tbody>
              {found.map((one) => (
                <tr key={one.path}>
                  <th scope="row">{visible(one.path) || "–"}</th>
                  <td>
                    <Value value={one.before} />
                  </td>
                  <td>
                    <Value value={one.after} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
        <div class="states">
          <State title={t("audit.before")} value={entry.before} none={t("audit.new")} />
          <State title={t("audit.after")} value={entry.after} none={t("audit.gone")} />
        </div>
      </div>
    </Dialog>
  );
}

function Value({ value }: { value: Json | undefined }) {
  return value === undefined ? <span class="dim">–</span> : <code>{visible(JSON.stringify(value))}</code>;
}

function State({ title, value, none }: { title: string; value: unknown; none: string }) {
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      {value == null ? <p class="dim">{none}</p> : <JsonValue value={value} label={title} />}
    </section>
  );
}
