"""Read the statistics of ended runs."""

import asyncio

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.stats.series import Stats, StatsQuery, series_of, stretch_of
from pyoco_server.logs import get_logger
from pyoco_server.usecases.concurrency import HeavyWork
from pyoco_server.usecases.ports.gateway import StatsRecords
from pyoco_server.usecases.ports.stores import Clock

log = get_logger(__name__)

AT_ONCE = 1
"""Answers under way: 90 days of hours may be a hundred megabytes."""


class ReadStats:
    """From the store, not from the picture of this gateway: so the answer is the same at all of them."""

    def __init__(self, records: StatsRecords, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._heavy_work = HeavyWork()

    async def __call__(self, query: StatsQuery, since: float | None, until: float | None) -> Stats:
        """Raises InvalidListQuery."""
        start, end = stretch_of(query.bucket, since, until, self._clock())
        async with self._turns:
            stored = await self._records.between(query.tenant_id, query.bucket, start, end)
            series = await self._heavy_work(series_of, query, stored, _report)
        return Stats(query.by, query.bucket, start, end, series)


def _report(start: int, damage: Unreadable) -> None:
    log.error(
        "statistics are damaged; the answer is without them",
        action="stats.damaged",
        start=start,
        exc_info=damage,
    )
