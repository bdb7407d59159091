"""One reading of a feed for all who need its changes.

A gateway reads every change of a run for its index. Whoever goes on from a stored position reads by itself
what it has missed, and takes the rest from that reading: each message is received and decoded once.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, closing
from typing import Any, Generic, TypeVar

from pyoco_server.usecases.ports.stores import Change, Feed, FeedBatch, FeedPosition

S = TypeVar("S")
T = TypeVar("T")

PAUSE_SEC = 0.1
"""Between two batches of a guest, so that a busy gateway does not wake it for every change."""
MAX_KEPT = 10_000
"""Changes kept for a guest that is slow. With more it reads by itself again."""


class SharedFeed(Generic[S]):
    """A feed with one reader, and guests that get what it reads."""

    def __init__(self, feed: Feed[S]) -> None:
        self._feed = feed
        self._guests: list[_Guest[S, Any]] = []
        self._position: FeedPosition | None = None
        """Of the reader; None until it has caught up."""
        self.beginnings = 0
        """How often the reader began. It may have found that positions are void."""

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    @property
    def missed_sec(self) -> float:
        return self._feed.missed_sec

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[S], None]:
        """For the reader."""
        self._begin()
        async with aclosing(self._feed.follow(position)) as batches:
            async for batch in batches:
                self._note(batch)
                yield batch

    def add(self, guest: "_Guest[S, Any]", position: FeedPosition) -> bool:
        """Whether `guest` gets all changes after `position` from now on.

        Not if the reader is ahead of it, nor while it reads history, which may take minutes.
        """
        at = self._position
        if at is None or at.stream_created != position.stream_created:
            return False
        if at.last_revision > position.last_revision:
            return False
        self._guests.append(guest)
        return True

    def remove(self, guest: "_Guest[S, Any]") -> None:
        if guest in self._guests:
            self._guests.remove(guest)

    def _begin(self) -> None:
        self.beginnings += 1
        self._position = None
        for guest in self._guests:
            guest.send_away()
        self._guests.clear()

    def _note(self, batch: FeedBatch[S]) -> None:
        if batch.is_reset:
            self._begin()
        if batch.is_caught_up or self._position is not None:
            self._position = batch.position
        for guest in self._guests:
            guest.take(batch)


class JoinedFeed(Generic[S, T]):
    """What `select` finds in the changes of a shared feed, from any position on.

    `own` reads the same stream. It comes first, because only the stream knows whether a position is valid.
    """

    def __init__(
        self,
        shared: SharedFeed[S],
        own: Feed[T],
        select: Callable[[Iterable[Change[S]]], list[Change[T]]],
        *,
        max_kept: int = MAX_KEPT,
    ) -> None:
        self._shared = shared
        self._own = own
        self._select = select
        self._max_kept = max_kept

    @property
    def stale_sec(self) -> float:
        return self._shared.stale_sec

    @property
    def missed_sec(self) -> float:
        return self._shared.missed_sec

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[T], None]:
        while True:
            with closing(_Guest(self._shared, self._select, self._max_kept)) as guest:
                async with aclosing(self._own.follow(position)) as batches:
                    async for batch in batches:
                        yield batch
                        position = batch.position
                        if guest.joins(position):
                            break
                while (found := await guest.next()) is not None:
                    yield found
                    position = found.position
                    await asyncio.sleep(PAUSE_SEC)


class _Guest(Generic[S, T]):
    """Collects what the reader of a shared feed reads, after its position."""

    def __init__(
        self,
        shared: SharedFeed[S],
        select: Callable[[Iterable[Change[S]]], list[Change[T]]],
        max_kept: int,
    ) -> None:
        self._shared = shared
        self._select = select
        self._max_kept = max_kept
        self._beginning = shared.beginnings
        self._changes: list[Change[T]] = []
        self._news = asyncio.Event()
        self._is_away = False

    def joins(self, position: FeedPosition) -> bool:
        """Whether to read alone no longer: the shared feed has the rest, or the position is in doubt."""
        self._position = position
        if self._shared.beginnings != self._beginning:
            self.send_away()
        return self._is_away or self._shared.add(self, position)

    def close(self) -> None:
        self._shared.remove(self)

    def send_away(self) -> None:
        self._is_away = True
        self._news.set()

    def take(self, batch: FeedBatch[S]) -> None:
        seen = self._position.last_revision
        if self._is_away or batch.position.last_revision <= seen:
            return
        found = [change for change in self._select(batch.changes) if change.revision > seen]
        self._position = batch.position
        if found:
            self._changes += found
            self._news.set()
        if len(self._changes) > self._max_kept:
            self.send_away()

    async def next(self) -> FeedBatch[T] | None:
        """Waits for changes that were selected. None: go on alone."""
        await self._news.wait()
        if self._is_away:
            return None
        self._news.clear()
        changes, self._changes = self._changes, []
        return FeedBatch(changes, self._position, is_reset=False, is_caught_up=True)
