import type { ComponentType } from "preact";
import { link } from "../app/router";
import { type Key, t } from "../i18n";

export interface PartOf {
  path: string;
  title: Key;
  Part: ComponentType;
}

/** A page of several lists that belong together: one at a time, each with its own address. */
export function Parts({ section, title, parts, id }: { section: string; title: Key; parts: PartOf[]; id?: string }) {
  const part = parts.find((one) => one.path === id) ?? parts[0]!;
  return (
    <>
      <header class="page-head">
        <h1>{t(title)}</h1>
      </header>
      <nav class="subsections" aria-label={t("events.parts", { page: t(title) })}>
        {parts.map((one) => (
          <a key={one.path} href={link([section, one.path])} aria-current={one === part ? "page" : undefined}>
            {t(one.title)}
          </a>
        ))}
      </nav>
      <part.Part key={part.path} />
    </>
  );
}
