"""REQ-0003, ERR-PYOCO-0004: no run is unfinished for ever, and none that is gone is shown for ever."""

from collections.abc import AsyncIterator

import pytest

from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.testing import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.usecases.ports import Change, FeedPosition, Revision
from pyoco_server.usecases.sweep_runs import LOST, PENDING_LOOKS, SweepRuns
from support.captured_logs import capture_logs
from support.things import NOW, OWNER, RUN_ID, a_job, a_snapshot


@pytest.fixture
async def backend() -> AsyncIterator[MemoryGatewayBackend]:
    async with open_memory_gateway_backend() as opened:
        yield opened


def sweeper(backend: MemoryGatewayBackend) -> SweepRuns:
    return SweepRuns(backend.runs, backend.run_index, backend.queue, lambda: NOW + 60)


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
