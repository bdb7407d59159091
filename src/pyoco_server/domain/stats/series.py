"""Series of ended runs, from stored records: what `GET /stats` answers."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import groupby
from operator import itemgetter

from msgspec import Struct

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.stats.records import OTHER, Bucket, Tally, decode_stats
from pyoco_server.domain.stats.sketches import Quantiles, counts_of, quantiles_of
from pyoco_server.errors import InvalidListQuery

MAX_SHOWN = 100
"""Series of an answer; the runs of all others are in one more."""
_SHOWN = {Bucket.MINUTE: 3600.0, Bucket.HOUR: 86_400.0}
"""Stretch of time without a `since`."""


class StatsBy(StrEnum):
    STATUS = "status"
    FLOW = "flow"
    TAG = "tag"


class EndedStatus(StrEnum):
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StatsPoint(Struct, frozen=True):
    """The runs that ended in a minute or hour. `at`: its start, in Unix seconds."""

    at: float
    count: int
    wait: Quantiles
    duration: Quantiles


class StatsSeries(Struct, frozen=True):
    """Without points for minutes or hours in which no run ended."""

    key: str
    points: list[StatsPoint]


class Stats(Struct, frozen=True):
    """Runs that ended, by status, flow or tag, per minute or hour. Times are Unix seconds."""

    by: StatsBy
    bucket: Bucket
    since: float
    until: float
    series: list[StatsSeries]


class StatsQuery(Struct, frozen=True, kw_only=True):
    by: StatsBy = StatsBy.STATUS
    bucket: Bucket = Bucket.MINUTE
    tenant_id: str | None = None
    """None: all tenants (auth is off)."""
    flow: str | None = None
    tag: str | None = None
    status: RunStatus | None = None

    def matches(self, tally: Tally) -> bool:
        return (
            self.flow in (None, tally.flow)
            and self.tag in (None, tally.tag)
            and self.status in (None, tally.status)
        )

    def key_of(self, tally: Tally) -> str:
        if self.by is StatsBy.STATUS:
            return tally.status.value
        return tally.flow if self.by is StatsBy.FLOW else tally.tag


def stretch_of(bucket: Bucket, since: float | None, until: float | None, now: float) -> tuple[float, float]:
    """From the start of a bucket, not longer ago than buckets are kept. Raises InvalidListQuery."""
    end = now if until is None else until
    wanted = min(end, now) - _SHOWN[bucket] if since is None else since
    if wanted >= end:
        raise InvalidListQuery("invalid list query: since: must be earlier than until")
    oldest = min(now - bucket.kept_sec, end)
    return float(bucket.start(max(wanted, oldest))), end


Stored = tuple[int, bytes]
"""The start of a bucket and the record of a tenant."""


def series_of(
    query: StatsQuery, stored: Sequence[Stored], on_damage: Callable[[int, Unreadable], None]
) -> list[StatsSeries]:
    """Records of one start stand together. `on_damage` gets the start of a record that is not readable."""
    series = _points(stored, query, query.key_of, on_damage)
    if len(series) > MAX_SHOWN:
        counts = {key: sum(point.count for point in points) for key, points in series.items()}
        shown = set(sorted(counts.keys() - {OTHER}, key=lambda key: (-counts[key], key))[:MAX_SHOWN])

        def key_of(tally: Tally) -> str:
            key = query.key_of(tally)
            return key if key in shown else OTHER

        series = _points(stored, query, key_of, lambda _start, _error: None)
    return [StatsSeries(key, series[key]) for key in sorted(series)]


def _points(
    stored: Sequence[Stored],
    query: StatsQuery,
    key_of: Callable[[Tally], str],
    on_damage: Callable[[int, Unreadable], None],
) -> dict[str, list[StatsPoint]]:
    """One record is decoded at a time: they are many times as large as the points."""
    series: dict[str, list[StatsPoint]] = defaultdict(list)
    for start, records in groupby(stored, key=itemgetter(0)):
        tallies: dict[str, list[Tally]] = defaultdict(list)
        for _, data in records:
            try:
                found = decode_stats(data).tallies
            except Unreadable as error:
                on_damage(start, error)
                continue
            for tally in filter(query.matches, found):
                tallies[key_of(tally)].append(tally)
        for key, together in tallies.items():
            series[key].append(_point(start, together))
    return series


def _point(start: int, tallies: list[Tally]) -> StatsPoint:
    return StatsPoint(
        at=float(start),
        count=sum(tally.count for tally in tallies),
        wait=quantiles_of(counts_of(tally.waits for tally in tallies)),
        duration=quantiles_of(counts_of(tally.durations for tally in tallies)),
    )


STATS_ANSWERS = (Quantiles, StatsPoint, StatsSeries, Stats)
