"""Count ended runs: one gateway reads the run bucket and adds each end to its minute and its hour.

An end is counted exactly once, although gateways die and two may count for a moment:

* Ends are added to records, then the position is moved. Whoever goes on from an earlier position finds in
  each record up to which revision it is complete, and adds only what is later (`domain/stats/records.py`).
* That needs every end to be found again under the revision that it had. So an ended run is neither deleted
  nor linked to its retry before the position is behind its end (`CountedEnds`).
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.stats.records import (
    CountedEnd,
    CountPosition,
    RunEnd,
    StatsRecord,
    begun,
    by_record,
    counted_end,
    end_of,
    ended_at,
    reached,
    with_ends,
)
from pyoco_server.errors import NatsUnavailable, NotCountedYet
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.concurrency import cancelled
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.ports.stores import (
    Change,
    Clock,
    Feed,
    FeedBatch,
    FeedPosition,
    Revision,
    Store,
    Versioned,
)

log = get_logger(__name__)

POSITION = "position"
INTERVAL_SEC = 1.0
"""Between two turns while runs end."""
SHARE = 10
"""A turn is followed by a pause of so many times its own length, e.g. with a thousand tenants."""
ENDS_AT_ONCE = 5000
"""Ends of a turn. While there is a history to count, reading waits for the turns."""
RECORDS_AT_ONCE = 8
RETRY_SEC = 2.0
BEAT_SEC = 2.0
LASTS_SEC = 10.0
"""Lease timeout before another gateway counts."""


def ends_in(changes: Iterable[Change[RunSnapshot]]) -> list[Change[RunEnd]]:
    """Of what a gateway reads anyway, what is counted."""
    return [
        Change(change.key, change.revision, end_of(change.value), None, change.stored_at)
        for change in changes
        if change.value is not None and change.value.status.is_terminal
    ]


class _Read:
    """Ends that are read and not counted, up to a revision."""

    def __init__(self, position: CountPosition) -> None:
        self.position = position
        self.ends: list[CountedEnd] = []
        self.revision = position.revision
        self.stored_at = position.stored_at
        self.is_news = False
        """Whether a run ended, counted now or before: whoever wants to delete it waits for the position."""

    def take(self, change: Change[RunEnd]) -> None:
        self.revision = max(self.revision, change.revision)
        self.stored_at = max(self.stored_at, change.stored_at or 0.0)
        end = change.value
        if end is None or not end.status.is_terminal:
            return
        self.is_news = True
        if self.position.counts(end, change.revision, change.stored_at):
            self.ends.append(counted_end(change.revision, ended_at(end, change.stored_at), end))


class StatsMeter(Protocol):
    def ends_counted(self, count: int, behind_sec: float) -> None:
        """`behind_sec`: since the last of them ended."""
        ...


class CountEnds:
    def __init__(
        self,
        *,
        feed: Feed[RunEnd],
        records: Store[StatsRecord],
        positions: Store[CountPosition],
        clock: Clock,
        meter: StatsMeter,
        interval_sec: float = INTERVAL_SEC,
    ) -> None:
        """`clock`: that of the store."""
        self._feed = feed
        self._records = records
        self._positions = positions
        self._clock = clock
        self._meter = meter
        self._interval_sec = interval_sec

    async def run(self) -> None:
        """While this gateway holds the lease for it."""
        while True:
            with best_effort(log, "stats.count", NatsUnavailable):
                await self._count()
            await asyncio.sleep(RETRY_SEC)

    async def _count(self) -> None:
        """Until NATS is not available; then again from the stored position."""
        found = await self._positions.get(POSITION)
        session = _Session(self, None if found is None else found.value)
        reading = asyncio.ensure_future(session.read(self._feed))
        counting = asyncio.ensure_future(self._keep_counting(session))
        try:
            await asyncio.wait({reading, counting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(reading)
            await cancelled(counting)
        for task in (reading, counting):
            if not task.cancelled():
                task.result()

    async def _keep_counting(self, session: "_Session") -> None:
        loop = asyncio.get_running_loop()
        while True:
            await session.news.wait()
            began = loop.time()
            await self.turn(session.taken())
            session.room.set()
            took = loop.time() - began
            await asyncio.sleep(max(self._interval_sec - took, SHARE * took))

    async def turn(self, read: _Read) -> CountPosition:
        """Add the ends to their records, then move the position."""
        records = by_record(read.ends, self._clock())
        keys = list(records)
        for start in range(0, len(keys), RECORDS_AT_ONCE):
            some = keys[start : start + RECORDS_AT_ONCE]
            await asyncio.gather(*(self._add(key, records[key], read) for key in some))
        after = reached(read.position, read.revision, read.stored_at)
        await self._move(after)
        if read.ends:
            self._meter.ends_counted(len(read.ends), max(0.0, self._clock() - read.ends[-1].at))
        return after

    async def _add(self, key: str, ends: Sequence[CountedEnd], read: _Read) -> None:
        epoch = read.position.epoch
        try:
            await change_value(
                self._records, key, lambda record: with_ends(record, ends, epoch, read.revision)
            )
        except Unreadable as damage:
            log.warning("statistics are damaged", action="stats.unreadable", key=key, exc_info=damage)

    async def _move(self, after: CountPosition) -> None:
        """Never back: another gateway may be ahead."""

        def decide(found: CountPosition | None) -> CountPosition | None:
            if found is not None and (found.epoch, found.revision) >= (after.epoch, after.revision):
                return None
            return after

        await change_value(self._positions, POSITION, decide)

    async def begin(self, found: CountPosition | None, batch: FeedBatch[RunEnd]) -> CountPosition:
        """Store where counting begins, before anything is counted."""
        position = begun(found, batch.position.stream_created, batch.horizon)
        if found is None:
            log.info(
                "counting the runs that ended so far", action="stats.begun", up_to_revision=batch.horizon
            )
        elif position is not found:
            log.warning(
                "the run bucket was replaced; going on with what was stored later",
                action="stats.new_epoch",
                epoch=position.epoch,
            )
        if position is not found:
            await self._move(position)
        return position


class _Session:
    """From a stored position on: one task reads, another counts what was read."""

    def __init__(self, count: CountEnds, found: CountPosition | None) -> None:
        self._count = count
        self._found = found
        self._read = None if found is None else _Read(found)
        self.news = asyncio.Event()
        self.room = asyncio.Event()

    async def read(self, feed: Feed[RunEnd]) -> None:
        found = self._found
        position = None if found is None else FeedPosition(found.stream_created, Revision(found.revision))
        async for batch in feed.follow(position):
            if batch.is_reset:
                self._found = await self._count.begin(self._found, batch)
                self._read = _Read(self._found)
            await self._take(batch)

    async def _take(self, batch: FeedBatch[RunEnd]) -> None:
        assert self._read is not None  # noqa: S101 - the first batch of a new position is a reset
        for change in batch.changes:
            self._read.take(change)
        if self._read.is_news:
            self.news.set()
        if len(self._read.ends) >= ENDS_AT_ONCE:
            self.room.clear()
            await self.room.wait()

    def taken(self) -> _Read:
        """What was read. From now on, later ends are collected."""
        read = self._read
        assert read is not None  # noqa: S101 - there is news
        self._found = reached(read.position, read.revision, read.stored_at)
        self._read = _Read(self._found)
        self.news.clear()
        return read


# Who may change or remove an ended run


class CountedEnds:
    """Whether the end of a run is in the statistics."""

    def __init__(self, positions: Store[CountPosition], *, patience_sec: float = 15.0) -> None:
        self._positions = positions
        self._patience_sec = patience_sec
        self._known = 0

    async def require(self, run: Versioned[RunSnapshot], patience_sec: float | None = None) -> None:
        """Wait for it. Without statistics, e.g. before an upgrade is complete, there is nothing to wait for.

        Raises NotCountedYet.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + (self._patience_sec if patience_sec is None else patience_sec)
        pause = 0.02
        while not await self._is_counted(run.revision):
            if loop.time() >= until:
                raise NotCountedYet
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    async def _is_counted(self, revision: int) -> bool:
        if revision <= self._known:
            return True
        found = await self._positions.get(POSITION)
        if found is None:
            return True
        self._known = found.value.revision
        return revision <= self._known
