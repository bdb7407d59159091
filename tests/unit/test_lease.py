"""Work that one of several gateways does at a time."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from pyoco_server.domain import codec
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.coordination import Lease
from support.virtual_time import virtually

BEAT_SEC, SILENT_SEC, PATIENCE_SEC = 0.01, 0.1, 60.0


class Worker:
    """Somebody who wants the lease, and tells when it has begun and when it was made to stop."""

    def __init__(self, store: MemoryStore[LeaseRecord], name: str) -> None:
        self.lease = Lease(store, "work", name, time.time, lasts_sec=SILENT_SEC, beat_sec=BEAT_SEC)
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()
        self.fails: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work(self) -> None:
        self.began.set()
        try:
            await self.fails
        finally:
            self.stopped.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Future[None]"]:
        task = asyncio.ensure_future(self.lease.run(self.work))
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, ZeroDivisionError):
                await task


@pytest.fixture
def store() -> MemoryStore[LeaseRecord]:
    return MemoryStore(codec.encode, codec.decode_lease)


@virtually
async def test_one_works_and_the_other_waits(store: MemoryStore[LeaseRecord]) -> None:
    first, second = Worker(store, "a"), Worker(store, "b")
    async with first.running():
        await first.began.wait()
        async with second.running():
            await asyncio.sleep(3 * SILENT_SEC)  # the first beats all the time
            assert not second.began.is_set()
            assert (first.lease.is_held, second.lease.is_held) == (True, False)


@virtually
async def test_who_stops_gives_the_lease_back(store: MemoryStore[LeaseRecord]) -> None:
    first = Worker(store, "a")
    async with first.running():
        await first.began.wait()
    assert first.stopped.is_set()
    assert await store.get("work") is None


@virtually
async def test_work_that_fails_gives_it_back_and_tells(store: MemoryStore[LeaseRecord]) -> None:
    first = Worker(store, "a")
    async with first.running() as task:
        await first.began.wait()
        first.fails.set_exception(ZeroDivisionError("broken"))
        with pytest.raises(ZeroDivisionError):
            await task
    assert await store.get("work") is None


@virtually
async def test_who_falls_silent_loses_it_and_stops_when_it_wakes_up(store: MemoryStore[LeaseRecord]) -> None:
    await store.create("work", LeaseRecord("dead", time.time() + SILENT_SEC))
    second = Worker(store, "b")
    async with second.running():
        await second.began.wait()  # after the silence of the dead
        taken = await store.get("work")
        assert taken is not None
        assert taken.value.holder == "b"
        await store.update("work", LeaseRecord("c", time.time() + PATIENCE_SEC), taken.revision)
        await second.stopped.wait()
        assert not second.lease.is_held


@virtually
async def test_a_beat_whose_answer_was_lost_is_still_ours(
    store: MemoryStore[LeaseRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(store, "a")
    update, written = store.update, asyncio.Event()

    async def written_but_unanswered(key: str, value: LeaseRecord, expected: object) -> object:
        revision = await update(key, value, expected)  # type: ignore[arg-type]
        if not written.is_set():
            written.set()
            await update(key, value, revision)  # as a second try of the same beat would
        return revision

    monkeypatch.setattr(store, "update", written_but_unanswered)
    async with worker.running():
        await written.wait()
        await asyncio.sleep(5 * BEAT_SEC)
        assert worker.lease.is_held
        assert not worker.stopped.is_set()
