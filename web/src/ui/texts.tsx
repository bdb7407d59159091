/** Small pieces of text: ages, ids, code, values. */
import type { ComponentChildren } from "preact";
import { isScopeMissing } from "../api/client";
import { now } from "../app/clock";
import { ago, dateTime, duration, knownZone, shortId, visible, zonedTime } from "../format";
import { language, t } from "../i18n";
import { Glyph, type IconName } from "./icons";
import { toast } from "./toasts";

/** Anybody's text. It is never HTML, and nothing in it is invisible. */
export function Plain({ text, class: name }: { text: string; class?: string }) {
  return (
    <bdi class={name} dir="ltr">
      {visible(text)}
    </bdi>
  );
}

export function Age({ at }: { at: number | null | undefined }) {
  if (at == null) return <span class="dim">–</span>;
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={dateTime(at, language.value)}>
      {ago(now.value - at, language.value)}
    </time>
  );
}

export function Moment({ at }: { at: number | null | undefined }) {
  if (at == null) return <span class="dim">–</span>;
  return <time dateTime={new Date(at * 1000).toISOString()}>{dateTime(at, language.value)}</time>;
}

/** In the time zone of a schedule; the viewer's own appears on hover. */
export function ZonedTime({ at, zone }: { at: number | null | undefined; zone: string }) {
  if (at == null) return <span class="dim">–</span>;
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return (
    <time
      dateTime={new Date(at * 1000).toISOString()}
      title={t("time.yours", { time: zonedTime(at, own, language.value), zone: own })}
    >
      {zonedTime(at, knownZone(zone) ?? own, language.value)}
    </time>
  );
}

/** How long something took, or has been going on. */
export function Took({ from, to }: { from: number | null | undefined; to: number | null | undefined }) {
  if (from == null) return <span class="dim">–</span>;
  return <>{duration((to ?? now.value) - from)}</>;
}

export function RunId({ id }: { id: string }) {
  return (
    <span class="mono" title={id}>
      {visible(shortId(id))}
    </span>
  );
}

export function Tags({ tags }: { tags: readonly string[] | null | undefined }) {
  if (!tags?.length) return <span class="dim">–</span>;
  return (
    <span class="tags">
      {tags.map((tag) => (
        <span class="tag" key={tag}>
          {visible(tag)}
        </span>
      ))}
    </span>
  );
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast(t("copy.done"));
  } catch {
    toast(t("copy.failed"), "bad");
  }
}

export function CopyButton({
  text,
  label,
  icon = "copy",
  short,
}: {
  text: () => string;
  label: string;
  icon?: IconName;
  /** Words to be seen; part of the label. */
  short?: string;
}) {
  return (
    <button
      type="button"
      class={short ? "button quiet" : "icon-button"}
      aria-label={label}
      title={label}
      onClick={() => void copy(text())}
    >
      <Glyph name={icon} />
      {short}
    </button>
  );
}

/** A command to type, with a button that copies it. */
export function Command({ text }: { text: string }) {
  return (
    <div class="command">
      <code>{text}</code>
      <CopyButton text={() => text} label={t("copy.command")} />
    </div>
  );
}

export function Empty({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Problem({ error }: { error: Error }) {
  const detail = "detail" in error ? String(error.detail) : "";
  return (
    <div class="problem" role="alert">
      <Glyph name="failed" />
      <p>
        {error instanceof TypeError ? t("problem.unreachable") : visible(error.message)}
        {detail && <span class="problem-detail"> {visible(detail)}</span>}
        {isScopeMissing(error) && <span class="problem-detail"> {t("problem.scope")}</span>}
      </p>
    </div>
  );
}
