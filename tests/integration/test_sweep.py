"""REQ-0003, REQ-0012, REQ-0024: what a gateway does about runs that nobody carries on, on a real server."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.changes import Claim
from pyoco_server.domain.runs.jobs import pending
from pyoco_server.domain.runs.model import Owner, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.http_api import create_app
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.services.sweep import LOST, PENDING_LOOKS
from pyoco_server.wiring import open_backend
from support import flows
from support.builders import NOW, a_job
from support.gateway import running
from support.installation import Lab
from support.nats_server import jobs_waiting, raw_nats
from support.waiting import PATIENCE_SEC, until
from support.workers import worker

Labs = Callable[..., Awaitable[Lab]]

DEAD = Owner("dead", "instance", 1)
JOB_BYTES = 250 * 1024
GRACE_SEC = 2.0


@asynccontextmanager
async def opened(config: NatsBackendConfig) -> AsyncIterator[tuple[httpx2.AsyncClient, Any]]:
    """A gateway, as its clients see it, and its parts."""
    app = create_app(config)
    async with running(app) as client:
        await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 200)
        yield client, app.state.gateway.levels.runs


async def queued(config: NatsBackendConfig, count: int, **params: Any) -> list[str]:
    async with open_backend(config, "test") as backend:

        async def one() -> str:
            job = a_job(params=params)
            await backend.queue.publish(job, await backend.runs.create(job.run_id, pending(job)))
            return job.run_id

        tens = [await asyncio.gather(*(one() for _ in range(10))) for _ in range(count // 10)]
        return [run_id for ten in tens for run_id in ten]


async def claimed_by_a_dead_worker(config: NatsBackendConfig, run_ids: list[str]) -> None:
    async with open_backend(config, "test") as backend:
        for run_id in run_ids:
            await change_run(backend.runs, run_id, Claim(DEAD), lambda: NOW)


async def are_all(runs: Any, status: RunStatus, count: int) -> None:
    async def counted() -> dict[RunStatus, int]:
        found: dict[RunStatus, int] = runs.index.counts(None)
        return found

    await until(counted, lambda found: found[status] == count)


async def test_d01_a_queue_of_large_jobs_is_left_alone(config: NatsBackendConfig) -> None:
    """D01: 300 jobs of 250 KiB are more than a server puts into one batch; 38 of the runs were failed."""
    await queued(config, 300, x="y" * 249_000)
    async with opened(config) as (_, runs):
        await are_all(runs, RunStatus.PENDING, 300)
        for _ in range(PENDING_LOOKS + 3):
            await until(partial(swept, runs))
        assert await jobs_waiting(config) == 300
        await are_all(runs, RunStatus.PENDING, 300)


async def swept(runs: Any) -> bool:
    """Where 75 MB are read, a busy NATS may be too slow for a request; then a gateway sweeps again later."""
    try:
        await runs.sweep.sweep()
    except NatsUnavailable:
        return False
    return True


def looks(runs: Any) -> int:
    """How often its own sweep has found the runs unchanged."""
    return max((seen.looks_before for seen in runs.sweep._seen.values()), default=0)


@pytest.mark.long
async def test_d01_large_jobs_that_no_worker_takes_stay_pending(config: NatsBackendConfig) -> None:
    """D01 at full size: three minutes, in which the gateway sweeps as often as it does by itself."""
    async with opened(config) as (client, runs):
        body = {"flow_name": "f", "params": {"x": "y" * JOB_BYTES}}
        for _ in range(300):
            assert (await client.post("/runs", json=body)).status_code == 200
        await are_all(runs, RunStatus.PENDING, 300)
        while looks(runs) < PENDING_LOOKS + 1:
            assert runs.index.counts(None)[RunStatus.PENDING] == 300
            await asyncio.sleep(0.1)
        assert await jobs_waiting(config) == 300


async def cancelled(client: httpx2.AsyncClient, run_ids: list[str]) -> None:
    for run_id in run_ids:
        answer = await client.post(f"/runs/{run_id}/cancel")
        assert answer.json()["status"] == "CANCELLING"


async def test_d05_cancelled_runs_of_a_dead_worker_end_without_another(config: NatsBackendConfig) -> None:
    """D05, F19: CANCELLED within grace + 2 s, 200 of 200; their jobs wait for a worker that drops them."""
    config = replace(config, cancel_grace_period_sec=GRACE_SEC)
    run_ids = await queued(config, 200)
    await claimed_by_a_dead_worker(config, run_ids)
    async with opened(config) as (client, runs), opened(config):
        await cancelled(client, run_ids)
        await are_all(runs, RunStatus.CANCELLED, 200)
        ended = [(await client.get(f"/runs/{run_id}")).json() for run_id in run_ids]
    assert slowest_cancel(ended) <= GRACE_SEC + 2.0


def slowest_cancel(runs: list[dict[str, Any]]) -> float:
    slowest: float = max(run["end_time"] - run["cancel_requested_at"] for run in runs)
    return slowest


@pytest.mark.parametrize("concurrency", [pytest.param(200, marks=pytest.mark.long), 4])
async def test_d05_runs_whose_only_worker_is_killed_are_cancelled(labs: Labs, concurrency: int) -> None:
    """D05 at full size: killed while it runs all of them, or a few with the others on the queue."""
    lab = await labs(cancel_grace_period_sec=GRACE_SEC)
    async with lab.worker(concurrency=concurrency) as killed:
        run_ids = [await lab.submit("stuck") for _ in range(200)]

        async def running_now() -> int:
            return len((await lab.http.get("/runs?status=RUNNING&limit=200")).json())

        await until(running_now, lambda count: count == concurrency)
        await asyncio.to_thread(killed.ends_after, signal.SIGKILL)
    await cancelled(lab.http, run_ids)
    runs = await lab.all_ended(run_ids)
    assert [run["status"] for run in runs] == ["CANCELLED"] * 200
    assert slowest_cancel(runs) <= GRACE_SEC + 2.0


@pytest.mark.parametrize("read_model", ["", "index.db"])
async def test_d05_a_gateway_ends_what_was_cancelled_at_another(
    config: NatsBackendConfig, tmp_path: Path, read_model: str
) -> None:
    """D05: the one that accepted the cancel is gone; also when the next one begins with a stored index."""
    path = str(tmp_path / read_model) if read_model else ""
    config = replace(config, cancel_grace_period_sec=1000.0, read_model_path=path)
    (run_id, *_) = await queued(config, 10)
    await claimed_by_a_dead_worker(config, [run_id])
    async with opened(config) as (client, runs):
        await are_all(runs, RunStatus.RUNNING, 1)
        await cancelled(client, [run_id])
        await are_all(runs, RunStatus.CANCELLING, 1)
    async with opened(replace(config, cancel_grace_period_sec=0.0)) as (client, runs):
        await are_all(runs, RunStatus.CANCELLED, 1)


async def test_d56_runs_whose_queue_was_deleted_are_ended(config: NatsBackendConfig) -> None:
    """D56: their jobs are gone with it; the runs stayed PENDING, and nobody could submit any more."""
    (run_id, *_) = await queued(config, 10)
    async with opened(config) as (client, runs):
        await are_all(runs, RunStatus.PENDING, 10)
        async with raw_nats(config.nats_url) as nats:
            await nats.jetstream().delete_stream(config.work_stream)

        async def accepted() -> int:
            return (await client.post("/runs", json={"flow_name": "f"})).status_code

        await until(accepted, lambda code: code == 200)
        await are_all(runs, RunStatus.PENDING, 11)
        for _ in range(PENDING_LOOKS + 1):
            await runs.sweep.sweep()
        await are_all(runs, RunStatus.FAILED, 10)
        await are_all(runs, RunStatus.PENDING, 1)
        assert (await client.get(f"/runs/{run_id}")).json()["error"] == LOST


async def test_d56_a_gateway_whose_writes_are_refused_is_not_ready(config: NatsBackendConfig) -> None:
    """D56: the disk was full, every submit was answered 503, and /ready said 200."""
    async with opened(config) as (client, _), raw_nats(config.nats_url) as nats:

        async def storage() -> tuple[int, str]:
            answer = await client.get("/ready")
            return answer.status_code, answer.json()["storage"]

        assert await storage() == (200, "ok")
        stream = nats.jetstream()
        bucket = (await stream.stream_info(f"KV_{config.leases_kv_bucket}")).config
        await stream.update_stream(bucket, max_msg_size=1)
        await until(storage, lambda found: found == (503, "unavailable"))
        await stream.update_stream(bucket, max_msg_size=-1)
        await until(storage, lambda found: found == (200, "ok"))


async def test_d56_workers_go_on_when_their_queue_was_deleted(config: NatsBackendConfig) -> None:
    """D56, F23: the streams are made again, and so are the consumers."""
    flow_names = {"chain": flows.chain}
    async with opened(config) as (client, _), worker(config, flow_names) as instance:
        async with raw_nats(config.nats_url) as nats:
            await nats.jetstream().delete_stream(config.work_stream)

        async def accepted() -> int:
            return (await client.post("/runs", json={"flow_name": "chain"})).status_code

        await until(accepted, lambda code: code == 200)
        assert await instance.run_once(PATIENCE_SEC) is not None


async def test_d57_the_retention_of_the_gateway_holds_for_runs_that_workers_end(
    config: NatsBackendConfig,
) -> None:
    """D57: a worker without the setting ended the runs, and nothing expired."""
    flow_names = {"chain": flows.chain}
    kept = replace(config, runs_retention_sec=1.0)
    async with opened(kept) as (client, _), worker(config, flow_names) as instance:
        run_id = (await client.post("/runs", json={"flow_name": "chain"})).json()["run_id"]
        assert await instance.run_once(PATIENCE_SEC) == run_id
        await until(lambda: client.get(f"/runs/{run_id}"), lambda answer: answer.status_code == 404)
