import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { t } from "../i18n";
import { Empty } from "../ui/texts";
import { isOutdated } from "./outdated";

type Pages = typeof import("../pages");

/** A page that is loaded when it is first shown. */
export function onDemand<N extends keyof Pages>(name: N): Pages[N] {
  let found: ComponentType<object> | null = null;

  function OnDemand(props: object) {
    const [, redraw] = useState(0);
    const [isLost, setLost] = useState(false);
    useEffect(() => {
      if (found) return;
      import("../pages").then(
        (pages) => {
          found = pages[name] as ComponentType<object>;
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
  }
  return OnDemand as Pages[N];
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
