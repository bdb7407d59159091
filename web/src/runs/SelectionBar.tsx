import { useState } from "preact/hooks";
import type { RunSummary } from "../api/client";
import { onDemand } from "../app/onDemand";
import type { Wanted } from "../bulk/bulk";
import { count } from "../format";
import { language, t } from "../i18n";
import { Act } from "../ui/Act";
import { queryOf, type RunFilters } from "./query";
import { idsOf, matching, type Selecting } from "./selection";
import type { Counts } from "./useRunList";

const BulkDialog = onDemand("BulkDialog");

const ACTIONS = [
  { action: "cancel", icon: "stop" },
  { action: "retry", icon: "again" },
  { action: "delete", icon: "trash" },
] as const;

/** What can be done with the runs that are selected. */
export function SelectionBar({
  selection,
  filters,
  rows,
  isMore,
  counts,
}: {
  selection: Selecting;
  filters: RunFilters;
  rows: readonly RunSummary[];
  isMore: boolean;
  counts: Counts;
}) {
  const [wanted, setWanted] = useState<Wanted | null>(null);
  const all = count(matching(counts, filters.status), language.value);
  const isPageFull = rows.length > 0 && rows.every((run) => selection.has(run.run_id));
  const items = selection.isAll ? { filter: queryOf(filters) } : { ids: [...selection.ids] };
  return (
    <div class="selection" role="region" aria-label={t("bulk.selection")}>
      <p aria-live="polite">
        {selection.isAll
          ? t("bulk.selected.all", { n: all })
          : t("bulk.selected", { n: count(selection.ids.size, language.value) })}
      </p>
      {!isPageFull && (
        <button type="button" class="button quiet" onClick={() => selection.toggle(idsOf(rows), true)}>
          {t("bulk.select.shown")}
        </button>
      )}
      {isPageFull && isMore && !filters.q && !selection.isAll && (
        <button type="button" class="button quiet" onClick={selection.all}>
          {t("bulk.select.all", { n: all })}
        </button>
      )}
      <div class="actions">
        {ACTIONS.map(({ action, icon }) => (
          <Act key={action} icon={icon} onClick={() => setWanted({ action, ...items })}>
            {t(`bulk.do.${action}`)}
          </Act>
        ))}
        <button type="button" class="button quiet" onClick={selection.clear}>
          {t("bulk.select.none")}
        </button>
      </div>
      {wanted && <BulkDialog wanted={wanted} onClose={() => setWanted(null)} />}
    </div>
  );
}
