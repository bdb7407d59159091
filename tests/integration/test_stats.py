"""Statistics on a real NATS: gateways as processes, killed and started again, agree on every ended run."""

import time
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.wiring import new_run_id, open_backend
from support.builders import a_snapshot
from support.gateways import GatewayProcess, gateways
from support.programs import Programs
from support.waiting import until

pytestmark = pytest.mark.slow
FLOWS = ("etl", "report")


async def end(config: NatsBackendConfig, count: int) -> list[str]:
    """Runs of two flows that waited for 1 s and took 5 s."""
    async with open_backend(config, "test") as backend:
        run_ids = [new_run_id() for _ in range(count)]
        for number, run_id in enumerate(run_ids):
            now = time.time()
            times: dict[str, Any] = {"submitted_at": now - 6, "start_time": now - 5, "end_time": now}
            run = a_snapshot(RunStatus.COMPLETED, run_id=run_id, flow_name=FLOWS[number % 2], **times)
            await backend.runs.create(run_id, run)
        return run_ids


async def stats(gateway: GatewayProcess, query: dict[str, Any]) -> dict[str, Any]:
    answer = await gateway.http.get("/stats", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def total(found: dict[str, Any]) -> int:
    return sum(point["count"] for one in found["series"] for point in one["points"])


async def test_gateways_agree_whatever_dies_or_is_deleted(
    config: NatsBackendConfig, programs: Programs
) -> None:
    query = {"by": "flow", "since": time.time() - 60, "until": time.time() + 3600}
    await end(config, 3)  # before there are statistics
    async with gateways(config, programs, 2) as (first, second):
        run_ids = await end(config, 20)
        await until(lambda: stats(first, query), lambda found: total(found) == 23)
        await first.kill()
        run_ids += await end(config, 10)
        await until(lambda: stats(second, query), lambda found: total(found) == 33)
        await first.start()
        for run_id in run_ids[-3:]:
            assert (await second.http.delete(f"/runs/{run_id}")).status_code == 200
        answer = await second.http.post("/bulk", json={"action": "delete", "filter": {"flow": "etl"}})
        bulk = f"/bulk/{answer.json()['id']}"
        ended = await until(lambda: second.http.get(bulk), lambda found: found.json()["status"] != "RUNNING")
        assert (ended.json()["status"], ended.json()["failed"]) == ("COMPLETED", 0)
        await end(config, 1)
        found = await until(lambda: stats(first, query), lambda found: total(found) == 34)
        assert await stats(second, query) == found
        hours = {**query, "bucket": "hour"}
        by_hour = await until(lambda: stats(first, hours), lambda found: total(found) == 34)
        assert await stats(second, hours) == by_hour
        (point, *_) = found["series"][0]["points"]
        assert point["duration"] == pytest.approx({"p50": 5, "p95": 5, "p99": 5}, rel=0.04)
        assert point["wait"] == pytest.approx({"p50": 1, "p95": 1, "p99": 1}, rel=0.04)
