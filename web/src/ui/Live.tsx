import { health } from "../app/health";
import { t } from "../i18n";

/** Whether what is shown is pushed as it happens. */
export function Live({ isLive }: { isLive: boolean }) {
  if (health.value !== "ok") {
    return (
      <span class="live is-away" role="status">
        {t(`health.${health.value}`)}
      </span>
    );
  }
  return (
    <span class={`live ${isLive ? "is-live" : ""}`} role="status">
      {isLive ? t("live.on") : t("live.off")}
    </span>
  );
}
