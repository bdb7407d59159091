/** The HTTP API, typed by its OpenAPI description (`npm run types`). */
import { signal } from "../app/signals";
import { forgetKey, keyHeaders } from "../auth/session";
import { language } from "../i18n";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Run = Schemas["Run"];
export type RunSummary = Schemas["RunSummary"];
export type RunStatus = Schemas["RunStatus"];
export type TaskState = Schemas["TaskState"];
export type TaskRecord = Schemas["TaskRecord"];
export type LogLine = Schemas["LogLine"];
export type Worker = Schemas["WorkerRecord"];
export type WorkerState = Schemas["WorkerState"];
export type Wheel = Schemas["WheelFile"];
export type WheelEvent = Schemas["WheelEvent"];
export type Execution = Schemas["ExecutionState"];
export type ExecutionSummary = Schemas["ExecutionSummary"];
export type ExecutionStatus = Schemas["ExecutionStatus"];
export type ExecutionEvent = Schemas["ExecutionEvent"];
export type NodeState = Schemas["ExecutionNode"];
export type NodeStatus = Schemas["NodeStatus"];
export type Wait = Schemas["Wait"];
export type Graph = Schemas["GraphRecord"];
export type GraphSummary = Schemas["GraphSummary"];
export type EventSummary = Schemas["EventSummary"];
export type Delivery = Schemas["Delivery"];
export type RetryJob = Schemas["WorkflowRetryJob"];
export type Template = Schemas["WorkflowTemplate"];
export type Step = Schemas["Step"];
export type Action = Schemas["WorkflowAction"];
export type Source = Schemas["WorkflowSource"];
export type Schedule = Schemas["ScheduleView"];
export type Tick = Schemas["ScheduleTick"];
export type TickStatus = Schemas["TickStatus"];
export type Flow = Schemas["Flow"];
export type FlowDetails = Schemas["FlowDetails"];
export type Priority = Schemas["Priority"];
export type Pause = Schemas["Pause"];
export type Queue = Schemas["Queue"];
export type Limit = Schemas["LimitView"];
export type LimitKey = Schemas["LimitKeyView"];
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

type Method = "get" | "post" | "patch" | "delete" | "put";
type PathsWith<M extends Method> = {
  [P in keyof paths]: paths[P] extends Record<M, object> ? P : never;
}[keyof paths];
type Operation<P extends keyof paths, M extends Method> = paths[P] extends Record<M, infer O> ? O : never;
type Answer<O> = O extends { responses: { 200: { content: { "application/json": infer T } } } }
  ? T
  : O extends { responses: { 201: { content: { "application/json": infer T } } } }
    ? T
    : unknown;
type Query<O> = O extends { parameters: { query?: infer Q } } ? Q : never;

export interface CallOptions {
  path?: Record<string, string>;
  query?: object | undefined;
  body?: unknown;
  /** A body that is no JSON. */
  text?: { content: string; type: string };
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

/** What the server refused, or could not do, with the words it used. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly errId: string | null,
    message: string,
    readonly detail: string,
  ) {
    super(message);
  }
}

/** Seconds by which the server's clock is ahead of this one. */
export const clockOffset = signal(0);
const NOTICEABLE_SKEW_SEC = 3;

export function url(template: string, options: CallOptions = {}): string {
  const path = template.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(options.path?.[name] ?? ""));
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options.query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(name, String(one));
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** Any call: checks the answer, and turns a refusal into an ApiError. */
export async function request(
  method: Method,
  template: string,
  options: CallOptions = {},
  headers: Record<string, string> = {},
): Promise<Response> {
  const init: RequestInit = {
    method: method.toUpperCase(),
    headers: { ...keyHeaders(), "Accept-Language": language.value, ...options.headers, ...headers },
    signal: options.signal ?? null,
    cache: "no-store",
  };
  if (options.body !== undefined) {
    init.body = JSON.stringify(options.body);
    (init.headers as Record<string, string>)["Content-Type"] = "application/json";
  }
  if (options.text !== undefined) {
    init.body = options.text.content;
    (init.headers as Record<string, string>)["Content-Type"] = options.text.type;
  }
  const response = await fetch(url(template, options), init);
  noteClock(response);
  if (!response.ok) throw await refusal(response.status, await response.text());
  return response;
}

/** The key is valid, but not for this operation. */
const MISSING_SCOPE = "ERR-PYOCO-0060";

/** Another key would do: this one stays signed in for what it may do. */
export function isScopeMissing(error: Error): boolean {
  return error instanceof ApiError && error.errId === MISSING_SCOPE;
}

export function refusal(status: number, text: string): ApiError {
  const body = parsed(text);
  const isKeyRefused = status === 401 || (status === 403 && body.err_id !== MISSING_SCOPE);
  if (isKeyRefused) forgetKey(body.message ?? `HTTP ${status}`);
  const detail = typeof body.detail === "string" ? body.detail : problems(body.detail);
  return new ApiError(status, body.err_id ?? null, body.message ?? `HTTP ${status}`, detail);
}

interface ErrorText {
  detail?: unknown;
  err_id?: string;
  message?: string;
}

function parsed(text: string): ErrorText {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? value : {};
  } catch {
    return {};
  }
}

function problems(detail: unknown): string {
  if (!Array.isArray(detail)) return "";
  return detail
    .map((one: { loc?: unknown[]; msg?: string }) =>
      [(one.loc ?? []).slice(1).join("."), one.msg].filter(Boolean).join(": "),
    )
    .join("; ");
}

function noteClock(response: Response): void {
  const date = Date.parse(response.headers.get("date") ?? "");
  const offset = (date - Date.now()) / 1000;
  clockOffset.value = Math.abs(offset) > NOTICEABLE_SKEW_SEC ? offset : 0;
}

async function json<T>(response: Promise<Response>): Promise<T> {
  return (await (await response).json()) as T;
}

export function get<P extends PathsWith<"get">>(
  path: P,
  options: Omit<CallOptions, "query" | "body"> & { query?: Query<Operation<P, "get">> } = {},
): Promise<Answer<Operation<P, "get">>> {
  return json(request("get", path, options as CallOptions));
}

export function post<P extends PathsWith<"post">>(
  path: P,
  options: CallOptions = {},
): Promise<Answer<Operation<P, "post">>> {
  return json(request("post", path, options));
}

export function put<P extends PathsWith<"put">>(
  path: P,
  options: CallOptions = {},
): Promise<Answer<Operation<P, "put">>> {
  return json(request("put", path, options));
}

export function patch<P extends PathsWith<"patch">>(
  path: P,
  options: CallOptions = {},
): Promise<Answer<Operation<P, "patch">>> {
  return json(request("patch", path, options));
}

export function del<P extends PathsWith<"delete">>(
  path: P,
  options: CallOptions = {},
): Promise<Answer<Operation<P, "delete">>> {
  return json(request("delete", path, options));
}
