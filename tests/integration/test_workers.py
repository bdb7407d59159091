"""REQ-0015, REQ-0022: the registry over a worker's life; and the clients of the package."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server import PyocoNatsClient, PyocoNatsWorker
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.fleet import WorkerRecord, WorkerState
from pyoco_server.errors import InvalidRequest, NatsUnavailable, RunNotFound
from pyoco_server.wiring import EmbeddedNats, JetStreamBackend, open_backend
from support import flows
from support.builders import RUN_ID, a_job, a_snapshot, a_worker
from support.gateway import gateway
from support.nats_server import free_port, jobs_waiting, raw_nats, unique_config
from support.waiting import PATIENCE_SEC, until
from support.workers import entered, worker


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[JetStreamBackend]:
    async with open_backend(config, "test") as opened:
        yield opened


async def record_of(backend: JetStreamBackend, worker_id: str = "worker-a") -> WorkerRecord:
    stored = await backend.workers.get(worker_id)
    assert stored is not None
    return stored.value


async def submit(backend: JetStreamBackend, flow_name: str) -> str:
    job = a_job(flow_name=flow_name)
    revision = await backend.runs.create(job.run_id, a_snapshot(run_id=job.run_id, flow_name=flow_name))
    await backend.queue.publish(job, revision)
    return job.run_id


async def test_a_worker_is_idle_busy_idle_and_stopped(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    gate = flows.Gate()
    async with worker(config, {"gated": gate.flow}) as instance:
        first = await record_of(backend)
        assert (first.state, first.instance_id, first.tags) == ("IDLE", instance.instance_id, ("default",))
        run_id = await submit(backend, "gated")
        handling = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
        await entered(gate.entered)
        busy = await until(lambda: record_of(backend), lambda record: record.state == "RUNNING")
        assert busy.current_run_id == run_id
        gate.open()
        await handling
        idle = await until(lambda: record_of(backend), lambda record: record.state == "IDLE")
        assert (idle.current_run_id, idle.last_run_id, idle.last_run_status) == (None, run_id, "COMPLETED")
    stopped = await record_of(backend)
    assert (stopped.state, stopped.stop_reason) == ("STOPPED_GRACEFUL", "graceful_shutdown")
    assert stopped.stopped_at is not None
    assert stopped.last_run_id == run_id


async def test_a_worker_that_has_nothing_to_do_shows_that_it_is_alive(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    async with worker(config, {}):
        first = await record_of(backend)
        await until(lambda: record_of(backend), lambda record: record.last_seen_at > first.last_seen_at)


async def test_a_hidden_worker_stays_hidden_while_it_works_stops_and_starts_again(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    """REQ-0022"""
    async with worker(config, {}) as first:
        # Others write too: the heartbeat may be faster than we are.
        while True:
            stored = await backend.workers.get("worker-a")
            assert stored is not None
            try:
                hidden_at = await backend.workers.update(
                    "worker-a", replace(stored.value, hidden=True), stored.revision
                )
            except Exception:  # noqa: BLE001, S112
                continue
            break

        async def revision() -> int:
            found = await backend.workers.get("worker-a")
            assert found is not None
            return found.revision

        await until(revision, lambda current: current > hidden_at)
        assert (await record_of(backend)).hidden
    assert (await record_of(backend)).hidden
    async with worker(config, {}) as second:
        record = await record_of(backend)
    assert (record.hidden, record.state) == (True, WorkerState.IDLE)
    assert record.instance_id == second.instance_id != first.instance_id


async def test_a_worker_whose_record_somebody_removed_registers_again(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    async with worker(config, {}):
        await backend.workers.remove("worker-a", None)
        await until(lambda: backend.workers.get("worker-a"), lambda stored: stored is not None)


async def test_a_job_that_arrived_but_was_not_started_goes_back_when_the_worker_closes(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    async with worker(config, {"chain": flows.chain}, "leaving") as leaving:
        assert await leaving.run_once(0.05) is None  # its request for a job stays open
        run_id = await submit(backend, "chain")
        await until(lambda: _delivered(config), lambda count: count == 1)
    async with worker(config, {"chain": flows.chain}, "staying") as staying:
        async with asyncio.timeout(5):  # far less than the AckWait of 30 s
            assert await staying.run_once(PATIENCE_SEC) == run_id
    assert await jobs_waiting(config) == 0


async def _delivered(config: NatsBackendConfig) -> int:
    async with raw_nats(config.nats_url) as client:
        info = await client.jetstream().consumer_info(config.work_stream, "pyoco_workers_default")
        count: int = info.num_ack_pending
        return count


async def test_a_worker_that_is_asked_to_stop_finishes_its_run(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    gate = flows.Gate()
    run_ids = [await submit(backend, "gated") for _ in range(2)]
    async with worker(config, {"gated": gate.flow}) as instance:
        working = asyncio.ensure_future(instance.run())
        await entered(gate.entered)
        instance.stop()
        gate.open()
        async with asyncio.timeout(PATIENCE_SEC):
            await working
    states = [stored.value.status for run_id in run_ids if (stored := await backend.runs.get(run_id))]
    assert states == ["COMPLETED", "PENDING"]


async def test_a_worker_without_nats_says_so() -> None:
    config = unique_config(f"nats://user:s3cret@127.0.0.1:{free_port()}")
    with pytest.raises(NatsUnavailable, match="no NATS server responds at") as raised:
        await PyocoNatsWorker.connect(config=config, flow_resolver=lambda _: None)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "named"), [({"worker_id": "a b"}, "worker_id 'a b'"), ({"tags": ["a.b"]}, "tag 'a.b'")]
)
async def test_a_worker_with_unusable_names_does_not_start(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        await PyocoNatsWorker.connect(
            config=unique_config("nats://nowhere"), flow_resolver=lambda _: None, **options
        )


async def test_a_worker_can_close_while_nats_is_away(own_nats: EmbeddedNats) -> None:
    async with asyncio.timeout(PATIENCE_SEC), worker(unique_config(own_nats.url), {}):
        own_nats.stop()


async def test_programs_beside_the_workers_submit_and_read_over_nats(config: NatsBackendConfig) -> None:
    client = await PyocoNatsClient.connect(config)
    async with worker(config, {"chain": flows.chain}) as instance:
        run_id = await client.submit_run("chain", {"n": 2})
        assert await instance.run_once(PATIENCE_SEC) == run_id
    run = await client.get_run(run_id)
    assert (run["status"], run["result"], run["tag"]) == ("COMPLETED", {"total": 5}, "default")
    for unknown in (RUN_ID, "nonsense.*"):
        with pytest.raises(RunNotFound):
            await client.get_run(unknown)
    with pytest.raises(InvalidRequest, match=r"tag 'a\.b'"):
        await client.submit_run("chain", tag="a.b")
    await client.close()


@pytest.mark.parametrize("minutes_off", [-5, 5])
async def test_f9_a_worker_whose_clock_is_wrong_is_shown_as_alive(
    config: NatsBackendConfig, backend: JetStreamBackend, minutes_off: int
) -> None:
    """F9: its record is as old as the store says, whatever time the worker has."""
    seen = time.time() + 60 * minutes_off
    async with gateway(config) as client:
        await backend.workers.create("off", a_worker(worker_id="off", last_seen_at=seen))
        answer = await until(
            lambda: client.get("/workers", params={"scope": "all"}),
            lambda answer: answer.is_success and bool(answer.json()),
        )
    assert [record["state"] for record in answer.json()] == ["IDLE"]
