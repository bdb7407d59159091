import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { SignIn } from "../auth/SignIn";
import { apiKey, forgetKey, needsKey } from "../auth/session";
import { EventsPage, EventsPart } from "../events/EventsPage";
import { ExecutionPage } from "../executions/ExecutionPage";
import { ExecutionsPage } from "../executions/ExecutionsPage";
import { GraphPage } from "../executions/graphs/GraphPage";
import { GraphsPage } from "../executions/graphs/GraphsPage";
import { badge } from "../executions/waits/answer";
import { inbox, useInbox } from "../executions/waits/inbox";
import { WaitsPage } from "../executions/waits/WaitsPage";
import { WorkersPage } from "../fleet/WorkersPage";
import { chooseLanguage, type Key, LANGUAGES, language, t } from "../i18n";
import { collect } from "../metrics/history";
import { MetricsPage } from "../metrics/MetricsPage";
import { RunPage } from "../runs/RunPage";
import { RunsPage } from "../runs/RunsPage";
import { SchedulePage } from "../schedules/SchedulePage";
import { SchedulesPage } from "../schedules/SchedulesPage";
import { Glyph, type IconName, Logo } from "../ui/icons";
import { Empty } from "../ui/texts";
import { Toasts } from "../ui/toasts";
import { WheelsPage } from "../wheels/WheelsPage";
import { BANNERS, health, useHealth } from "./health";
import { link, place } from "./router";
import { settings } from "./settings";
import { chooseTheme, THEMES, type Theme, theme } from "./theme";

interface Section {
  path: string;
  title: Key;
  Page: ComponentType;
  /** One thing of the section. */
  Detail?: ComponentType<{ id: string }>;
  /** Beside its name in the navigation. */
  Badge?: ComponentType;
}

/** What there is to see, in the order of the navigation. */
const SECTIONS: Section[] = [
  { path: "runs", title: "nav.runs", Page: RunsPage, Detail: RunPage },
  { path: "executions", title: "nav.executions", Page: ExecutionsPage, Detail: ExecutionPage },
  { path: "waits", title: "nav.waits", Page: WaitsPage, Badge: WaitsBadge },
  { path: "graphs", title: "nav.graphs", Page: GraphsPage, Detail: GraphPage },
  { path: "schedules", title: "nav.schedules", Page: SchedulesPage, Detail: SchedulePage },
  { path: "events", title: "nav.events", Page: EventsPage, Detail: EventsPart },
  { path: "workers", title: "nav.workers", Page: WorkersPage },
  { path: "wheels", title: "nav.wheels", Page: WheelsPage },
  { path: "metrics", title: "nav.metrics", Page: MetricsPage },
];

export function Shell() {
  const isOut = needsKey && apiKey.value === "";
  return (
    <>
      {/* biome-ignore lint/a11y/useValidAnchor: it leads to a place on this page, as a skip link does */}
      <a class="skip" href="#content" onClick={skip}>
        {t("nav.skip")}
      </a>
      <Header isOut={isOut} />
      {isOut ? <SignIn /> : <Content />}
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
  const [path = "runs", id] = place.value.path;
  const section = SECTIONS.find((one) => one.path === path);
  useEffect(collect, []);
  useInbox();
  useHealth();
  useEffect(() => {
    document.title = `${section ? t(section.title) : "404"} · pyoco-server`;
    window.scrollTo({ top: 0 });
  }, [path, id, language.value]);
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

function AwayBanner() {
  if (health.value === "ok") return null;
  return (
    <div class="banner" role="alert">
      <Glyph name="failed" />
      <p>{t(BANNERS[health.value])}</p>
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

function Header({ isOut }: { isOut: boolean }) {
  const current = place.value.path[0] ?? "runs";
  const nav = useRef<HTMLElement>(null);
  useEffect(() => {
    const here = nav.current?.querySelector<HTMLElement>("[aria-current]");
    if (here && nav.current)
      nav.current.scrollLeft = here.offsetLeft - (nav.current.clientWidth - here.offsetWidth) / 2;
  }, [current, isOut]);
  return (
    <header class="top">
      <a class="brand" href={link(["runs"])}>
        <Logo />
        <span class="wordmark">
          pyoco<span>server</span>
        </span>
      </a>
      {!isOut && (
        <nav class="sections" ref={nav} aria-label={t("nav.label")}>
          {SECTIONS.map((section) => (
            <a
              key={section.path}
              href={link([section.path])}
              aria-current={section.path === current ? "page" : undefined}
            >
              {t(section.title)}
              {section.Badge && <section.Badge />}
            </a>
          ))}
        </nav>
      )}
      <div class="tools">
        <a class="wide-only" href="/docs" title={`pyoco-server ${settings.version}`}>
          {t("nav.api")}
        </a>
        <LanguageSwitch />
        <ThemeSwitch />
        {needsKey && !isOut && (
          <button
            type="button"
            class="icon-button"
            aria-label={t("action.signOut")}
            title={t("action.signOut")}
            onClick={forgetKey}
          >
            <Glyph name="leave" />
          </button>
        )}
      </div>
    </header>
  );
}

/** How many wait for somebody. */
function WaitsBadge() {
  const found = inbox.value;
  if (!found?.items.length) return null;
  const shown = badge(found.items.length, found.cursor !== null);
  return (
    <span class="badge">
      <span aria-hidden="true">{shown}</span>
      <span class="sr-only">{t("nav.waiting", { n: shown })}</span>
    </span>
  );
}

function LanguageSwitch() {
  const other = language.value === "ja" ? "en" : "ja";
  return (
    <button
      type="button"
      class="icon-button language"
      lang={other}
      title={t("nav.language")}
      onClick={() => chooseLanguage(other)}
    >
      {LANGUAGES[other].name}
    </button>
  );
}

const THEME_ICONS: Record<Theme, IconName> = { auto: "half", light: "sun", dark: "moon" };

function ThemeSwitch() {
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
  const label = t("nav.theme", { theme: t(`theme.${theme.value}`) });
  return (
    <button type="button" class="icon-button" aria-label={label} title={label} onClick={() => chooseTheme(next)}>
      <Glyph name={THEME_ICONS[theme.value]} />
    </button>
  );
}
