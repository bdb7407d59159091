import { get } from "../api/client";
import { usePolling } from "../live/usePolling";
import type { Names } from "./query";

const NAMES_MS = 30_000;
const NONE: Names = { flow: [], tag: [], worker: [] };

/** What a query may be about, and how long the runs of each flow usually take. */
export function useNames(): { names: Names; p50: ReadonlyMap<string, number> } {
  const { value } = usePolling(
    async (signal) => {
      const stale = "ok" as const;
      const [flows, queues, workers] = await Promise.all([
        get("/flows", { query: { limit: 200, stale }, signal }),
        get("/queues", { query: { stale }, signal }),
        get("/workers", { query: { scope: "active", limit: 200, stale }, signal }),
      ]);
      const names: Names = {
        flow: flows.items.map((one) => one.name),
        tag: queues.items.map((one) => one.tag),
        worker: workers.map((one) => one.worker_id),
      };
      return { names, p50: new Map(flows.items.flatMap(({ name, p50_sec }) => (p50_sec ? [[name, p50_sec]] : []))) };
    },
    NAMES_MS,
    "",
  );
  return value ?? { names: NONE, p50: new Map() };
}
