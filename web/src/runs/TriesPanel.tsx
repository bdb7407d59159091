import type { Run } from "../api/client";
import { visible } from "../format";
import { t } from "../i18n";
import { Moment, Took } from "../ui/texts";

/** The tries that failed. */
export function TriesPanel({ tries, most }: { tries: Run["tries"]; most: number }) {
  if (tries.length === 0) return null;
  return (
    <section class="panel tries" aria-label={t("tries.title")}>
      <header class="panel-head">
        <h2>
          {t("tries.title")} <span class="dim">{t("tries.count", { n: tries.at(-1)!.n, most })}</span>
        </h2>
      </header>
      <div class="table-scroll">
        <table class="stack">
          <thead>
            <tr>
              <th scope="col" class="num">
                {t("tries.column.n")}
              </th>
              <th scope="col">{t("tries.column.failure")}</th>
              <th scope="col">{t("task.started")}</th>
              <th scope="col">{t("task.ended")}</th>
              <th scope="col" class="num">
                {t("task.duration")}
              </th>
              <th scope="col">{t("run.fact.worker")}</th>
            </tr>
          </thead>
          <tbody>
            {tries.map((one) => (
              <tr class="row" key={one.n}>
                <td class="num" data-label={t("tries.column.n")}>
                  {one.n}
                </td>
                <td class="cell-main">
                  <FailureKind kind={one.failure.kind} /> <span class="tries-text">{visible(one.failure.message)}</span>
                </td>
                <td data-label={t("task.started")}>
                  <Moment at={one.started_at} />
                </td>
                <td data-label={t("task.ended")}>
                  <Moment at={one.ended_at} />
                </td>
                <td class="num" data-label={t("task.duration")}>
                  <Took from={one.started_at} to={one.ended_at} />
                </td>
                <td data-label={t("run.fact.worker")} class="cell-worker">
                  {one.worker_id ? visible(one.worker_id) : <span class="dim">–</span>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

export function FailureKind({ kind }: { kind: Run["tries"][number]["failure"]["kind"] }) {
  return <span class="tag is-bad">{t(`failure.${kind}`)}</span>;
}
