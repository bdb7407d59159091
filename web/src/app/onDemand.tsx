import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { t } from "../i18n";
import { Empty } from "../ui/texts";
import { isOutdated } from "./outdated";

/** A page that is loaded when it is first shown. */
export function onDemand<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let found: ComponentType<P> | null = null;

  return function OnDemand(props: P) {
    const [, redraw] = useState(0);
    const [isLost, setLost] = useState(false);
    useEffect(() => {
      if (found) return;
      load().then(
        (page) => {
          found = page;
          redraw(1);
        },
        async () => {
          if (await isOutdated()) location.reload();
          else setLost(true);
        },
      );
    }, []);
    if (isLost) return <Lost />;
    if (!found) return <p class="dim loading">{t("runs.loading")}</p>;
    const Page = found;
    return <Page {...props} />;
  };
}

/** The server is away. */
function Lost() {
  return (
    <Empty title={t("problem.notLoaded")}>
      <p>{t("problem.notLoaded.lead")}</p>
      <p>
        <button type="button" class="button primary" onClick={() => location.reload()}>
          {t("problem.reload")}
        </button>
      </p>
    </Empty>
  );
}
