"""Retention: what is too old is removed, a little at a time; what is not over stays."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision
from pyoco_server.usecases.services.retention import MARGIN_SEC, ExpireRun, Retention
from pyoco_server.usecases.stats.count import CountedEnds
from pyoco_server.wiring.backends import _retention
from support.builders import NOW, a_snapshot

DAY = 86_400.0
RUNS = [f"0190c0de-0000-7000-8000-{number:012d}" for number in range(10)]


@pytest.fixture
async def backend() -> AsyncIterator[MemoryGatewayBackend]:
    async with open_memory_gateway_backend() as opened:
        yield opened


async def put(backend: MemoryGatewayBackend, number: int, status: RunStatus, age: float) -> None:
    run = replace(a_snapshot(status), run_id=RUNS[number], updated_at=NOW - age, heartbeat_at=NOW - age)
    revision = await backend.runs.create(run.run_id, run)
    change: Change[RunSnapshot] = Change(run.run_id, revision, run, None, NOW - age)
    backend.run_index.apply([change], FeedPosition("x", revision))


def retention(backend: MemoryGatewayBackend, keep_sec: float, at_once: int = 2) -> Retention:
    return Retention(
        ended_before=backend.run_index.ended_before,
        remove=ExpireRun(backend.runs, backend.run_index, CountedEnds(backend.count_positions)),
        keep_sec=keep_sec,
        at_once=at_once,
        clock=lambda: NOW,
        what="runs",
    )


async def left(backend: MemoryGatewayBackend) -> list[int]:
    return [number for number, run_id in enumerate(RUNS) if await backend.runs.get(run_id) is not None]


async def test_old_runs_are_removed_in_turns_and_active_ones_stay(backend: MemoryGatewayBackend) -> None:
    for number in range(3):
        await put(backend, number, RunStatus.COMPLETED, (9 - number) * DAY)
    await put(backend, 3, RunStatus.FAILED, 3 * DAY)
    await put(backend, 4, RunStatus.RUNNING, 30 * DAY)
    await put(backend, 5, RunStatus.CANCELLED, DAY + MARGIN_SEC - 1)
    turns = retention(backend, DAY)
    assert await turns.turn() == 2
    assert await left(backend) == [2, 3, 4, 5]
    for number in (0, 1):  # as the feed reports it
        gone: Change[RunSnapshot] = Change(RUNS[number], Revision(90 + number), None, None)
        backend.run_index.apply([gone], FeedPosition("x", Revision(90 + number)))
    assert await turns.turn() == 2
    assert await left(backend) == [4, 5]


async def test_zero_is_for_ever(backend: MemoryGatewayBackend) -> None:
    await put(backend, 0, RunStatus.COMPLETED, 9000 * DAY)
    assert await retention(backend, 0).turn() == 0
    assert await left(backend) == [0]


async def test_a_run_that_is_not_stored_any_more_is_forgotten(backend: MemoryGatewayBackend) -> None:
    await put(backend, 0, RunStatus.COMPLETED, 9 * DAY)
    await backend.runs.remove(RUNS[0], None)
    await retention(backend, DAY).turn()
    assert backend.run_index.ended_before(NOW, 10) == []


@pytest.mark.parametrize(
    ("own", "of_run", "status", "expected"),
    [
        (60.0, None, RunStatus.COMPLETED, 60.0),
        (60.0, 5.0, RunStatus.COMPLETED, 5.0),
        (60.0, 0.0, RunStatus.COMPLETED, None),
        (0.0, None, RunStatus.FAILED, None),
        (None, None, RunStatus.FAILED, None),
        (None, 5.0, RunStatus.CANCELLED, 5.0),
        (60.0, 5.0, RunStatus.RUNNING, None),
    ],
)
def test_the_value_of_the_gateway_counts_whoever_ends_the_run(
    own: float | None, of_run: float | None, status: RunStatus, expected: float | None
) -> None:
    """`own` is None in a worker."""
    assert _retention(own, replace(a_snapshot(status), retention_sec=of_run)) == expected
