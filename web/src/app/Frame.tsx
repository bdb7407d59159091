/** What is around every page: the navigation, and what is true of the whole. */
import { useEffect, useState } from "preact/hooks";
import { clockOffset } from "../api/client";
import { forgetKey, needsKey } from "../auth/session";
import { badge } from "../executions/waits/answer";
import { inbox } from "../executions/waits/inbox";
import { visible, zonedClock } from "../format";
import { chooseLanguage, LANGUAGES, language, t } from "../i18n";
import { delaySec } from "../live/freshness";
import { Dialog } from "../ui/Dialog";
import { Glyph, type IconName, Logo } from "../ui/icons";
import { toast } from "../ui/toasts";
import { opened } from "./keys";
import { link, place } from "./router";
import { GROUPS, HOME, SECTIONS, type Section, sectionOf } from "./sections";
import { settings } from "./settings";
import { standing } from "./standing";
import { chooseTheme, THEMES, type Theme, theme } from "./theme";
import { detail } from "./title";
import { isUtc, shownZone, switchZone } from "./zone";

function current(): Section | undefined {
  return sectionOf(place.value.path[0] ?? HOME);
}

export function Sidebar() {
  return (
    <aside class="sidebar">
      <Brand />
      <nav aria-label={t("nav.label")}>
        <Groups />
      </nav>
      <a class="api" href="/docs" title={`pyoco-server ${settings.version}`}>
        <Glyph name="outside" />
        <span>{t("nav.api")}</span>
      </a>
    </aside>
  );
}

function Brand() {
  return (
    <a class="brand" href={link([])}>
      <Logo />
      <span class="wordmark">
        pyoco<span>server</span>
      </span>
    </a>
  );
}

function Groups({ onGo }: { onGo?: () => void }) {
  return (
    <>
      {GROUPS.map((group) => (
        <section key={group.title}>
          <h2>{t(group.title)}</h2>
          <ul>
            {group.sections.map((section) => (
              <li key={section.path}>
                <SectionLink section={section} onGo={onGo} />
              </li>
            ))}
          </ul>
        </section>
      ))}
    </>
  );
}

function SectionLink({ section, onGo }: { section: Section; onGo?: (() => void) | undefined }) {
  return (
    <a
      class="section-link"
      href={link([section.path])}
      title={t(section.title)}
      aria-current={section === current() ? "page" : undefined}
      {...(onGo ? { onClick: onGo } : {})}
    >
      <Glyph name={section.icon} />
      <span class="section-name">{t(section.title)}</span>
      {section.hasBadge && <WaitsBadge />}
    </a>
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

const BOTTOM = [HOME, "runs", "waits"];

/** On a phone: the sections that are needed on the way, and the way to the others. */
export function BottomBar() {
  const [isOpen, setOpen] = useState(false);
  const shown = SECTIONS.filter((section) => BOTTOM.includes(section.path));
  return (
    <nav class="bottom-bar" aria-label={t("nav.bottom")}>
      {shown.map((section) => (
        <SectionLink key={section.path} section={section} />
      ))}
      <button type="button" class="section-link" aria-haspopup="dialog" onClick={() => setOpen(true)}>
        <Glyph name="dots" />
        <span class="section-name">{t("nav.more")}</span>
      </button>
      {isOpen && (
        <Dialog title={t("nav.more")} onClose={() => setOpen(false)}>
          <div class="more">
            <Groups onGo={() => setOpen(false)} />
            <div class="more-tools">
              <Tools />
            </div>
          </div>
        </Dialog>
      )}
    </nav>
  );
}

export function TopBar({ isOut = false }: { isOut?: boolean }) {
  return (
    <header class="top">
      <Brand />
      {!isOut && <Breadcrumb />}
      <div class="tools">
        {!isOut && <PaletteButton />}
        {!isOut && <Pill />}
        {!isOut && <Clock />}
        <div class="top-tools">
          <Tools isOut={isOut} />
        </div>
      </div>
    </header>
  );
}

function Breadcrumb() {
  const section = current();
  if (!section) return null;
  const isList = detail.value === null;
  return (
    <nav class="crumbs" aria-label={t("nav.crumbs")}>
      <ol>
        <li>
          {isList ? (
            <span aria-current="page">{t(section.title)}</span>
          ) : (
            <a href={link([section.path])}>{t(section.title)}</a>
          )}
        </li>
        {detail.value !== null && (
          <li>
            <Glyph name="chevron" size={12} />
            <span aria-current="page">{visible(detail.value)}</span>
          </li>
        )}
      </ol>
    </nav>
  );
}

function PaletteButton() {
  return (
    <button type="button" class="to-palette" title={t("palette.title")} onClick={openPalette}>
      <Glyph name="search" />
      <span class="sr-only">{t("palette.title")}</span>
      <kbd>{/Mac|iP/.test(navigator.platform) ? "⌘K" : "Ctrl K"}</kbd>
    </button>
  );
}

function openPalette(): void {
  opened.value = "palette";
}

/** Whether what is shown is what is so. */
function Pill() {
  const now = standing.value;
  const look = now === "live" ? "is-live" : now === "connecting" ? "" : now === "delayed" ? "is-late" : "is-away";
  return (
    <span class={`live ${look}`} role="status">
      {t(`health.${now}`, { n: delaySec.value })}
    </span>
  );
}

/** The time of the server. It goes on when the ages on the page do not. */
function Clock() {
  const [at, setAt] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setAt(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return (
    <button type="button" class="clock" title={t(isUtc.value ? "clock.toLocal" : "clock.toUtc")} onClick={switchZone}>
      {zonedClock(at / 1000 + clockOffset.value, shownZone())}
    </button>
  );
}

function Tools({ isOut = false }: { isOut?: boolean }) {
  return (
    <>
      <LanguageSwitch />
      <ThemeSwitch />
      {needsKey && !isOut && (
        <button
          type="button"
          class="icon-button"
          aria-label={t("action.signOut")}
          title={t("action.signOut")}
          onClick={() => forgetKey()}
        >
          <Glyph name="leave" />
        </button>
      )}
    </>
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
      onClick={() => void chooseLanguage(other).catch(() => toast(t("problem.unreachable"), "bad"))}
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
