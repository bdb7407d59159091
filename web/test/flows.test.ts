import { describe, expect, it } from "vitest";
import { ApiError, type FlowDetails, type Limit, type Queue, type RunSummary, type Worker } from "../src/api/client";
import { isUnserved, servedQueues, stateOf } from "../src/fleet/queues";
import { bars, defaultsOf, percent, textsOf, toneOfRate } from "../src/flows/flow";
import { formLike, formOf, others, readFields, startOf } from "../src/flows/params";
import { allowance, definitionOf, fullness, textsOf as limitTexts } from "../src/limits/limit";
import { fieldProblems, placed } from "../src/ui/refusal";

const SCHEMA = {
  type: "object",
  properties: {
    month: { type: "integer", minimum: 1, maximum: 12, description: "Month" },
    customer: { type: "string", default: "acme" },
    mode: { enum: ["fast", 2] },
    isDry: { type: ["boolean", "null"] },
    day: { type: "string", format: "date" },
    rows: { type: "array" },
  },
  required: ["month", "mode"],
  additionalProperties: false,
};

describe("a form for params", () => {
  const form = formOf(SCHEMA)!;

  it("has a field of its kind for each", () => {
    expect(form.fields.map((field) => [field.name, field.kind, field.isRequired])).toEqual([
      ["month", "integer", true],
      ["customer", "text", false],
      ["mode", "choice", true],
      ["isDry", "choice", false],
      ["day", "date", false],
      ["rows", "json", false],
    ]);
    expect(form.fields[0]!.hint).toBe("Month · 1–12");
    expect(form.isOpen).toBe(false);
  });

  it("begins with the last params, then with the defaults", () => {
    expect(startOf(form, SCHEMA, { month: 3, rows: [1] })).toEqual({
      month: "3",
      customer: "acme",
      mode: '"fast"',
      isDry: "",
      day: "",
      rows: "[1]",
    });
  });

  it("gives values, leaves out what is empty, and marks what cannot be read", () => {
    const texts = { month: "3", customer: "", mode: "2", isDry: "true", day: "2026-01-31", rows: "[1," };
    const { params, problems } = readFields(form, texts);
    expect(params).toEqual({ month: 3, mode: 2, isDry: true, day: "2026-01-31" });
    expect([...problems.keys()]).toEqual(["rows"]);
  });

  it("is drawn from the last params where there is no schema", () => {
    const last = { n: 1.5, name: "x", deep: { a: 1 }, none: null };
    const like = formLike(last)!;
    expect(like.fields.map((field) => field.kind)).toEqual(["number", "text", "json", "json"]);
    expect(like.isOpen).toBe(true);
    expect(readFields(like, startOf(like, null, last)).params).toEqual(last);
    expect(formLike({})).toBeNull();
    expect(others(form, { month: 1, x: 2 })).toEqual({ x: 2 });
  });

  it("needs a list of params", () => {
    expect(formOf(null)).toBeNull();
    expect(formOf({ type: "object" })).toBeNull();
    expect(formOf({ properties: { a: true } })!.fields[0]!.kind).toBe("json");
  });
});

describe("a flow", () => {
  it("that failed once in a thousand is not at 100 %", () => {
    expect([percent(1), percent(0.999), percent(0.5), percent(0)]).toEqual(["100 %", "99 %", "50 %", "0 %"]);
    expect([1, 0.9, 0.5].map(toneOfRate)).toEqual(["good", "warn", "bad"]);
  });

  it("has bars as high as its runs were long, oldest first", () => {
    const run = (start_time: number | null, end_time: number | null) => ({ start_time, end_time }) as RunSummary;
    expect(bars([run(null, null), run(10, null), run(0, 5)], 20).map((bar) => bar.height)).toEqual([0.5, 1, 0]);
  });

  it("keeps what its form has no field for", () => {
    const retry = { max_attempts: 3, backoff_sec: 5, factor: 4, max_backoff_sec: 9, jitter: 0, on: ["error" as const] };
    const flow = { retry, params_schema: { type: "object" }, timeout_sec: 60 } as unknown as FlowDetails;
    const texts = { ...textsOf(flow), timeout_sec: "", max_attempts: "5", owner: " me " };
    expect(defaultsOf(texts, flow)).toEqual({
      description: null,
      owner: "me",
      priority: null,
      timeout_sec: null,
      start_within_sec: null,
      retry: { ...retry, max_attempts: 5 },
      params_schema: { type: "object" },
    });
    expect(defaultsOf({ ...texts, max_attempts: "" }, flow).retry).toBeNull();
    expect(() => defaultsOf({ ...texts, params_schema: "{" }, flow)).toThrow();
  });
});

describe("queues", () => {
  const queue = (tag: string, part: Partial<Queue>): Queue => ({
    tag,
    waiting: 0,
    running: 0,
    paused: null,
    oldest_wait_sec: 0,
    workers: 1,
    throughput_per_min: 0,
    ...part,
  });
  const worker = (worker_id: string, state: Worker["state"], slots: number | null) =>
    ({ worker_id, state, slots, tags: ["cpu"] }) as Worker;

  it("begin with those that need somebody", () => {
    const pause = { since: 1, reason: null, until: null };
    const found = servedQueues(
      [
        queue("a", {}),
        queue("b", { paused: pause }),
        queue("c", { workers: 0 }),
        queue("z", { workers: 0, waiting: 2 }),
      ],
      [],
    );
    expect(found.map((one) => [one.tag, stateOf(one), isUnserved(one)])).toEqual([
      ["z", "UNSERVED", true],
      ["b", "PAUSED", false],
      ["a", "SERVED", false],
      ["c", "UNUSED", false],
    ]);
  });

  it("have the slots of their live workers, and the names of lost ones", () => {
    const workers = [worker("a", "IDLE", 2), worker("b", "RUNNING", 3), worker("c", "DISCONNECTED", 9)];
    expect(servedQueues([queue("cpu", {})], workers)[0]).toMatchObject({ slots: 5, lost: ["c"] });
    expect(servedQueues([queue("cpu", {})], [worker("old", "IDLE", null)])[0]!.slots).toBeNull();
  });
});

describe("a limit", () => {
  const limit = {
    name: "calls",
    description: null,
    match: { flow: "imports", tag: null },
    key: null,
    max_running: 4,
    rate: { count: 10, per_sec: 1, burst: 20 },
    on_full: "queue",
    max_waiting: null,
    holders: 3,
  } as Limit;

  it("has words, and can be full where all runs share the places", () => {
    expect(allowance(limit)).toEqual(["4 at once", "10 every 1 s", "bursts of 20"]);
    expect(fullness(limit)).toBe(0.75);
    expect(fullness({ ...limit, key: "params.x" })).toBeNull();
  });

  it("comes out of its form as it went in", () => {
    const { name, holders, ...definition } = limit;
    expect(definitionOf(limitTexts(limit))).toEqual({ ...definition, match: { flow: "imports" } });
    expect(definitionOf(limitTexts(null))).toMatchObject({ match: {}, rate: null, max_running: null });
  });
});

describe("what the server refuses", () => {
  const refused = (detail: string) => new ApiError(422, "ERR-PYOCO-0002", "The request is not valid", detail);

  it("is sorted by fields", () => {
    const found = fieldProblems("params.month: greater than 12; see: it; key: no; max_running, rate: one of them");
    expect(Object.fromEntries(found)).toEqual({
      "params.month": "greater than 12",
      see: "it",
      key: "no",
      max_running: "one of them",
      rate: "one of them",
    });
  });

  it("stands at its field, or else below all of them", () => {
    const { at, rest } = placed(refused("params_schema.type: is none"), ["params_schema"]);
    expect([at("params_schema"), at("owner"), rest]).toEqual(["is none", undefined, null]);
    const error = refused("limit 'a b' must match");
    expect(placed(error, ["key"]).rest).toBe(error);
    expect(placed(new TypeError("away"), ["key"]).rest).toBeInstanceOf(TypeError);
  });
});
