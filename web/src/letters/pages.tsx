import { useState } from "preact/hooks";
import { get, post, type Schemas } from "../api/client";
import { go, link, place, refine } from "../app/router";
import { useTitle } from "../app/title";
import { BulkDialog } from "../bulk/BulkDialog";
import { visible } from "../format";
import { t } from "../i18n";
import { usePages } from "../live/usePages";
import { usePolling } from "../live/usePolling";
import { Act } from "../ui/Act";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { DataTable, Facts, Listed } from "../ui/DataTable";
import { FilterForm } from "../ui/ListPage";
import { FilterInput, FilterSelect } from "../ui/lists";
import { Missing } from "../ui/Missing";
import { Age, Empty, Moment, Plain, Problem, RunId, Tags } from "../ui/texts";
import { toast } from "../ui/toasts";
import { asFilter, filterOf, REASONS, SPANS } from "./letters";

type Letter = Schemas["DeadLetterView"];

const REFRESH_MS = 4000;

export function LettersPage() {
  const { query } = place.value;
  const pages = usePages<Letter>(
    JSON.stringify(query),
    (asking, signal) => get("/dead-letters", { query: { ...filterOf(query, Date.now() / 1000), ...asking }, signal }),
    (one) => one.id,
    REFRESH_MS,
  );
  const [isRedriving, setRedriving] = useState(false);
  const isFiltered = Object.values(query).some(Boolean);
  return (
    <>
      <header class="page-head">
        <h1>{t("nav.letters")}</h1>
        {pages.rows.length > 0 && (
          <div class="actions">
            <Act icon="again" onClick={() => setRedriving(true)}>
              {t(isFiltered ? "letters.redriveMatching" : "letters.redriveAll")}
            </Act>
          </div>
        )}
      </header>
      <p class="lead">{t("letters.lead")}</p>
      <Filters query={query} isFiltered={isFiltered} />
      <Listed pages={pages} none={<NoLetters isFiltered={isFiltered} />}>
        <LetterTable rows={pages.rows} onChanged={pages.refresh} />
      </Listed>
      {isRedriving && (
        <BulkDialog
          wanted={{ action: "redrive", filter: asFilter(filterOf(query, Date.now() / 1000)) }}
          onClose={() => setRedriving(false)}
        />
      )}
    </>
  );
}

function Filters({ query, isFiltered }: { query: Record<string, string>; isFiltered: boolean }) {
  const change = (part: Record<string, string>) => refine({ ...query, ...part });
  return (
    <FilterForm section="dead-letters" isFiltered={isFiltered}>
      <FilterSelect
        label={t("letters.reason")}
        value={query.reason}
        choices={REASONS.map((value) => ({ value, text: t(`letters.reason.${value}`) }))}
        onChange={(reason) => change({ reason })}
      />
      <FilterSelect
        label={t("letters.since")}
        value={query.since}
        choices={SPANS.map(({ value }) => ({ value, text: t(`letters.since.${value}`) }))}
        onChange={(since) => change({ since })}
      />
      <label>
        <span>{t("runs.filter.flow")}</span>
        <FilterInput value={query.flow} hint={t("runs.filter.flow.hint")} onChange={(flow) => change({ flow })} />
      </label>
      <label>
        <span>{t("runs.filter.tag")}</span>
        <FilterInput value={query.tag} hint="" onChange={(tag) => change({ tag })} />
      </label>
    </FilterForm>
  );
}

function LetterTable({ rows, onChanged }: { rows: readonly Letter[]; onChanged: () => Promise<void> }) {
  const [asked, setAsked] = useState<{ letter: Letter; verb: Verb } | null>(null);
  return (
    <>
      <DataTable
        name="letters"
        rows={rows}
        keyOf={(one) => one.id}
        columns={[
          {
            title: t("runs.column.flow"),
            class: "cell-main",
            cell: (one) => (
              <>
                <a class="row-link" href={link(["dead-letters", one.id])}>
                  <bdi>{visible(one.flow_name ?? t("letters.unreadable"))}</bdi>
                </a>
                {one.error && <span class="row-error">{visible(one.error)}</span>}
              </>
            ),
          },
          { title: t("letters.reason"), cell: (one) => t(`letters.reason.${one.reason}`) },
          { title: t("audit.column.at"), class: "cell-age", cell: (one) => <Age at={one.timestamp} /> },
          { title: t("runs.column.tags"), cell: (one) => <Tags tags={one.tag ? [one.tag] : one.tags} /> },
          { title: t("letters.run"), class: "cell-links", cell: (one) => <RunLink id={one.run_id} /> },
          { title: t("letters.redriven"), class: "cell-links", cell: (one) => <RunLink id={one.redriven_as} /> },
          {
            title: t("letters.actions"),
            isSilent: true,
            class: "cell-actions",
            cell: (one) => (
              <>
                {canRedrive(one) && (
                  <Act
                    kind="icon"
                    icon="again"
                    label={t("letters.redrive.label", { id: one.id })}
                    onClick={() => setAsked({ letter: one, verb: "redrive" })}
                  />
                )}
                <Act
                  kind="icon"
                  icon="trash"
                  label={t("letters.discard.label", { id: one.id })}
                  onClick={() => setAsked({ letter: one, verb: "discard" })}
                />
              </>
            ),
          },
        ]}
      />
      {asked && <Ask {...asked} onDone={onChanged} onClose={() => setAsked(null)} />}
    </>
  );
}

type Verb = "redrive" | "discard";

function canRedrive(letter: Letter): boolean {
  return letter.reason !== "invalid_job" && !letter.redriven_as;
}

function Ask({
  letter,
  verb,
  onDone,
  onClose,
}: {
  letter: Letter;
  verb: Verb;
  onDone: () => Promise<void> | void;
  onClose: () => void;
}) {
  const path = { letter_id: letter.id };

  async function carryOut(): Promise<void> {
    if (verb === "redrive") {
      const { run_id } = await post("/dead-letters/{letter_id}/redrive", { path });
      toast(t("letters.redrive.done"));
      go(["runs", run_id]);
    } else {
      await post("/dead-letters/{letter_id}/discard", { path });
      toast(t("letters.discard.done"));
      await onDone();
    }
  }

  return (
    <ConfirmDialog
      title={t(`letters.${verb}.title`)}
      lead={t(`letters.${verb}.lead`, { flow: visible(letter.flow_name ?? t("letters.unreadable")) })}
      verb={t(`letters.${verb}.do`)}
      isHarmless={verb === "redrive"}
      onConfirm={carryOut}
      onClose={onClose}
    />
  );
}

function RunLink({ id }: { id: string | null | undefined }) {
  if (!id) return <span class="dim">–</span>;
  return (
    <a href={link(["runs", id])}>
      <RunId id={id} />
    </a>
  );
}

function NoLetters({ isFiltered }: { isFiltered: boolean }) {
  return (
    <Empty title={t(isFiltered ? "runs.none.title" : "letters.empty.title")}>
      <p>{t(isFiltered ? "letters.none.lead" : "letters.empty.lead")}</p>
    </Empty>
  );
}

export function LetterPage({ id }: { id: string }) {
  const {
    value: letter,
    error,
    refresh,
  } = usePolling((signal) => get("/dead-letters/{letter_id}", { path: { letter_id: id }, signal }), REFRESH_MS, id);
  const [verb, setVerb] = useState<Verb | null>(null);
  useTitle(letter?.flow_name ? `${letter.flow_name} · ${id}` : id);
  if (!letter) return <Missing error={error} title={t("letters.notFound")} section="dead-letters" />;
  return (
    <>
      <header class="page-head">
        <h1>
          <Plain text={letter.flow_name ?? t("letters.unreadable")} />
        </h1>
        <span class="tag">{t(`letters.reason.${letter.reason}`)}</span>
        <div class="actions">
          <Act icon="again" kind="primary" disabled={!canRedrive(letter)} onClick={() => setVerb("redrive")}>
            {t("letters.redrive.do")}
          </Act>
          <Act icon="trash" kind="danger" onClick={() => setVerb("discard")}>
            {t("letters.discard.do")}
          </Act>
        </div>
      </header>
      {error && <Problem error={error} />}
      <p class="lead">{t(`letters.reason.${letter.reason}.lead`)}</p>
      {letter.error && (
        <section class="panel" aria-label={t("bulk.column.error")}>
          <header class="panel-head">
            <h2>{t("bulk.column.error")}</h2>
          </header>
          <pre class="pad letter-text" tabIndex={0} aria-label={t("bulk.column.error")}>
            {visible(letter.error)}
          </pre>
        </section>
      )}
      <Facts
        facts={[
          [t("letters.run"), <RunLink id={letter.run_id} />],
          [t("letters.redriven"), <RunLink id={letter.redriven_as} />],
          [t("audit.column.at"), <Moment at={letter.timestamp} />],
          [t("runs.column.tags"), <Tags tags={letter.tags ?? (letter.tag ? [letter.tag] : [])} />],
          [t("runs.column.worker"), visible(letter.worker_id ?? "–")],
          [t("letters.deliveries"), letter.num_delivered ?? "–"],
        ]}
      />
      {letter.payload && (
        <section class="panel" aria-label={t("letters.payload")}>
          <header class="panel-head">
            <h2>{t("letters.payload")}</h2>
          </header>
          <pre class="pad letter-text" tabIndex={0} aria-label={t("letters.payload")}>
            {visible(letter.payload)}
          </pre>
        </section>
      )}
      {verb && (
        <Ask
          letter={letter}
          verb={verb}
          onDone={verb === "discard" ? () => go(["dead-letters"]) : refresh}
          onClose={() => setVerb(null)}
        />
      )}
    </>
  );
}
