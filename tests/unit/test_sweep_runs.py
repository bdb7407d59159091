"""REQ-0003, ERR-PYOCO-0004: no run is unfinished for ever, and none that is gone is shown for ever."""

import asyncio
from collections.abc import AsyncIterator
from itertools import cycle
from typing import Any
from unittest.mock import AsyncMock

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.runs.jobs import job_of_next_try, pending
from pyoco_server.domain.runs.model import (
    FailureKind,
    RunFailure,
    RunRetry,
    RunSnapshot,
    RunStatus,
    RunTry,
    replace,
)
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.memory.dead_letters import MemoryUndeliverable
from pyoco_server.memory.queue import MemoryDelivery, MemoryQueue, QueueFaults
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision
from pyoco_server.usecases.services.sweep import (
    LOST,
    PENDING_LOOKS,
    EndMaxDelivered,
    QueueNextTries,
    SweepRuns,
)
from support.builders import NOW, OWNER, RUN_ID, a_job, a_snapshot
from support.captured_logs import capture_logs


@pytest.fixture
async def backend() -> AsyncIterator[MemoryGatewayBackend]:
    async with open_memory_gateway_backend() as opened:
        yield opened


def clock() -> float:
    return NOW + 60


def sweeper(backend: MemoryGatewayBackend) -> SweepRuns:
    end = EndMaxDelivered(backend.undeliverable, backend.runs, backend.queue, backend.dead_letters, clock)
    return SweepRuns(backend.runs, backend.run_index, backend.queue, end, clock)


def index(backend: MemoryGatewayBackend, revision: Revision, run: RunSnapshot) -> None:
    backend.run_index.apply([Change(RUN_ID, revision, run, None)], FeedPosition("memory", revision))


async def put(backend: MemoryGatewayBackend, run: RunSnapshot) -> Revision:
    revision = await backend.runs.create(RUN_ID, run)
    index(backend, revision, run)
    return revision


async def status(backend: MemoryGatewayBackend) -> RunStatus:
    stored = await backend.runs.get(RUN_ID)
    assert stored is not None
    return stored.value.status


@pytest.mark.parametrize(
    ("run", "looks"), [(a_snapshot(), PENDING_LOOKS), (a_snapshot(RunStatus.RUNNING, OWNER), 1)]
)
async def test_a_run_without_a_job_is_ended_after_some_looks(
    backend: MemoryGatewayBackend, run: RunSnapshot, looks: int
) -> None:
    await put(backend, run)
    sweep = sweeper(backend)
    for _ in range(looks):
        await sweep.sweep()
        assert await status(backend) is run.status, "its job may be on its way"
    with capture_logs() as logs:
        await sweep.sweep()
    stored = await backend.runs.get(RUN_ID)
    assert stored is not None
    assert (stored.value.status, stored.value.error) == (RunStatus.FAILED, LOST)
    (line,) = [line for line in logs if line["action"] == "run.orphan_ended"]
    assert (line["err_id"], line["run_id"]) == ("ERR-PYOCO-0004", RUN_ID)


async def test_a_cancelled_run_without_a_job_ends_cancelled(backend: MemoryGatewayBackend) -> None:
    await put(backend, a_snapshot(RunStatus.CANCELLING, OWNER))
    sweep = sweeper(backend)
    await sweep.sweep()
    await sweep.sweep()
    assert await status(backend) is RunStatus.CANCELLED


async def test_a_run_whose_job_is_on_the_queue_waits_as_long_as_it_takes(
    backend: MemoryGatewayBackend,
) -> None:
    revision = await put(backend, a_snapshot())
    await backend.queue.publish(a_job(run_id=RUN_ID), revision)
    sweep = sweeper(backend)
    for _ in range(2 * PENDING_LOOKS):
        await sweep.sweep()
    assert await status(backend) is RunStatus.PENDING


async def test_a_run_that_changed_since_the_index_saw_it_is_left_alone(backend: MemoryGatewayBackend) -> None:
    revision = await put(backend, a_snapshot())
    sweep = sweeper(backend)
    await sweep.sweep()
    await backend.runs.update(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER), revision)
    await sweep.sweep()
    assert await status(backend) is RunStatus.RUNNING


async def test_a_run_that_the_store_does_not_have_leaves_the_lists(backend: MemoryGatewayBackend) -> None:
    """It was withdrawn while this gateway was down, and the mark of the removal is gone."""
    index(backend, Revision(7), a_snapshot())
    sweep = sweeper(backend)
    await sweep.sweep()
    await sweep.sweep()
    assert backend.run_index.counts(None)[RunStatus.PENDING] == 0


async def test_d01_a_queue_that_is_read_in_batches_is_read_to_its_end(backend: MemoryGatewayBackend) -> None:
    """D01: a batch that the server cut by its size was taken for the end of the queue."""
    queue = MemoryQueue(NatsBackendConfig(), QueueFaults(batch_bytes=1))
    for _ in range(3):
        await queue.publish(a_job(), Revision(1))
    revision = await put(backend, a_snapshot())
    await queue.publish(a_job(run_id=RUN_ID), revision)
    sweep = SweepRuns(backend.runs, backend.run_index, queue, sweeper(backend)._end_undeliverable, clock)
    for _ in range(2 * PENDING_LOOKS):
        await sweep.sweep()
    assert await status(backend) is RunStatus.PENDING


async def test_d03_a_job_that_a_replica_lacks_is_asked_of_the_leader(backend: MemoryGatewayBackend) -> None:
    """D03, its sister: a replica that is behind answered for the whole queue."""
    queue = MemoryQueue(NatsBackendConfig(), QueueFaults(lag_sec=lambda: 1000.0))
    revision = await put(backend, a_snapshot())
    await queue.publish(a_job(run_id=RUN_ID), revision)
    sweep = SweepRuns(backend.runs, backend.run_index, queue, sweeper(backend)._end_undeliverable, clock)
    for _ in range(2 * PENDING_LOOKS):
        await sweep.sweep()
    assert await status(backend) is RunStatus.PENDING


async def test_a_run_that_is_claimed_while_it_is_being_ended_goes_on(backend: MemoryGatewayBackend) -> None:
    revision = await put(backend, a_snapshot())
    sweep = sweeper(backend)
    for _ in range(PENDING_LOOKS):
        await sweep.sweep()
    found = await backend.runs.get(RUN_ID)
    claimed_meanwhile = AsyncMock(return_value=found)
    await backend.runs.update(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER), revision)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend.runs, "get", claimed_meanwhile)
        await sweep.sweep()
    assert await status(backend) is RunStatus.RUNNING


def used_up(backend: MemoryGatewayBackend) -> MemoryQueue:
    """A queue that delivers a job twice, and loses the advisory when that was too often."""
    config = NatsBackendConfig(
        consumer_max_deliver=2, consumer_ack_wait_sec=0.2, ack_progress_interval_sec=0.1
    )
    return MemoryQueue(config, QueueFaults(loses_advisory=lambda: True))


async def used_up_twice(queue: MemoryQueue) -> None:
    for _ in range(2):
        await until_taken(queue)


async def until_taken(queue: MemoryQueue) -> MemoryDelivery:
    source = await queue.open(("default",))
    delivery = await source.next(30.0)
    assert delivery is not None
    return delivery


@pytest.mark.parametrize("worker_asks", [True, False])
async def test_d04_the_run_of_a_job_that_is_never_delivered_again_is_ended(
    backend: MemoryGatewayBackend, *, worker_asks: bool
) -> None:
    """D04: the advisory of it was lost, or no worker asks for the next job, on which it would be sent."""
    queue = used_up(backend)
    job = a_job(run_id=RUN_ID)
    revision = await put(backend, pending(job))
    await queue.publish(job, revision)
    await used_up_twice(queue)
    if worker_asks:
        source = await queue.open(("default",))
        assert await source.next(0.5) is None
    else:
        held = replace(pending(job), status=RunStatus.RUNNING, worker_id="w", attempt=2, job_seq=1)
        index(backend, await backend.runs.update(RUN_ID, held, revision), held)
    end = EndMaxDelivered(MemoryUndeliverable(queue), backend.runs, queue, backend.dead_letters, clock)
    sweep = SweepRuns(backend.runs, backend.run_index, queue, end, clock)
    for _ in range(PENDING_LOOKS + 1):
        await sweep.sweep()
    stored = await backend.runs.get(RUN_ID)
    assert stored is not None
    assert stored.value.status is RunStatus.FAILED
    assert (stored.value.error or "").startswith("max_deliver")
    assert [letter.run_id for _, letter in backend.dead_letters.letters] == [RUN_ID]
    assert await queue.run_ids() == set()


async def test_d04_a_run_that_waits_for_its_next_delivery_is_left_alone(
    backend: MemoryGatewayBackend,
) -> None:
    """D04: never end what is healthy: the worker died, and no other one is there yet."""
    queue = used_up(backend)
    job = a_job(run_id=RUN_ID)
    revision = await put(backend, pending(job))
    await queue.publish(job, revision)
    await until_taken(queue)
    held = replace(pending(job), status=RunStatus.RUNNING, worker_id="w", attempt=1, job_seq=1)
    index(backend, await backend.runs.update(RUN_ID, held, revision), held)
    end = EndMaxDelivered(MemoryUndeliverable(queue), backend.runs, queue, backend.dead_letters, clock)
    sweep = SweepRuns(backend.runs, backend.run_index, queue, end, clock)
    for _ in range(2 * PENDING_LOOKS):
        await sweep.sweep()
    assert await status(backend) is RunStatus.RUNNING


async def test_d03_a_replica_that_stays_behind_hides_no_job_that_is_given_up(
    backend: MemoryGatewayBackend,
) -> None:
    """D03 and D04: the job of an ended run stayed on the queue while the replica was behind."""
    config = NatsBackendConfig(
        consumer_max_deliver=2, consumer_ack_wait_sec=0.2, ack_progress_interval_sec=0.1
    )
    answers = cycle((0.0, 1000.0))
    queue = MemoryQueue(config, QueueFaults(loses_advisory=lambda: True, lag_sec=lambda: next(answers)))
    job = a_job(run_id=RUN_ID)
    await backend.runs.create(RUN_ID, replace(pending(job), status=RunStatus.CANCELLED))
    await queue.publish(job, Revision(1))
    await used_up_twice(queue)
    source = await queue.open(("default",))
    assert await source.next(0.5) is None
    end = EndMaxDelivered(MemoryUndeliverable(queue), backend.runs, queue, backend.dead_letters, clock)
    sweep = SweepRuns(backend.runs, backend.run_index, queue, end, clock)
    for _ in range(2):
        await sweep.sweep()
    assert await queue.count() == 0
    assert backend.dead_letters.letters == []


async def test_d03_a_job_that_only_a_replica_still_has_is_not_given_up(backend: MemoryGatewayBackend) -> None:
    """A removed job, on a replica that is behind, looks like one that is never delivered again."""
    loop = asyncio.get_running_loop()
    queue = MemoryQueue(NatsBackendConfig(), QueueFaults(lag_sec=lambda: loop.time() - stands_at))
    await queue.publish(a_job(), Revision(1))
    await asyncio.sleep(0.01)
    stands_at = loop.time()
    await asyncio.sleep(0.01)
    await (await until_taken(queue)).term()
    assert [job.is_given_up for job in await queue.jobs()] == [True]
    await put(backend, a_snapshot())  # for it the queue is read
    end = EndMaxDelivered(MemoryUndeliverable(queue), backend.runs, queue, backend.dead_letters, clock)
    sweep = SweepRuns(backend.runs, backend.run_index, queue, end, clock)
    for _ in range(4):
        await sweep.sweep()
    assert backend.dead_letters.letters == []


# Next tries that a worker could not queue


class NextTries:
    """A run whose first try failed, and whose worker did what it could."""

    def __init__(self, backend: MemoryGatewayBackend) -> None:
        self.backend = backend
        self.service = QueueNextTries(backend.runs, backend.queue, backend.undeliverable)
        self.job = a_job(retry=RunRetry(max_attempts=3))

    async def failed(self, **changes: Any) -> RunSnapshot:
        revision = await self.backend.runs.create(self.job.run_id, pending(self.job))
        await self.backend.queue.publish(self.job, revision)
        (queued,) = await self.backend.queue.jobs()
        failure = RunFailure(kind=FailureKind.ERROR, message="no")
        one = RunTry(n=1, started_at=NOW, ended_at=NOW, worker_id="w", failure=failure)
        run = replace(pending(self.job), tries=(one,), job_seq=queued.sequence, not_before=NOW, **changes)
        await self.backend.runs.update(self.job.run_id, run, revision)
        return run

    async def seen(self, run: RunSnapshot) -> None:
        await self.service.complete(run.run_id, run.job_seq or 0)

    async def tries(self) -> list[int]:
        messages = self.backend.queue._messages
        return [codec.decode_job(message.payload).try_number for message in messages]


@pytest.fixture
async def next_tries() -> AsyncIterator[NextTries]:
    async with open_memory_gateway_backend() as backend:
        yield NextTries(backend)


async def test_the_next_try_is_queued_in_place_of_the_failed_one(next_tries: NextTries) -> None:
    run = await next_tries.failed()
    await next_tries.seen(run)
    assert await next_tries.tries() == [2]
    await next_tries.seen(run)
    assert await next_tries.tries() == [2], "once"


async def test_a_try_that_its_worker_has_queued_is_left_alone(next_tries: NextTries) -> None:
    run = await next_tries.failed()
    await next_tries.backend.queue.publish(job_of_next_try(next_tries.job, run), Revision(2))
    await next_tries.backend.undeliverable.at(run.job_seq or 0, 0).remove()  # as an ack does
    await next_tries.seen(run)
    assert await next_tries.tries() == [2]


async def test_a_run_that_was_cancelled_meanwhile_has_no_next_try(next_tries: NextTries) -> None:
    run = await next_tries.failed()
    stored = await next_tries.backend.runs.get(run.run_id)
    assert stored is not None
    over = replace(run, status=RunStatus.CANCELLED)
    await next_tries.backend.runs.update(run.run_id, over, stored.revision)
    await next_tries.seen(run)
    assert await next_tries.tries() == [1]


async def test_a_run_in_another_try_by_now_is_left_alone(next_tries: NextTries) -> None:
    run = await next_tries.failed()
    stored = await next_tries.backend.runs.get(run.run_id)
    assert stored is not None
    later = replace(run, job_seq=99)
    await next_tries.backend.runs.update(run.run_id, later, stored.revision)
    await next_tries.seen(run)
    assert await next_tries.tries() == [1]
