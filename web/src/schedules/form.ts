/** A schedule as texts of a form, and back. */
import type { Schedule } from "../api/client";
import { readParams } from "../runs/submission";
import { type Aim, aimOf } from "./schedule";

export interface ScheduleTexts {
  id: string;
  description: string;
  kind: Aim["kind"];
  name: string;
  /** Params of a flow, input of a graph or data of a template. */
  input: string;
  tag: string;
  priority: string;
  timeout_sec: string;
  max_attempts: string;
  backoff_sec: string;
  rhythm: "cron" | "every";
  cron: string;
  every_sec: string;
  timezone: string;
  starts_at: string;
  ends_at: string;
  overlap: Schedule["overlap"];
  catch_up: Schedule["catch_up"];
  catch_up_window_sec: string;
  jitter_sec: string;
  pause_after_failures: string;
}

export const KINDS: readonly Aim["kind"][] = ["flow", "graph", "template"];
export const OVERLAPS: readonly Schedule["overlap"][] = ["skip", "queue", "cancel_running", "allow"];
export const CATCH_UPS: readonly Schedule["catch_up"][] = ["latest", "none", "all"];
const INPUTS = { flow: "params", graph: "input", template: "data" } as const;

/** In the body of a PUT, where a problem with it is reported. */
export function inputField(kind: Aim["kind"]): string {
  return `target.${INPUTS[kind]}`;
}

/** `null`: a new one, in this time zone. */
export function textsOf(schedule: Schedule | null, zone: string): ScheduleTexts {
  const text = (value: number | string | null | undefined) => (value == null ? "" : String(value));
  // The server leaves out of a target what is at its default.
  const target: Partial<Schedule["target"]> = schedule?.target ?? {};
  const { kind, name } = aimOf({ target });
  const input = target[INPUTS[kind]];
  return {
    id: text(schedule?.id),
    description: text(schedule?.description),
    kind,
    name,
    input: input == null ? "" : JSON.stringify(input, null, 2),
    tag: text(target.tag),
    priority: text(target.priority),
    timeout_sec: text(target.timeout_sec),
    max_attempts: text(target.retry?.max_attempts),
    backoff_sec: text(target.retry?.backoff_sec),
    rhythm: schedule?.every_sec == null ? "cron" : "every",
    cron: schedule ? text(schedule.cron) : "0 9 * * *",
    every_sec: schedule ? text(schedule.every_sec) : "3600",
    timezone: schedule?.timezone ?? zone,
    starts_at: localTime(schedule?.starts_at),
    ends_at: localTime(schedule?.ends_at),
    overlap: schedule?.overlap ?? "skip",
    catch_up: schedule?.catch_up ?? "latest",
    catch_up_window_sec: text(schedule?.catch_up_window_sec ?? 86_400),
    jitter_sec: text(schedule?.jitter_sec || null),
    pause_after_failures: text(schedule?.pause_after_failures),
  };
}

/** As a field for a time has it: in the time zone of the browser. */
function localTime(at: number | null | undefined): string {
  if (at == null) return "";
  const date = new Date(at * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

/** What is not changed keeps its fraction of a second. */
function timeOf(text: string, known: number | null | undefined): number | null {
  if (text === "") return null;
  return known != null && text === localTime(known) ? known : new Date(text).getTime() / 1000;
}

const number = (text: string) => (text.trim() === "" ? null : Number(text));
const given = (values: object) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== null));

/** When it ticks: all that a preview needs. */
export function timingOf(texts: ScheduleTexts, known: Schedule | null): { [name: string]: unknown } {
  const isCron = texts.rhythm === "cron";
  return given({
    cron: isCron ? texts.cron.trim() : null,
    every_sec: isCron ? null : number(texts.every_sec),
    timezone: texts.timezone.trim() || null,
    starts_at: timeOf(texts.starts_at, known?.starts_at),
    ends_at: timeOf(texts.ends_at, known?.ends_at),
  });
}

/** The body of a PUT; what the form has no field for stays. Throws where the input is no JSON object. */
export function definitionOf(texts: ScheduleTexts, known: Schedule | null, notAnObject: string) {
  return {
    target: targetOf(texts, known, notAnObject),
    ...timingOf(texts, known),
    ...given({
      description: texts.description.trim() || null,
      overlap: texts.overlap,
      catch_up: texts.catch_up,
      catch_up_window_sec: number(texts.catch_up_window_sec),
      jitter_sec: number(texts.jitter_sec),
      pause_after_failures: number(texts.pause_after_failures),
    }),
  };
}

function targetOf(texts: ScheduleTexts, known: Schedule | null, notAnObject: string) {
  const { kind, name } = texts;
  const kept: Partial<Schedule["target"]> = known && aimOf(known).kind === kind ? known.target : {};
  const input = texts.input.trim() === "" ? null : readInput(texts, notAnObject);
  const own = { ...kept, [kind]: name.trim(), [INPUTS[kind]]: input };
  if (kind !== "flow") return given(own);
  const attempts = number(texts.max_attempts);
  const backoff = number(texts.backoff_sec);
  return given({
    ...own,
    tag: texts.tag.trim() || null,
    priority: texts.priority || null,
    timeout_sec: number(texts.timeout_sec),
    retry: attempts === null ? null : given({ ...kept.retry, max_attempts: attempts, backoff_sec: backoff }),
  });
}

/** Of a template any JSON will do. */
function readInput({ kind, input }: ScheduleTexts, notAnObject: string): unknown {
  return kind === "template" ? JSON.parse(input) : readParams(input, notAnObject);
}
