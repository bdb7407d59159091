"""A feed is read once for all who need it: who joins in gets every change once, in order."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager

from pyoco_server.usecases.concurrency import cancelled
from pyoco_server.usecases.ports.stores import Change, FeedBatch, FeedPosition, Revision
from pyoco_server.usecases.services.shared_feed import JoinedFeed, SharedFeed
from support.virtual_time import virtually


class Stream:
    """Numbers that are stored one after the other, and a feed of them."""

    stale_sec = missed_sec = 0.0

    def __init__(self, delay: float = 0.0, stored: "Stream | None" = None) -> None:
        self._log: list[int] = [] if stored is None else stored._log
        self._news: asyncio.Event = asyncio.Event() if stored is None else stored._news
        self._delay = delay
        self.created = "first"
        self.asked: list[int | None] = []
        """Positions from which somebody began to read."""
        self.readers = 0
        self.sent = 0

    def store(self, *values: int) -> None:
        self._log.extend(values)
        self._news.set()

    def at(self, revision: int) -> FeedPosition:
        return FeedPosition(self.created, Revision(revision))

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[int], None]:
        self.asked.append(None if position is None else position.last_revision)
        is_reset = position is None or position.stream_created != self.created
        self.readers += 1
        try:
            async for batch in self._batches(0 if is_reset or position is None else position.last_revision):
                yield FeedBatch(batch.changes, batch.position, is_reset, batch.is_caught_up)
                is_reset = False
        finally:
            self.readers -= 1

    async def _batches(self, seen: int) -> AsyncIterator[FeedBatch[int]]:
        yield FeedBatch([], self.at(seen), is_reset=False, is_caught_up=seen == len(self._log))
        while True:
            if seen == len(self._log):
                self._news.clear()
                await self._news.wait()
            changes = [Change(str(n), Revision(n), self._log[n - 1], None) for n in self._next(seen)]
            await asyncio.sleep(self._delay)
            seen += len(changes)
            self.sent += len(changes)
            is_caught_up = seen == len(self._log)
            yield FeedBatch(changes, self.at(seen), is_reset=False, is_caught_up=is_caught_up)

    def _next(self, seen: int) -> range:
        return range(seen + 1, min(seen + 3, len(self._log)) + 1)


def even(changes: Iterable[Change[int]]) -> list[Change[int]]:
    return [change for change in changes if change.value is not None and change.value % 2 == 0]


@asynccontextmanager
async def reading(shared: SharedFeed[int]) -> AsyncIterator[None]:
    async def read() -> None:
        async for _ in shared.follow(None):
            pass

    task = asyncio.ensure_future(read())
    try:
        yield
    finally:
        await cancelled(task)


class Guest:
    """Somebody who goes on from a position."""

    def __init__(self, joined: JoinedFeed[int, int], position: FeedPosition | None) -> None:
        self.got: list[int] = []
        self.resets = 0
        self.is_held = asyncio.Event()
        self.is_held.set()
        self._task = asyncio.ensure_future(self._take(joined, position))

    async def _take(self, joined: JoinedFeed[int, int], position: FeedPosition | None) -> None:
        async with aclosing(joined.follow(position)) as batches:
            async for batch in batches:
                self.resets += batch.is_reset
                self.got += [change.value for change in even(batch.changes) if change.value is not None]
                await self.is_held.wait()

    async def stop(self) -> None:
        await cancelled(self._task)


@virtually
async def test_a_guest_reads_alone_what_it_has_missed_and_nothing_else() -> None:
    stream = Stream()
    own, shared = Stream(stored=stream), SharedFeed(stream)
    stream.store(*range(1, 11))
    async with reading(shared):
        await asyncio.sleep(1)
        guest = Guest(JoinedFeed(shared, own, even), own.at(6))
        await asyncio.sleep(1)
        assert (guest.got, own.sent, own.readers) == ([8, 10], 4, 0)
        stream.store(*range(11, 101))
        await asyncio.sleep(1)
        assert guest.got == list(range(8, 101, 2))
        assert (own.sent, own.asked) == (4, [6])
        await guest.stop()


@virtually
async def test_a_guest_reads_alone_while_the_reader_is_behind_with_history() -> None:
    stream = Stream(delay=10.0)
    own, shared = Stream(stored=stream), SharedFeed(stream)
    stream.store(*range(1, 31))
    async with reading(shared):
        guest = Guest(JoinedFeed(shared, own, even), own.at(20))
        await asyncio.sleep(15)
        stream.store(31, 32)
        await asyncio.sleep(1)
        assert guest.got == [22, 24, 26, 28, 30, 32]
        assert own.readers == 1
        await asyncio.sleep(200)
        stream.store(33, 34)
        await asyncio.sleep(15)
        assert guest.got[-1] == 34
        assert own.readers == 0
        await guest.stop()


@virtually
async def test_a_guest_that_is_ahead_of_the_reader_gets_nothing_twice() -> None:
    stream = Stream(delay=5.0)
    own, shared = Stream(stored=stream), SharedFeed(stream)
    stream.store(1, 2)
    async with reading(shared):
        await asyncio.sleep(20)
        stream.store(4)
        guest = Guest(JoinedFeed(shared, own, even), own.at(0))
        await asyncio.sleep(1)
        assert (guest.got, own.readers) == ([2, 4], 0), "the reader gets the second only in a moment"
        await asyncio.sleep(20)
        stream.store(5, 6)
        await asyncio.sleep(20)
        assert guest.got == [2, 4, 6]
        await guest.stop()


@virtually
async def test_a_guest_asks_the_stream_again_after_it_was_replaced() -> None:
    stream = Stream()
    own, shared = Stream(stored=stream), SharedFeed(stream)
    stream.store(1, 2)
    async with reading(shared):
        await asyncio.sleep(1)
        guest = Guest(JoinedFeed(shared, own, even), own.at(0))
        await asyncio.sleep(1)
    stream.created = own.created = "second"
    async with reading(shared):
        await asyncio.sleep(1)
        assert (own.asked, guest.resets, guest.got) == ([0, 2], 1, [2, 2])
        stream.store(4)
        await asyncio.sleep(1)
        assert (guest.got, own.readers) == ([2, 2, 4], 0)
        await guest.stop()


@virtually
async def test_a_guest_that_is_slow_reads_alone_and_loses_nothing() -> None:
    stream = Stream()
    own, shared = Stream(stored=stream), SharedFeed(stream)
    async with reading(shared):
        guest = Guest(JoinedFeed(shared, own, even, max_kept=5), own.at(0))
        await asyncio.sleep(1)
        stream.store(2)
        guest.is_held.clear()
        await asyncio.sleep(1)
        stream.store(*range(3, 51))
        await asyncio.sleep(1)
        guest.is_held.set()
        await asyncio.sleep(5)
        assert guest.got == list(range(2, 51, 2))
        assert own.readers == 0
        await guest.stop()


@virtually
async def test_whoever_is_late_or_begins_again_no_change_is_lost_or_doubled() -> None:
    for seed in range(60):
        chance = random.Random(seed)  # noqa: S311 - reproducible
        stream = Stream(delay=chance.choice([0.0, 0.3]))
        own = Stream(delay=chance.choice([0.0, 0.3]), stored=stream)
        shared = SharedFeed(stream)
        guest = Guest(JoinedFeed(shared, own, even, max_kept=chance.choice([1, 3, 1000])), own.at(0))
        stored = 0
        for _ in range(4):
            async with reading(shared):
                for _ in range(chance.randint(1, 15)):
                    count = chance.randint(1, 9)
                    stream.store(*range(stored + 1, stored + count + 1))
                    stored += count
                    (guest.is_held.set if chance.random() < 0.7 else guest.is_held.clear)()
                    await asyncio.sleep(chance.random())
        guest.is_held.set()
        async with reading(shared):
            await asyncio.sleep(200)
        assert guest.got == list(range(2, stored + 1, 2)), seed
        await guest.stop()
