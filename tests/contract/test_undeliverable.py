"""REQ-0012: a job that no delivery brings to its end ends its run, and leaves a dead letter."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.changes import Claim, RequestCancel
from pyoco_server.domain.runs.jobs import pending
from pyoco_server.domain.runs.model import Owner, RunStatus
from pyoco_server.http_api.gateway import OpenBackend
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.runs import GatewayBackend
from pyoco_server.usecases.ports.stores import Change, FeedPosition
from pyoco_server.usecases.services.sweep import EndMaxDelivered, SweepRuns
from pyoco_server.wiring import open_gateway_backend
from pyoco_server.wiring.gateway_backend import JetStreamGatewayBackend
from support.builders import NOW, RUN_ID, a_job
from support.gateway import gateway
from support.nats_server import (
    dead_letters,
    delete_streams_of,
    jobs_waiting,
    messages_in,
    patient_timeout_sec,
    put_message,
    raw_nats,
    unique_config,
)
from support.waiting import until

DELIVERIES = 2
QUICK: dict[str, Any] = {
    "consumer_ack_wait_sec": 0.3,
    "ack_progress_interval_sec": 0.1,
    "consumer_max_deliver": DELIVERIES,
}


def clock() -> float:
    return NOW


@pytest.fixture(params=["memory", "jetstream"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[GatewayBackend]:
    on_jetstream = request.param == "jetstream"
    url = request.getfixturevalue("nats_server").url if on_jetstream else "nats://nowhere"
    config = unique_config(url, **QUICK)
    opened: Callable[[NatsBackendConfig], Any] = (
        open_gateway_backend if on_jetstream else open_memory_gateway_backend
    )
    async with opened(config) as found:
        yield found
    if on_jetstream:
        await delete_streams_of(config)


@asynccontextmanager
async def ending(backend: GatewayBackend) -> AsyncIterator[None]:
    use_case = EndMaxDelivered(
        backend.undeliverable, backend.runs, backend.queue, backend.dead_letters, clock
    )
    running = asyncio.ensure_future(use_case.run())
    yield
    running.cancel()
    await asyncio.wait({running})


async def submitted(backend: GatewayBackend) -> str:
    job = a_job()
    revision = await backend.runs.create(job.run_id, pending(job))
    await backend.queue.publish(job, revision)
    return job.run_id


async def taken_until_nobody_may(backend: GatewayBackend) -> None:
    source = await backend.sources.open(("default",))
    delivered = 0
    while delivered < DELIVERIES:  # one may pass unseen while this process gets no processor
        delivery = await source.next(5.0)
        assert delivery is not None
        assert delivery.num_delivered > delivered
        delivered = delivery.num_delivered
    assert await source.next(0.6) is None  # the server gives up on a job when a worker asks for the next
    await source.close()


async def status_of(backend: GatewayBackend, run_id: str) -> RunStatus:
    stored = await backend.runs.get(run_id)
    assert stored is not None
    return stored.value.status


async def test_the_run_of_a_job_that_was_never_acknowledged_fails(backend: GatewayBackend) -> None:
    run_id = await submitted(backend)
    async with ending(backend):
        await taken_until_nobody_may(backend)
        await until(backend.dead_letters.count, lambda count: count == 1)
        await until(backend.queue.run_ids, lambda found: found == set())
    stored = await backend.runs.get(run_id)
    assert stored is not None
    assert stored.value.status is RunStatus.FAILED
    assert (stored.value.error or "").startswith("max_deliver: the job was delivered 2 times")


async def test_a_run_that_its_last_owner_left_running_fails(backend: GatewayBackend) -> None:
    run_id = await submitted(backend)
    await change_run(backend.runs, run_id, Claim(Owner("w", "i", DELIVERIES)), clock)
    async with ending(backend):
        await taken_until_nobody_may(backend)
        await until(lambda: status_of(backend, run_id), lambda status: status is RunStatus.FAILED)


async def test_a_cancelled_run_ends_cancelled_all_the_same(backend: GatewayBackend) -> None:
    run_id = await submitted(backend)
    await change_run(backend.runs, run_id, Claim(Owner("w", "i", 1)), clock)
    await change_run(backend.runs, run_id, RequestCancel(requested_by="test"), clock)
    async with ending(backend):
        await taken_until_nobody_may(backend)
        await until(lambda: status_of(backend, run_id), lambda status: status is RunStatus.CANCELLED)


async def test_an_advisory_of_a_time_without_a_gateway_is_not_missed(backend: GatewayBackend) -> None:
    run_id = await submitted(backend)
    await taken_until_nobody_may(backend)
    async with ending(backend):
        await until(lambda: status_of(backend, run_id), lambda status: status is RunStatus.FAILED)


async def test_a_job_whose_run_has_ended_is_removed_without_a_dead_letter(backend: GatewayBackend) -> None:
    """The run was completed, and its acknowledgement was lost."""
    run_id = await submitted(backend)
    stored = await backend.runs.get(run_id)
    assert stored is not None
    done = replace(stored.value, status=RunStatus.COMPLETED)
    await backend.runs.update(run_id, done, stored.revision)
    async with ending(backend):
        await taken_until_nobody_may(backend)
        await until(backend.queue.run_ids, lambda found: found == set())
    assert await status_of(backend, run_id) is RunStatus.COMPLETED
    assert await backend.dead_letters.count() == 0


async def test_whatever_is_repeated_after_a_crash_has_the_same_end(backend: GatewayBackend) -> None:
    run_id = await submitted(backend)
    await taken_until_nobody_may(backend)
    use_case = EndMaxDelivered(
        backend.undeliverable, backend.runs, backend.queue, backend.dead_letters, clock
    )
    async for job in backend.undeliverable.follow():
        message = await job.read()
        assert message is not None
        await use_case._end_run(message, job)  # and then the gateway dies
        await use_case.end(job)
        assert await job.read() is None
        break
    assert await status_of(backend, run_id) is RunStatus.FAILED
    assert await backend.dead_letters.count() == 2


# With the gateway as it is, on JetStream


@pytest.fixture
async def gateways(nats_server: Any) -> AsyncIterator[tuple[NatsBackendConfig, OpenBackend]]:
    """Two gateways, as they stand side by side."""
    config = unique_config(nats_server.url, **QUICK)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(gateway(config))
        yield config, lambda: open_gateway_backend(config)
    await delete_streams_of(config)


async def never_acknowledged(config: NatsBackendConfig) -> None:
    async with open_gateway_backend(config) as opened:
        await taken_until_nobody_may(opened)


async def test_gateways_end_what_cannot_be_read_and_remove_it(
    gateways: tuple[NatsBackendConfig, OpenBackend],
) -> None:
    config, _ = gateways
    await put_message(config, b"\xff no job")
    await never_acknowledged(config)
    await until(lambda: jobs_waiting(config), lambda count: count == 0)
    ((subject, letter),) = await dead_letters(config)
    assert subject == f"{config.dlq_subject_prefix}.default"
    assert (letter["reason"], letter["num_delivered"]) == ("max_deliver", DELIVERIES)
    assert "no job" in letter["payload"]
    assert letter["subject"] == f"{config.work_subject_prefix}.default"


async def test_gateways_end_the_run_of_a_job_that_names_it_and_is_unreadable_otherwise(
    gateways: tuple[NatsBackendConfig, OpenBackend],
) -> None:
    config, open_backend = gateways
    async with open_backend() as backend:
        await backend.runs.create(RUN_ID, pending(a_job(run_id=RUN_ID)))
        await put_message(config, b'{"run_id": "%s", "params": "secret"}' % RUN_ID.encode())
        await taken_until_nobody_may(backend)
        await until(lambda: status_of(backend, RUN_ID), lambda status: status is RunStatus.FAILED)
    await until(lambda: jobs_waiting(config), lambda count: count == 0)


async def test_a_deleted_advisory_stream_is_made_again(
    gateways: tuple[NatsBackendConfig, OpenBackend],
) -> None:
    config, open_backend = gateways
    async with raw_nats(config.nats_url) as client:
        await client.jetstream().delete_stream(config.advisories_stream)

    async def is_there() -> bool:
        try:
            await messages_in(config, config.advisories_stream)
        except Exception:  # noqa: BLE001
            return False
        return True

    await until(is_there)
    async with open_backend() as backend:
        run_id = await submitted(backend)
        await taken_until_nobody_may(backend)
        await until(lambda: status_of(backend, run_id), lambda status: status is RunStatus.FAILED)


# Found by the sweep


async def lose_advisories(backend: GatewayBackend) -> None:
    """As a stream does that is full, absent or without a leader."""
    if isinstance(backend, MemoryGatewayBackend):
        backend.queue._advisories.clear()
        return
    assert isinstance(backend, JetStreamGatewayBackend)
    await backend.connection.api(f"STREAM.PURGE.{backend.undeliverable._config.advisories_stream}")


def sweeping(backend: GatewayBackend) -> SweepRuns:
    end = EndMaxDelivered(backend.undeliverable, backend.runs, backend.queue, backend.dead_letters, clock)
    return SweepRuns(backend.runs, backend.run_index, backend.queue, end, clock)


async def known_to_the_index(backend: GatewayBackend, run_id: str) -> None:
    stored = await backend.runs.get(run_id)
    assert stored is not None
    change = Change(run_id, stored.revision, stored.value, None)
    backend.run_index.apply([change], FeedPosition("test", stored.revision))


async def test_d04_a_job_whose_advisory_was_lost_is_found(backend: GatewayBackend) -> None:
    """D04: the advisory is sent once; without it the run was RUNNING for ever."""
    run_id = await submitted(backend)
    await change_run(backend.runs, run_id, Claim(Owner("w", "i", 1)), clock)
    await taken_until_nobody_may(backend)
    await lose_advisories(backend)
    await known_to_the_index(backend, run_id)
    sweep = sweeping(backend)
    for _ in range(3):
        await sweep.sweep()
    assert await status_of(backend, run_id) is RunStatus.FAILED
    assert await backend.dead_letters.count() == 1
    assert await backend.queue.run_ids() == set()


async def test_d04_jobs_that_are_yet_to_be_delivered_are_not_given_up(backend: GatewayBackend) -> None:
    """D04: one that waits, one that was given back for later, one whose worker is silent."""
    for _ in range(3):
        await submitted(backend)
    source = await backend.sources.open(("default",))
    silent, given_back = await source.next(5.0), await source.next(5.0)
    assert silent is not None
    assert given_back is not None
    await given_back.nak(60.0)
    await source.close()
    await asyncio.sleep(2 * QUICK["consumer_ack_wait_sec"])  # AckWait passes without a message
    jobs = await backend.queue.jobs()
    assert [job.is_given_up for job in jobs] == [False, False, False]
    assert {job.max_deliver for job in jobs} == {DELIVERIES}


async def test_a_job_that_is_not_there_any_more_is_removed_without_an_error(backend: GatewayBackend) -> None:
    """The first and the last of the queue, and one between others: a store reports each in its own way."""
    sequences = []
    source = await backend.sources.open(("default",))
    for _ in range(3):
        await submitted(backend)
        delivery = await source.next(patient_timeout_sec())
        assert delivery is not None
        sequences.append(delivery.sequence)
        await delivery.ack()
    await source.close()
    for sequence in (*sequences, sequences[-1] + 100):
        await backend.undeliverable.at(sequence, 0).remove()
