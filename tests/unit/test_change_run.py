"""Load, decide, write with the expected revision: whoever comes second decides on what is there by then."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.runs.changes import Beat, Claim, Conclude, Refusal, RequestCancel
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.memory import MemoryBackend, open_memory_backend
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.consistency import MAX_TRIES, change_run
from pyoco_server.usecases.fleet import RegisterWorker
from pyoco_server.usecases.ports.stores import Revision, Versioned, WrongRevision
from support.builders import NOW, OWNER, RUN_ID, a_snapshot, a_worker, an_activity


@pytest.fixture
async def backend() -> AsyncIterator[MemoryBackend]:
    async with open_memory_backend() as opened:
        yield opened


class Counting:
    """Counts what a store is asked, and lets others act just before a write."""

    def __init__(self, store: MemoryStore[RunSnapshot]) -> None:
        self._store = store
        self.reads = 0
        self.before_update: Callable[[], Awaitable[object]] | None = None

    async def create(self, key: str, value: RunSnapshot) -> Revision:
        return await self._store.create(key, value)

    async def get(self, key: str) -> Versioned[RunSnapshot] | None:
        self.reads += 1
        return await self._store.get(key)

    async def update(self, key: str, value: RunSnapshot, expected: Revision) -> Revision:
        if self.before_update is not None:
            act, self.before_update = self.before_update, None
            await act()
        return await self._store.update(key, value, expected)

    async def remove(self, key: str, expected: Revision | None) -> None:
        await self._store.remove(key, expected)


def clock() -> float:
    return NOW


COMPLETED = Conclude(owner=OWNER, status=RunStatus.COMPLETED, result={"t": 1})


async def test_a_cancel_that_comes_between_the_decision_and_the_write_wins(backend: MemoryBackend) -> None:
    """REQ-0024"""
    runs = Counting(backend.runs)
    await runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
    runs.before_update = lambda: change_run(
        backend.runs, RUN_ID, RequestCancel(requested_by="anonymous"), clock
    )
    answer = await change_run(runs, RUN_ID, COMPLETED, clock)
    assert isinstance(answer, Versioned)
    assert (answer.value.status, answer.value.result) == (RunStatus.CANCELLED, None)
    assert await backend.runs.get(RUN_ID) == answer


async def test_a_known_snapshot_saves_the_read(backend: MemoryBackend) -> None:
    runs = Counting(backend.runs)
    revision = await runs.create(RUN_ID, a_snapshot())
    answer = await change_run(runs, RUN_ID, Claim(OWNER), clock, known=Versioned(a_snapshot(), revision))
    assert isinstance(answer, Versioned)
    assert (answer.value.owner, runs.reads) == (OWNER, 0)


async def test_a_known_snapshot_that_is_old_is_read_again(backend: MemoryBackend) -> None:
    runs = Counting(backend.runs)
    old = Versioned(a_snapshot(), await runs.create(RUN_ID, a_snapshot()))
    await change_run(runs, RUN_ID, RequestCancel(requested_by="anonymous"), clock)
    answer = await change_run(runs, RUN_ID, Claim(OWNER), clock, known=old)
    assert isinstance(answer, Versioned)
    assert answer.value.status is RunStatus.CANCELLED


async def test_nothing_is_refused_on_an_old_snapshot(backend: MemoryBackend) -> None:
    """What the caller remembers is somebody else's run; what is stored is the caller's."""
    revision = await backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
    old = Versioned(a_snapshot(RunStatus.RUNNING, worker_id="another"), revision)
    answer = await change_run(backend.runs, RUN_ID, Beat(OWNER), clock, known=old)
    assert isinstance(answer, Versioned)


async def test_a_refusal_is_answered_and_nothing_is_written(backend: MemoryBackend) -> None:
    revision = await backend.runs.create(RUN_ID, a_snapshot(RunStatus.FAILED))
    assert await change_run(backend.runs, RUN_ID, COMPLETED, clock) is Refusal.TERMINAL
    stored = await backend.runs.get(RUN_ID)
    assert stored is not None
    assert stored.revision == revision


async def test_a_change_that_changes_nothing_is_not_written(backend: MemoryBackend) -> None:
    revision = await backend.runs.create(RUN_ID, a_snapshot(RunStatus.COMPLETED))
    answer = await change_run(backend.runs, RUN_ID, RequestCancel(requested_by="anonymous"), clock)
    assert isinstance(answer, Versioned)
    assert answer.revision == revision


async def test_a_run_that_does_not_exist_is_none(backend: MemoryBackend) -> None:
    assert await change_run(backend.runs, RUN_ID, Claim(OWNER), clock) is None


class AlwaysTooLate(Counting):
    async def update(self, key: str, value: RunSnapshot, expected: Revision) -> Revision:
        raise WrongRevision(key)


async def test_a_store_that_refuses_every_write_is_a_fault_and_no_endless_loop(
    backend: MemoryBackend,
) -> None:
    runs = AlwaysTooLate(backend.runs)
    await runs.create(RUN_ID, a_snapshot())
    with pytest.raises(NatsUnavailable, match="100 consecutive conflicts"):
        await change_run(runs, RUN_ID, Claim(OWNER), clock)
    assert runs.reads == MAX_TRIES


async def _hide(backend: MemoryBackend) -> WorkerRecord:
    stored = await backend.workers.get("worker-a")
    assert stored is not None
    hidden = a_worker(hidden=True)
    await backend.workers.update("worker-a", hidden, stored.revision)
    return hidden


async def test_a_heartbeat_does_not_lose_what_others_wrote_into_the_record(backend: MemoryBackend) -> None:
    """REQ-0022: the worker remembers its own last write, which is not the last one any more."""
    register = RegisterWorker(backend.workers, clock)
    await register(an_activity())
    await _hide(backend)
    assert (await register(an_activity())).hidden
    stored = await backend.workers.get("worker-a")
    assert stored is not None
    assert stored.value.hidden


async def test_a_record_that_was_removed_is_created_again(backend: MemoryBackend) -> None:
    register = RegisterWorker(backend.workers, clock)
    await register(an_activity())
    await backend.workers.remove("worker-a", None)
    await register(an_activity())
    assert await backend.workers.get("worker-a") is not None
