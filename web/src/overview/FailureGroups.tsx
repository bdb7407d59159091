import { link } from "../app/router";
import { count, visible } from "../format";
import { language, t } from "../i18n";
import { Age } from "../ui/texts";
import type { Failures } from "./failures";

/** Failed runs by their error: how often, and the newest one. */
export function FailureGroups({ groups }: { groups: readonly Failures[] }) {
  if (groups.length === 0) return <p class="dim pad">{t("overview.flows.none")}</p>;
  return (
    <ul class="overview-rows">
      {groups.map(({ newest, error, flows, n: times }) => (
        <li key={newest.run_id} class="error-line">
          <span class="error-times tone-bad">{count(times, language.value)}×</span>
          <a class="mono" href={link(["runs", newest.run_id])} title={visible(error)}>
            {visible(error) || t("state.FAILED")}
          </a>
          <span class="dim">{flows.map(visible).join(", ")}</span>
          <span class="dim">
            <Age at={newest.updated_at} />
          </span>
        </li>
      ))}
    </ul>
  );
}
