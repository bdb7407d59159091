import { type PartOf, Parts } from "../ui/Parts";
import { ActionsPart } from "./ActionsPart";
import { DeliveriesPart } from "./DeliveriesPart";
import { NotificationsPart } from "./NotificationsPart";
import { QueuePart } from "./QueuePart";
import { SourcesPart } from "./SourcesPart";
import { TemplatesPart } from "./TemplatesPart";

const PARTS: PartOf[] = [
  { path: "deliveries", title: "events.deliveries", Part: DeliveriesPart },
  { path: "queue", title: "events.queue", Part: QueuePart },
  { path: "templates", title: "events.templates", Part: TemplatesPart },
  { path: "actions", title: "events.actions", Part: ActionsPart },
  { path: "sources", title: "events.sources", Part: SourcesPart },
  { path: "notifications", title: "events.notifications", Part: NotificationsPart },
];

/** Workflow events: what came, what is tried again, and what may start what. */
export function EventsPage({ id }: { id?: string }) {
  return <Parts section="events" title="events.title" parts={PARTS} {...(id ? { id } : {})} />;
}
