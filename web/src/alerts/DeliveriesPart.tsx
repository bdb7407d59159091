import { useState } from "preact/hooks";
import { get, post, type Schemas } from "../api/client";
import { place, refine } from "../app/router";
import { visible } from "../format";
import { t } from "../i18n";
import { usePages } from "../live/usePages";
import { usePolling } from "../live/usePolling";
import { Act } from "../ui/Act";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { DataTable, Listed } from "../ui/DataTable";
import { Dialog } from "../ui/Dialog";
import { JsonValue } from "../ui/JsonValue";
import { FilterForm } from "../ui/ListPage";
import { FilterInput, FilterSelect } from "../ui/lists";
import { Status, toneOf } from "../ui/Status";
import { Age, Empty } from "../ui/texts";
import { toast } from "../ui/toasts";

type Delivery = Schemas["DeliveryView"];

const REFRESH_MS = 3000;
const STATUSES = ["FAILED", "PENDING", "DELIVERED"] as const;

/** What was sent, what is on its way, and what nobody got. */
export function DeliveriesPart() {
  const { alert, channel, status } = place.value.query;
  const filters = { alert, channel, status: STATUSES.find((one) => one === status) };
  const pages = usePages<Delivery>(
    JSON.stringify(filters),
    (query, signal) => get("/deliveries", { query: { ...query, ...filters }, signal }),
    (one) => one.id,
    REFRESH_MS,
  );
  const [replayed, setReplayed] = useState<Delivery | null>(null);
  const [read, setRead] = useState<Delivery | null>(null);
  const change = (part: Record<string, string>) => refine({ ...place.value.query, ...part });
  const kind = (one: Delivery) => one.type as Schemas["AlertKind"];
  return (
    <>
      <FilterForm section="alerts" isFiltered={false}>
        <FilterSelect
          label={t("runs.column.status")}
          value={filters.status}
          choices={STATUSES.map((value) => ({ value, text: t(`state.${value}`) }))}
          onChange={(value) => change({ status: value })}
        />
        <label>
          <span>{t("alerts.alert")}</span>
          <FilterInput value={alert} hint="" onChange={(value) => change({ alert: value })} />
        </label>
        <label>
          <span>{t("alerts.channel")}</span>
          <FilterInput value={channel} hint="" onChange={(value) => change({ channel: value })} />
        </label>
      </FilterForm>
      <Listed pages={pages} none={<Empty title={t("alerts.deliveries.none")}>{null}</Empty>}>
        <DataTable
          name="deliveries"
          rows={pages.rows}
          keyOf={(one) => one.id}
          look={(one) => `tone-${toneOf(one.status)}`}
          columns={[
            { title: t("runs.column.status"), class: "cell-status", cell: (one) => <Status state={one.status} /> },
            {
              title: t("alerts.on"),
              class: "cell-main",
              cell: (one) => (
                <>
                  <button type="button" class="as-text" onClick={() => setRead(one)}>
                    {t(`alerts.on.${kind(one)}`)}
                  </button>
                  {one.last_error && <span class="row-error">{visible(one.last_error)}</span>}
                </>
              ),
            },
            { title: t("alerts.alert"), cell: (one) => visible(one.alert) },
            { title: t("alerts.channel"), cell: (one) => visible(one.channel) },
            { title: t("alerts.attempts"), class: "num", cell: (one) => one.attempts },
            { title: t("runs.column.updated"), cell: (one) => <Age at={one.delivered_at ?? one.created_at} /> },
            {
              title: t("alerts.replay"),
              isSilent: true,
              class: "cell-actions",
              cell: (one) => (
                <Act kind="icon" icon="again" label={t("alerts.replay")} onClick={() => setReplayed(one)} />
              ),
            },
          ]}
        />
      </Listed>
      {read && <Body delivery={read} onClose={() => setRead(null)} />}
      {replayed && (
        <ConfirmDialog
          title={t("alerts.replay.title")}
          lead={t("alerts.replay.lead", { channel: visible(replayed.channel) })}
          verb={t("alerts.replay")}
          isHarmless
          onConfirm={async () => {
            await post("/deliveries/{delivery_id}/replay", { path: { delivery_id: replayed.id } });
            toast(t("alerts.replay.done"));
            await pages.refresh();
          }}
          onClose={() => setReplayed(null)}
        />
      )}
    </>
  );
}

function Body({ delivery, onClose }: { delivery: Delivery; onClose: () => void }) {
  const { value } = usePolling(
    (signal) => get("/deliveries/{delivery_id}", { path: { delivery_id: delivery.id }, signal }),
    REFRESH_MS,
    delivery.id,
  );
  return (
    <Dialog title={delivery.type} onClose={onClose} isWide>
      <div class="letter-text">{value && <JsonValue value={value.body} label={delivery.type} />}</div>
    </Dialog>
  );
}
