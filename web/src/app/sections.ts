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
  Page: ComponentType;
  /** One thing of the section. */
  Detail?: ComponentType<{ id: string }>;
  /** Has the number of those who wait beside its name. */
  hasBadge?: boolean;
}

/** What `/` shows. */
export const HOME = "overview";

const executions = () => import("../executions/pages");
const schedules = () => import("../schedules/pages");
const flows = () => import("../flows/pages");
const limits = () => import("../limits/pages");
const letters = () => import("../letters/pages");
const bulk = () => import("../bulk/pages");
const admin = () => import("../admin/pages");
const alerts = () => import("../alerts/AlertsPage");
const events = () => import("../events/EventsPage");

export const GROUPS: { title: Key; sections: Section[] }[] = [
  {
    title: "nav.observe",
    sections: [
      {
        path: HOME,
        title: "nav.overview",
        icon: "chart",
        Page: onDemand(async () => (await import("../overview/OverviewPage")).OverviewPage),
      },
      {
        path: "runs",
        title: "nav.runs",
        icon: "runs",
        Page: RunsPage,
        Detail: onDemand(async () => (await import("../runs/RunPage")).RunPage),
      },
      {
        path: "executions",
        title: "nav.executions",
        icon: "fork",
        Page: onDemand(async () => (await executions()).ExecutionsPage),
        Detail: onDemand(async () => (await executions()).ExecutionPage),
      },
      {
        path: "waits",
        title: "nav.waits",
        icon: "inbox",
        Page: onDemand(async () => (await executions()).WaitsPage),
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
        Page: onDemand(async () => (await flows()).FlowsPage),
        Detail: onDemand(async () => (await flows()).FlowPage),
      },
      {
        path: "graphs",
        title: "nav.graphs",
        icon: "join",
        Page: onDemand(async () => (await executions()).GraphsPage),
        Detail: onDemand(async () => (await executions()).GraphPage),
      },
      {
        path: "schedules",
        title: "nav.schedules",
        icon: "clock",
        Page: onDemand(async () => (await schedules()).SchedulesPage),
        Detail: onDemand(async () => (await schedules()).SchedulePage),
      },
      {
        path: "events",
        title: "nav.events",
        icon: "bell",
        Page: onDemand(async () => (await events()).EventsPage),
        Detail: onDemand<{ id: string }>(async () => (await events()).EventsPage),
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
        Page: onDemand(async () => (await import("../fleet/FleetPage")).FleetPage),
      },
      {
        path: "dead-letters",
        title: "nav.letters",
        icon: "archive",
        Page: onDemand(async () => (await letters()).LettersPage),
        Detail: onDemand(async () => (await letters()).LetterPage),
      },
      {
        path: "bulk",
        title: "nav.bulk",
        icon: "stack",
        Page: onDemand(async () => (await bulk()).BulkListPage),
        Detail: onDemand(async () => (await bulk()).BulkPage),
      },
      {
        path: "limits",
        title: "nav.limits",
        icon: "limit",
        Page: onDemand(async () => (await limits()).LimitsPage),
        Detail: onDemand(async () => (await limits()).LimitPage),
      },
      {
        path: "wheels",
        title: "nav.wheels",
        icon: "box",
        Page: onDemand(async () => (await import("../wheels/WheelsPage")).WheelsPage),
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
        Page: onDemand(async () => (await alerts()).AlertsPage),
        Detail: onDemand<{ id: string }>(async () => (await alerts()).AlertsPage),
      },
      {
        path: "secrets",
        title: "nav.secrets",
        icon: "lock",
        Page: onDemand(async () => (await import("../alerts/SecretsPage")).SecretsPage),
        Detail: onDemand<{ id: string }>(async () => (await import("../alerts/SecretsPage")).SecretsPage),
      },
      {
        path: "api-keys",
        title: "nav.keys",
        icon: "key",
        Page: onDemand(async () => (await admin()).KeysPage),
      },
      {
        path: "audit",
        title: "nav.audit",
        icon: "book",
        Page: onDemand(async () => (await admin()).AuditPage),
      },
      {
        path: "about",
        title: "nav.about",
        icon: "info",
        Page: onDemand(async () => (await admin()).AboutPage),
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
