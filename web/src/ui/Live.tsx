import { t } from "../i18n";

/** Whether what is shown is pushed as it happens. */
export function Live({ isLive }: { isLive: boolean }) {
  return (
    <span class={`live ${isLive ? "is-live" : ""}`} role="status">
      {isLive ? t("live.on") : t("live.off")}
    </span>
  );
}
