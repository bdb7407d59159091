import { useState } from "preact/hooks";
import { ApiError, del, get, type Limit, type LimitKey } from "../api/client";
import { go, link } from "../app/router";
import { useTitle } from "../app/title";
import { count, visible } from "../format";
import { language, t } from "../i18n";
import { usePages } from "../live/usePages";
import { usePolling } from "../live/usePolling";
import { Act } from "../ui/Act";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Fact } from "../ui/DataTable";
import { More } from "../ui/lists";
import { Age, Empty, Plain, Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { LimitDialog } from "./LimitDialog";
import { Allows, Concerns } from "./parts";

const REFRESH_MS = 3000;

export function LimitPage({ id }: { id: string }) {
  useTitle(id);
  const path = { name: id };
  const {
    value: limit,
    error,
    refresh,
  } = usePolling((signal) => get("/limits/{name}", { path, signal }), REFRESH_MS, id);
  if (error instanceof ApiError && error.status === 404) {
    return (
      <Empty title={t("limit.notFound")}>
        <p>
          <a class="button" href={link(["limits"])}>
            {t("limit.toList")}
          </a>
        </p>
      </Empty>
    );
  }
  if (!limit) return error ? <Problem error={error} /> : <p class="dim loading">{t("runs.loading")}</p>;
  return (
    <>
      <Head limit={limit} onChanged={refresh} />
      {error && <Problem error={error} />}
      {limit.description && <p class="lead">{visible(limit.description)}</p>}
      <Facts limit={limit} />
      <Keys limit={limit} />
    </>
  );
}

function Head({ limit, onChanged }: { limit: Limit; onChanged: () => Promise<void> }) {
  const [open, setOpen] = useState<"edit" | "delete" | null>(null);

  async function remove(): Promise<void> {
    await del("/limits/{name}", { path: { name: limit.name } });
    toast(t("limit.delete.done"));
    go(["limits"]);
  }

  return (
    <>
      <header class="page-head">
        <h1>
          <Plain text={limit.name} />
        </h1>
        <div class="actions">
          <Act icon="edit" onClick={() => setOpen("edit")}>
            {t("limit.edit")}
          </Act>
          <Act icon="trash" kind="danger" onClick={() => setOpen("delete")}>
            {t("limit.delete")}
          </Act>
        </div>
      </header>
      {open === "edit" && <LimitDialog limit={limit} onSaved={onChanged} onClose={() => setOpen(null)} />}
      {open === "delete" && (
        <ConfirmDialog
          title={t("limit.delete.title", { limit: visible(limit.name) })}
          lead={t("limit.delete.lead", { n: count(limit.waiting, language.value) })}
          verb={t("limit.delete")}
          onConfirm={remove}
          onClose={() => setOpen(null)}
        />
      )}
    </>
  );
}

function Facts({ limit }: { limit: Limit }) {
  const n = (value: number) => count(value, language.value);
  return (
    <dl class="facts" aria-label={t("run.facts")}>
      <Fact name={t("limits.column.holders")} class="strong">
        {n(limit.holders)}
      </Fact>
      <Fact name={t("limits.column.waiting")} class="strong">
        {n(limit.waiting)}
      </Fact>
      <Fact name={t("limits.column.admitted")}>{n(limit.admitted)}</Fact>
      <Fact name={t("limits.column.match")}>
        <Concerns limit={limit} />
      </Fact>
      <Fact name={t("limits.column.allows")}>
        <Allows limit={limit} />
      </Fact>
      <Fact name={t("limits.column.onFull")}>
        {t(`limit.onFull.${limit.on_full}`)}
        {limit.max_waiting !== null && <span class="dim">{t("limit.maxWaiting.of", { n: n(limit.max_waiting) })}</span>}
      </Fact>
      <Fact name={t("flow.changed")}>
        <Age at={limit.updated_at} />
      </Fact>
    </dl>
  );
}

/** The values of the key that are in use. */
function Keys({ limit }: { limit: Limit }) {
  const { rows, isLoaded, isMore, error, more } = usePages<LimitKey>(
    limit.name,
    (query, signal) => get("/limits/{name}/keys", { path: { name: limit.name }, query, signal }),
    (one) => one.key,
    REFRESH_MS,
  );
  return (
    <section class="panel" aria-label={t("limit.keys")}>
      <header class="panel-head">
        <h2>{t("limit.keys")}</h2>
      </header>
      {error && <Problem error={error} />}
      {isLoaded && rows.length === 0 && <p class="dim pad">{t("limit.keys.none")}</p>}
      {rows.length > 0 && (
        <>
          <div class="table-scroll">
            <table class="keys">
              <thead>
                <tr>
                  <th scope="col">{t("limit.key.short")}</th>
                  <th scope="col" class="num">
                    {t("limits.column.holders")}
                  </th>
                  <th scope="col" class="num">
                    {t("limits.column.waiting")}
                  </th>
                </tr>
              </thead>
              <tbody>
                {rows.map((one) => (
                  <tr key={one.key} data-key={one.key}>
                    <td>
                      {one.key === "" ? <span class="dim">{t("limit.key.all")}</span> : <code>{visible(one.key)}</code>}
                    </td>
                    <td class="num">{count(one.holders, language.value)}</td>
                    <td class={`num ${one.waiting > 0 ? "strong" : "dim"}`}>{count(one.waiting, language.value)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <More isMore={isMore} shown={rows.length} onMore={more} />
        </>
      )}
    </section>
  );
}
