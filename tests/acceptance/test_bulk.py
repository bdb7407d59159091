"""Bulk operations on real gateways, the one that carries it out killed in the middle."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.wiring import EmbeddedNats
from support.gateways import GatewayProcess, gateways
from support.nats_server import delete_streams_of, unique_config
from support.programs import Programs
from support.waiting import until


@pytest.fixture
async def config(nats_server: EmbeddedNats) -> AsyncIterator[NatsBackendConfig]:
    settings = unique_config(nats_server.url)
    yield settings
    await delete_streams_of(settings)


async def submit(gateway: GatewayProcess, count: int) -> None:
    for start in range(0, count, 1000):
        runs = [{"flow_name": "etl", "params": {"n": n}} for n in range(start, min(count, start + 1000))]
        answer = await gateway.http.post("/runs/batch", json={"runs": runs})
        assert answer.json()["accepted"] == len(runs), answer.text


async def operation_at(gateway: GatewayProcess, operation_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.http.get(f"/bulk/{operation_id}")).json()
    assert found["done"] + found["failed"] + found["left"] == found["total"]
    return found


async def by_status(gateway: GatewayProcess) -> dict[str, float]:
    lines = (await gateway.http.get("/metrics")).text.splitlines()
    counted = [line for line in lines if line.startswith("pyoco_runs_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in counted}


async def start(gateway: GatewayProcess, **body: Any) -> dict[str, Any]:
    """A gateway that got no processor time for seconds answers 503, and a client repeats its request."""
    answer = await until(
        lambda: gateway.http.post("/bulk", json=body), lambda found: found.status_code != 503
    )
    assert answer.status_code == 202, answer.text
    operation: dict[str, Any] = answer.json()
    return operation


async def audited(gateway: GatewayProcess) -> list[str]:
    return [entry["action"] for entry in (await gateway.http.get("/audit?limit=200")).json()["items"]]


async def cancel_with_a_kill(
    config: NatsBackendConfig, programs: Programs, count: int, patience: float
) -> None:
    async with gateways(config, programs, 2) as (first, second):
        await submit(second, count)
        await until(lambda: by_status(first), lambda found: found["PENDING"] == count)
        began = time.monotonic()
        operation = await start(first, action="cancel", filter={"flow": "etl"})
        assert operation["total"] == count
        await until(lambda: operation_at(second, operation["id"]), lambda found: found["done"] > 0)
        await first.kill()
        deadline = time.monotonic() + patience
        while (found := await operation_at(second, operation["id"]))["status"] == "RUNNING":
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.2)
        print(f"{count} cancels with a kill: {time.monotonic() - began:.1f} s")  # noqa: T201
        assert (found["status"], found["done"], found["failed"]) == ("COMPLETED", count, 0), found["errors"]
        await until(lambda: by_status(second), lambda now: now["CANCELLED"] == count)
        assert await audited(second) == ["bulk.start"]


async def test_an_operation_goes_on_when_its_gateway_is_killed(
    config: NatsBackendConfig, programs: Programs
) -> None:
    await cancel_with_a_kill(config, programs, 600, 60)


@pytest.mark.long
async def test_fifty_thousand_runs_are_cancelled_although_the_gateway_is_killed(
    config: NatsBackendConfig, programs: Programs
) -> None:
    await cancel_with_a_kill(config, programs, 50_000, 600)


@pytest.mark.slow
async def test_a_repeated_batch_of_retries_starts_no_run_twice(
    config: NatsBackendConfig, programs: Programs
) -> None:
    count = 300
    async with gateways(config, programs, 2) as (first, second):
        await submit(second, count)
        await start(second, action="cancel", all=True)
        await until(lambda: by_status(first), lambda found: found["CANCELLED"] == count)
        operation = await start(first, action="retry", filter={"status": "CANCELLED"})
        await until(lambda: operation_at(second, operation["id"]), lambda found: found["done"] > 0)
        await first.kill()
        found = await until(
            lambda: operation_at(second, operation["id"]), lambda now: now["status"] == "COMPLETED"
        )
        assert (found["done"], found["failed"]) == (count, 0), found["errors"]
        await until(lambda: by_status(second), lambda now: now["PENDING"] == count)
        new = [run async for run in every_run(second.http, status="PENDING")]
        assert len({run["run_id"] for run in new}) == count
        deleted = await start(second, action="delete", filter={"status": "CANCELLED"})
        await until(lambda: operation_at(second, deleted["id"]), lambda now: now["status"] == "COMPLETED")
        await until(lambda: by_status(second), lambda now: now["CANCELLED"] == 0)


async def every_run(http: httpx2.AsyncClient, **query: Any) -> AsyncIterator[dict[str, Any]]:
    cursor = None
    while True:
        page = {"limit": 200, "updated_after": 0, **query, **({} if cursor is None else {"cursor": cursor})}
        found = (await http.get("/runs", params=page)).json()
        for run in found["items"]:
            yield run
        cursor = found["next_cursor"]
        if cursor is None:
            return
