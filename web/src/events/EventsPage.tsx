import type { ComponentType } from "preact";
import { link } from "../app/router";
import { type Key, t } from "../i18n";
import { ActionsPart } from "./ActionsPart";
import { DeliveriesPart } from "./DeliveriesPart";
import { NotificationsPart } from "./NotificationsPart";
import { QueuePart } from "./QueuePart";
import { SourcesPart } from "./SourcesPart";
import { TemplatesPart } from "./TemplatesPart";

const PARTS: { path: string; title: Key; Part: ComponentType }[] = [
  { path: "deliveries", title: "events.deliveries", Part: DeliveriesPart },
  { path: "queue", title: "events.queue", Part: QueuePart },
  { path: "templates", title: "events.templates", Part: TemplatesPart },
  { path: "actions", title: "events.actions", Part: ActionsPart },
  { path: "sources", title: "events.sources", Part: SourcesPart },
  { path: "notifications", title: "events.notifications", Part: NotificationsPart },
];

/** Workflow events: what came, what is tried again, and what may start what. */
export function EventsPart({ id }: { id: string }) {
  const part = PARTS.find((one) => one.path === id) ?? PARTS[0]!;
  return (
    <>
      <header class="page-head">
        <h1>{t("events.title")}</h1>
      </header>
      <nav class="subsections" aria-label={t("events.parts")}>
        {PARTS.map((one) => (
          <a key={one.path} href={link(["events", one.path])} aria-current={one === part ? "page" : undefined}>
            {t(one.title)}
          </a>
        ))}
      </nav>
      <part.Part key={part.path} />
    </>
  );
}

export function EventsPage() {
  return <EventsPart id="deliveries" />;
}
