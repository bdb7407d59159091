/** What there is to see, in the order of the navigation. */
import type { ComponentType } from "preact";
import type { Key } from "../i18n";
import { RunsPage } from "../runs/RunsPage";
import type { IconName } from "../ui/icons";
import { onDemand } from "./onDemand";

export interface Section {
  path: string;
  title: Key;
  icon: IconName;
  Page: ComponentType<{ id?: string }>;
  /** One thing of the section. */
  Detail?: ComponentType<{ id: string }>;
  /** Has the number of those who wait beside its name. */
  hasBadge?: boolean;
}

/** What `/` shows. */
export const HOME = "overview";

export const GROUPS: { title: Key; sections: Section[] }[] = [
  {
    title: "nav.observe",
    sections: [
      {
        path: HOME,
        title: "nav.overview",
        icon: "chart",
        Page: onDemand("OverviewPage"),
      },
      {
        path: "runs",
        title: "nav.runs",
        icon: "runs",
        Page: RunsPage,
        Detail: onDemand("RunPage"),
      },
      {
        path: "executions",
        title: "nav.executions",
        icon: "fork",
        Page: onDemand("ExecutionsPage"),
        Detail: onDemand("ExecutionPage"),
      },
      {
        path: "waits",
        title: "nav.waits",
        icon: "inbox",
        Page: onDemand("WaitsPage"),
        hasBadge: true,
      },
    ],
  },
  {
    title: "nav.build",
    sections: [
      {
        path: "flows",
        title: "nav.flows",
        icon: "flow",
        Page: onDemand("FlowsPage"),
        Detail: onDemand("FlowPage"),
      },
      {
        path: "graphs",
        title: "nav.graphs",
        icon: "join",
        Page: onDemand("GraphsPage"),
        Detail: onDemand("GraphPage"),
      },
      {
        path: "schedules",
        title: "nav.schedules",
        icon: "clock",
        Page: onDemand("SchedulesPage"),
        Detail: onDemand("SchedulePage"),
      },
      {
        path: "events",
        title: "nav.events",
        icon: "bell",
        Page: onDemand("EventsPage"),
        Detail: onDemand("EventsPage"),
      },
    ],
  },
  {
    title: "nav.operate",
    sections: [
      {
        path: "queues",
        title: "nav.queues",
        icon: "fleet",
        Page: onDemand("FleetPage"),
      },
      {
        path: "dead-letters",
        title: "nav.letters",
        icon: "archive",
        Page: onDemand("LettersPage"),
        Detail: onDemand("LetterPage"),
      },
      {
        path: "bulk",
        title: "nav.bulk",
        icon: "stack",
        Page: onDemand("BulkListPage"),
        Detail: onDemand("BulkPage"),
      },
      {
        path: "limits",
        title: "nav.limits",
        icon: "limit",
        Page: onDemand("LimitsPage"),
        Detail: onDemand("LimitPage"),
      },
      {
        path: "wheels",
        title: "nav.wheels",
        icon: "box",
        Page: onDemand("WheelsPage"),
      },
    ],
  },
  {
    title: "nav.settings",
    sections: [
      {
        path: "alerts",
        title: "nav.alerts",
        icon: "megaphone",
        Page: onDemand("AlertsPage"),
        Detail: onDemand("AlertsPage"),
      },
      {
        path: "secrets",
        title: "nav.secrets",
        icon: "lock",
        Page: onDemand("SecretsPage"),
        Detail: onDemand("SecretsPage"),
      },
      {
        path: "api-keys",
        title: "nav.keys",
        icon: "key",
        Page: onDemand("KeysPage"),
      },
      {
        path: "audit",
        title: "nav.audit",
        icon: "book",
        Page: onDemand("AuditPage"),
      },
      {
        path: "about",
        title: "nav.about",
        icon: "info",
        Page: onDemand("AboutPage"),
      },
    ],
  },
];

export const SECTIONS = GROUPS.flatMap((group) => group.sections);

/** Addresses of before, which people have bookmarked. */
const MOVED: { [path: string]: string } = { workers: "queues", metrics: HOME };

export function sectionOf(path: string): Section | undefined {
  return SECTIONS.find((section) => section.path === (MOVED[path] ?? path));
}
