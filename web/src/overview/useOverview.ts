import { get, type RunSummary, type Schemas } from "../api/client";
import { now } from "../app/clock";
import { servedQueues } from "../fleet/queues";
import { shownWorkers } from "../fleet/workers";
import { usePolling } from "../live/usePolling";
import { failuresByFlow, firstBar, RANGES, type RangeName } from "./series";

const NOW_MS = 3000;
const SERIES_MS = 10_000;
const FLOWS = 6;
const STRIP = 20;
const FAILED = 200;
const HOUR_SEC = 3600;

/** Queues and workers as they are. */
export function useFleet() {
  return usePolling(
    async (signal) => {
      const query = { limit: 500, stale: "ok" as const };
      const [queues, alive, lost, deliveries] = await Promise.all([
        get("/queues", { query: { stale: "ok" }, signal }),
        get("/workers", { query: { ...query, scope: "active" }, signal }),
        get("/workers", { query: { ...query, state: "DISCONNECTED" }, signal }),
        get("/deliveries", { query: { status: "FAILED", limit: 50 }, signal }),
      ]);
      const workers = shownWorkers(alive, lost, false, now.value);
      const undelivered = deliveries.items.filter((one) => one.created_at > now.value - 24 * HOUR_SEC);
      return { queues: servedQueues(queues.items, workers), workers, undelivered };
    },
    NOW_MS,
    "",
  );
}

async function runs(query: object, signal: AbortSignal): Promise<RunSummary[]> {
  const page = (await get("/runs", { query: { ...query, stale: "ok" }, signal })) as Schemas["RunPage"];
  return page.items as RunSummary[];
}

/** What ended within the range, and as long before it, to compare with. */
export function useSeries(name: RangeName) {
  return usePolling(
    async (signal) => {
      const range = RANGES[name];
      const from = firstBar(range, now.value);
      const { bucket } = range;
      const hour = { by: "flow" as const, bucket: "minute" as const, since: String(now.value - HOUR_SEC) };
      const flow = { by: "flow" as const, bucket, since: String(from) };
      const [ended, flows, failedFlows, tags, hourly, hourlyFailed, failed] = await Promise.all([
        get("/stats", { query: { by: "status", bucket, since: String(from - range.sec) }, signal }),
        get("/stats", { query: flow, signal }),
        get("/stats", { query: { ...flow, status: "FAILED" }, signal }),
        get("/stats", { query: { ...flow, by: "tag" }, signal }),
        get("/stats", { query: hour, signal }),
        get("/stats", { query: { ...hour, status: "FAILED" }, signal }),
        runs({ status: "FAILED", updated_after: from, limit: FAILED }, signal),
      ]);
      const byFlow = failuresByFlow(flows, failedFlows, from);
      const strips = await Promise.all(
        byFlow.slice(0, FLOWS).map(async (one) => ({
          ...one,
          last: (await runs({ flow: one.flow, updated_after: 0, limit: STRIP }, signal)).reverse(),
        })),
      );
      return { name, from, ended, tags, strips, failed, failing: failuresByFlow(hourly, hourlyFailed, 0) };
    },
    SERIES_MS,
    name,
  );
}
