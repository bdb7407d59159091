import { useEffect, useRef } from "preact/hooks";
import { SignIn } from "../auth/SignIn";
import { apiKey, needsKey } from "../auth/session";
import { useInbox } from "../executions/waits/inbox";
import { language, t } from "../i18n";
import { delaySec } from "../live/freshness";
import { Glyph } from "../ui/icons";
import { Empty } from "../ui/texts";
import { Toasts } from "../ui/toasts";
import { BottomBar, Sidebar, TopBar } from "./Frame";
import { useHealth } from "./health";
import { focusHeading, opened, useKeys } from "./keys";
import { onDemand } from "./onDemand";
import { link, place, returnedTo } from "./router";
import { HOME, sectionOf } from "./sections";
import { canAct, standing } from "./standing";
import { detail } from "./title";

export function Shell() {
  const isOut = needsKey && apiKey.value === "";
  return (
    <>
      {/* biome-ignore lint/a11y/useValidAnchor: it leads to a place on this page, as a skip link does */}
      <a class="skip" href="#content" onClick={skip}>
        {t("nav.skip")}
      </a>
      {isOut ? (
        <div class="frame is-out">
          <TopBar isOut />
          <SignIn />
        </div>
      ) : (
        <div class="frame">
          <Sidebar />
          <div class="stage">
            <TopBar />
            <Content />
          </div>
          <BottomBar />
          <Opened />
        </div>
      )}
      <Toasts />
    </>
  );
}

/** The address belongs to the router, so the way to the content is not an address. */
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function Content() {
  const [path = HOME, id] = place.value.path;
  const section = sectionOf(path);
  useInbox();
  useHealth();
  const title = detail.value ?? (section ? t(section.title) : "404");
  useEffect(() => {
    document.title = `${title} · pyoco-server`;
  }, [title, language.value]);
  useEffect(() => window.scrollTo({ top: returnedTo.value ?? 0 }), [path, id]);
  const isFirst = useRef(true);
  useEffect(() => {
    const isStart = isFirst.current;
    isFirst.current = false;
    return isStart ? undefined : focusHeading();
  }, [path, id]);
  return (
    <main id="content" tabIndex={-1}>
      <AwayBanner />
      {section === undefined ? (
        <NotFound />
      ) : id !== undefined && section.Detail ? (
        <section.Detail key={id} id={id} />
      ) : (
        <section.Page />
      )}
    </main>
  );
}

const Palette = onDemand("Palette");
const KeysDialog = onDemand("KeysDialog");

function Opened() {
  useKeys();
  const close = () => {
    opened.value = null;
  };
  if (opened.value === "palette") return <Palette onClose={close} />;
  return opened.value === "keys" ? <KeysDialog onClose={close} /> : null;
}

function AwayBanner() {
  const now = standing.value;
  if (canAct.value || now === "live" || now === "connecting") return null;
  return (
    <div class="banner" role="alert">
      <Glyph name="failed" />
      <p>{t(`health.${now}.banner`, { n: delaySec.value })}</p>
    </div>
  );
}

function NotFound() {
  return (
    <Empty title={t("problem.notFound")}>
      <p>
        <a class="button" href={link(["runs"])}>
          {t("problem.toRuns")}
        </a>
      </p>
    </Empty>
  );
}
