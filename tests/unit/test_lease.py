"""Work that one of several gateways does at a time, and work that they share."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from pyoco_server.domain import codec
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.domain.shares import SHARDS, Roster, shards_of
from pyoco_server.errors import NatsUnavailable
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.coordination import Lease, Share
from pyoco_server.usecases.ports.stores import Store, Versioned
from support.tables import every_row
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


# Shares


NAMES = [f"gateway-{n}" for n in range(10)]


@every_row("members", [NAMES[:count] for count in (1, 2, 3, 10)])
def test_each_key_has_one_owner_and_few_change_hands_when_a_member_goes(members: list[str]) -> None:
    parts = {member: shards_of(member, members) for member in members}
    assert sorted(shard for part in parts.values() for shard in part) == list(range(SHARDS))
    even = SHARDS / len(members)
    assert all(0.7 * even < len(part) < 1.3 * even for part in parts.values())
    for member in members[1:]:
        left = shards_of(member, members[1:])
        assert parts[member] <= left <= parts[member] | parts[members[0]]


class Member:
    """A gateway with its share, and the keys that were new in it."""

    def __init__(self, store: Store[Roster], name: str) -> None:
        self.share = Share(store, "work", name, lasts_sec=SILENT_SEC, beat_sec=BEAT_SEC)
        self.gained: list[str] = []

    def note(self, is_new: Callable[[str], bool]) -> None:
        self.gained += filter(is_new, KEYS)

    def has(self) -> set[str]:
        return set(filter(self.share.has, KEYS))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Future[None]"]:
        task = asyncio.ensure_future(self.share.run(self.note))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})


KEYS = [f"execution-{n}" for n in range(200)]


class CutOff:
    """A store as a gateway sees it that cannot reach it for a while."""

    def __init__(self, store: MemoryStore[Roster]) -> None:
        self._store = store
        self.create, self.update, self.remove = store.create, store.update, store.remove
        self.is_cut_off = False

    async def get(self, key: str) -> Versioned[Roster] | None:
        if self.is_cut_off:
            raise NatsUnavailable("nats unavailable")
        return await self._store.get(key)


@virtually
async def test_members_share_the_keys_and_take_over_those_of_one_that_goes() -> None:
    rosters = MemoryStore(codec.encode, codec.decode_roster)
    first, second = Member(rosters, "a"), Member(rosters, "b")
    async with first.running():
        await asyncio.sleep(BEAT_SEC / 2)
        assert first.has() == set(KEYS) == set(first.gained)
        first.gained.clear()
        async with second.running():
            await asyncio.sleep(3 * SILENT_SEC)
            assert (first.has() | second.has(), first.has() & second.has()) == (set(KEYS), set())
            assert 70 < len(second.has()) < 130
            assert first.gained == [], "it only gave some away"
            theirs = second.has()
        assert second.has() == set()
        await asyncio.sleep(2 * BEAT_SEC)  # it took its leave
        assert first.has() == set(KEYS)
        assert set(first.gained) == theirs


@virtually
async def test_the_keys_of_a_silent_member_are_taken_over_and_returned() -> None:
    """It goes on meanwhile, as it cannot know."""
    rosters = MemoryStore(codec.encode, codec.decode_roster)
    cut_off = CutOff(rosters)
    first, second = Member(rosters, "a"), Member(cut_off, "b")
    async with first.running(), second.running():
        await asyncio.sleep(3 * BEAT_SEC)
        before = first.has(), second.has()
        assert all(before)
        cut_off.is_cut_off = True
        await asyncio.sleep(SILENT_SEC - 2 * BEAT_SEC)
        assert first.has() == before[0], "too early"
        await asyncio.sleep(4 * BEAT_SEC)
        assert (first.has(), second.has()) == (set(KEYS), before[1])
        cut_off.is_cut_off = False
        await asyncio.sleep(3 * BEAT_SEC)
        assert (first.has(), second.has()) == before
