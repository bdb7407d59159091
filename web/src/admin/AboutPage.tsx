import { request } from "../api/client";
import { settings } from "../app/settings";
import { bytes, tickLabel, visible } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { DataTable, Facts } from "../ui/DataTable";
import { Problem } from "../ui/texts";
import { parse } from "./prometheus";
import { KEPT, type Stored, storedIn } from "./storage";

const DAY_SEC = 86_400;
const REFRESH_MS = 15_000;

/** What runs here, how long it keeps what, and how much disk that takes. */
export function AboutPage() {
  const { value, error } = usePolling(
    async (signal) => storedIn(parse(await (await request("get", "/metrics", { signal })).text())),
    REFRESH_MS,
    "storage",
  );
  return (
    <>
      <header class="page-head">
        <h1>{t("nav.about")}</h1>
      </header>
      <Facts
        facts={[
          [t("about.version"), `pyoco-server ${settings.version}`],
          [t("about.auth"), t(`about.auth.${settings.auth}`)],
          [t("about.disk"), value ? bytes(value.reduce((sum, one) => sum + one.bytes, 0)) : "…"],
        ]}
      />
      <header class="part-head">
        <h2>{t("about.kept")}</h2>
        <p class="lead">{t("about.kept.lead")}</p>
      </header>
      <DataTable
        name="kept"
        rows={KEPT}
        keyOf={(one) => one.name}
        columns={[
          { title: t("about.what"), class: "cell-main", cell: (one) => t(`about.kept.${one.name}`) },
          { title: t("about.for"), cell: (one) => <For sec={settings.retention[one.name]} /> },
          { title: t("about.setting"), cell: (one) => <code>{one.setting}</code> },
        ]}
      />
      <header class="part-head">
        <h2>{t("about.storage")}</h2>
        <p class="lead">{t("about.storage.lead")}</p>
      </header>
      {error && <Problem error={error} />}
      {!value && !error && <p class="dim loading">{t("runs.loading")}</p>}
      {value && <Storage rows={value} />}
    </>
  );
}

function For({ sec }: { sec: number | undefined }) {
  if (sec === undefined) return <>–</>;
  return (
    <>{sec === 0 ? t("about.forever") : sec % DAY_SEC === 0 ? t("about.days", { n: sec / DAY_SEC }) : tickLabel(sec)}</>
  );
}

function Storage({ rows }: { rows: readonly Stored[] }) {
  const most = Math.max(1, ...rows.map((one) => one.bytes));
  return (
    <DataTable
      name="storage"
      rows={rows}
      keyOf={(one) => one.stream}
      columns={[
        { title: t("about.stream"), class: "cell-main", cell: (one) => <code>{visible(one.stream)}</code> },
        {
          title: t("about.size"),
          cell: (one) => (
            <span class="progress">
              <progress value={one.bytes / most} max={1} aria-label={visible(one.stream)} />
              <span>{bytes(one.bytes)}</span>
            </span>
          ),
        },
      ]}
    />
  );
}
