import { describe, expect, it } from "vitest";
import type { Worker } from "../src/api/client";
import { shownWorkers } from "../src/fleet/workers";

const DAY = 24 * 3600;
const NOW = 10 * DAY;

function worker(worker_id: string, state: Worker["state"], silentSec = 0): Worker {
  return { worker_id, state, last_heartbeat_at: NOW - silentSec } as Worker;
}

const names = (workers: readonly Worker[]) => workers.map((one) => one.worker_id);

describe("the workers on the page", () => {
  const alive = [worker("a", "IDLE"), worker("b", "RUNNING")];
  const lost = [worker("z", "DISCONNECTED", 60), worker("old", "DISCONNECTED", 2 * DAY)];

  it("begin with those that were lost lately", () => {
    expect(names(shownWorkers(alive, lost, false, NOW))).toEqual(["z", "a", "b"]);
  });

  it("include stopped and long lost ones when asked for", () => {
    const others = [...lost, worker("s", "STOPPED_GRACEFUL", DAY), ...alive];
    expect(names(shownWorkers(alive, others, true, NOW))).toEqual(["old", "z", "a", "b", "s"]);
  });

  it("are each there once, as the newer answer has them", () => {
    const changed = [worker("a", "DISCONNECTED", 5)];
    expect(shownWorkers([worker("a", "IDLE")], changed, false, NOW)).toEqual([worker("a", "IDLE")]);
  });
});
