import { ApiError } from "../api/client";
import { link } from "../app/router";
import { t } from "../i18n";
import { Empty, Problem } from "./texts";

/** While one thing is not there: it is gone, it cannot be read, or it is on its way. */
export function Missing({ error, title, section }: { error: Error | null; title: string; section: string }) {
  if (!error) return <p class="dim loading">{t("runs.loading")}</p>;
  if (!(error instanceof ApiError && error.status === 404)) return <Problem error={error} />;
  return (
    <Empty title={title}>
      <p>
        <a class="button" href={link([section])}>
          {t("problem.toList")}
        </a>
      </p>
    </Empty>
  );
}
