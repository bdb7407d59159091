import { useState } from "preact/hooks";
import { get, post } from "../api/client";
import { visible } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { Fact } from "../ui/DataTable";
import { Glyph } from "../ui/icons";
import { Age, Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useSending } from "../ui/useSending";

const REFRESH_MS = 10_000;
const SOURCES = ["file", "env", "none"] as const;

/** Where escalations are sent. The address is a secret: it is write-only, and shown masked. */
export function NotificationsPart() {
  const settings = usePolling(
    (signal) => get("/api/workflow-events/notification-settings", { signal }),
    REFRESH_MS,
    "settings",
  );
  const [url, setUrl] = useState("");
  const saving = useSending();
  const testing = useSending();
  const found = settings.value;
  const source = SOURCES.find((one) => one === found?.source) ?? "none";

  async function save(webhook_url: string): Promise<void> {
    await post("/api/workflow-events/notification-settings", { body: { webhook_url } });
    setUrl("");
    toast(webhook_url ? t("notifications.saved") : t("notifications.removed"));
    await settings.refresh();
  }

  async function test(): Promise<void> {
    const sent = await post("/api/workflow-events/notification-settings/test");
    if (!sent.sent) throw new Error(sent.message);
    toast(t("notifications.tested"));
  }

  return (
    <>
      <p class="lead part-lead">{t("notifications.lead")}</p>
      {settings.error && <Problem error={settings.error} />}
      {found && (
        <section class="panel notifications" aria-label={t("events.notifications")}>
          <dl class="facts">
            <Fact name={t("notifications.state")} class={found.configured ? "strong" : "dim"}>
              {found.configured ? t("notifications.on") : t("notifications.off")}
            </Fact>
            {found.configured && (
              <Fact name={t("notifications.address")} class="mono">
                {visible(found.webhook_url_masked ?? "")}
              </Fact>
            )}
            <Fact name={t("notifications.from")}>{t(`notifications.from.${source}`)}</Fact>
            {found.updated_at !== null && (
              <Fact name={t("runs.column.updated")}>
                <Age at={Date.parse(found.updated_at) / 1000} />
              </Fact>
            )}
          </dl>
          <form
            class="form"
            autoComplete="off"
            onSubmit={(event) => {
              event.preventDefault();
              saving.send(() => save(url.trim()));
            }}
          >
            <label>
              <span>{t("notifications.url")}</span>
              <input
                type="password"
                required
                autoComplete="off"
                spellcheck={false}
                placeholder={t("notifications.url.hint")}
                value={url}
                onInput={(event) => setUrl(event.currentTarget.value)}
              />
            </label>
            {saving.error && <Problem error={saving.error} />}
            {testing.error && <Problem error={testing.error} />}
            <footer>
              <button
                type="button"
                class="button"
                disabled={testing.isBusy || !found.configured}
                onClick={() => testing.send(test)}
              >
                {t("notifications.test")}
              </button>
              {source === "file" && (
                <button
                  type="button"
                  class="button danger"
                  disabled={saving.isBusy}
                  onClick={() => saving.send(() => save(""))}
                >
                  <Glyph name="trash" />
                  {t("notifications.remove")}
                </button>
              )}
              <button type="submit" class="button primary" disabled={saving.isBusy}>
                {t("action.save")}
              </button>
            </footer>
          </form>
        </section>
      )}
    </>
  );
}
