"""What is stored of ended runs: one record per tenant and minute, and one per tenant and hour.

Every record has the revision of the run bucket up to which its runs are counted. An end has a revision, too,
and is added to a record only if it is later. So adding the same ends again changes nothing, whoever does it
and wherever the one before stopped.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from pyoco_server.domain.codec import decoding
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.domain.stats.sketches import EMPTY, Sketch, bucket_of, counts_of, sketch_of

MAX_SERIES = 200
"""Combinations of flow, tag and status that a record keeps apart."""
MAX_ENTRIES = 40_000
"""Buckets of all sketches of a record, so that it is smaller than a message may be."""
OTHER = "(other)"
"""Flow and tag of the runs beyond these limits."""

DAY_SEC = 86_400.0


class Bucket(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"

    @property
    def seconds(self) -> int:
        return 60 if self is Bucket.MINUTE else 3600

    @property
    def kept_sec(self) -> float:
        return DAY_SEC if self is Bucket.MINUTE else 90 * DAY_SEC

    def start(self, at: float) -> int:
        return int(at // self.seconds) * self.seconds


class RunEnd(Struct, frozen=True, kw_only=True):
    """What statistics need of a stored run; the names are those of its snapshot."""

    flow_name: str
    status: RunStatus
    updated_at: float
    tag: str | None = None
    tenant_id: str | None = None
    attempt: int | None = None
    submitted_at: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    not_before: float | None = None
    waited_sec: float | None = None
    tries: tuple[Any, ...] = ()
    retried_as: str | None = None

    @property
    def waited(self) -> float | None:
        """Seconds from the time when the run could start to its first start.

        An older worker does not record it. Then it is known of a run that was started once.
        """
        if self.waited_sec is not None or self.start_time is None or self.submitted_at is None:
            return self.waited_sec
        if self.tries or (self.attempt or 1) > 1:
            return None
        return max(0.0, self.start_time - max(self.submitted_at, self.not_before or 0.0))

    @property
    def took(self) -> float | None:
        """Seconds from the start of the last try to the end of the run."""
        if self.start_time is None or self.end_time is None:
            return None
        return max(0.0, self.end_time - self.start_time)


def end_of(run: RunSnapshot) -> RunEnd:
    """The same as `decode_run_end` of its message."""
    return RunEnd(
        flow_name=run.flow_name,
        status=run.status,
        updated_at=run.updated_at,
        tag=run.tag,
        tenant_id=run.tenant_id,
        attempt=run.attempt,
        submitted_at=run.submitted_at,
        start_time=run.start_time,
        end_time=run.end_time,
        not_before=run.not_before,
        waited_sec=run.waited_sec,
        tries=run.tries,
        retried_as=run.retried_as,
    )


class CountedEnd(Struct, frozen=True):
    """An end of a run, with its place in the run bucket."""

    revision: int
    at: float
    end: RunEnd
    wait: int | None
    """Its bucket in sketches."""
    duration: int | None


def counted_end(revision: int, at: float, end: RunEnd) -> CountedEnd:
    """What is computed once, for its minute and its hour."""
    waited, took = end.waited, end.took
    return CountedEnd(
        revision,
        at,
        end,
        None if waited is None else bucket_of(waited),
        None if took is None else bucket_of(took),
    )


def ended_at(end: RunEnd, stored_at: float | None) -> float:
    """When it ended, by the clock of the store: those of workers may be minutes apart.

    A run that was linked to its retry was stored again later.
    """
    at = end.updated_at if end.end_time is None else end.end_time
    if stored_at is None:
        return at
    return stored_at if end.retried_as is None else min(at, stored_at)


class Tally(Struct, frozen=True, array_like=True):
    """Ended runs of a flow with a tag and a status."""

    flow: str
    tag: str
    status: RunStatus
    count: int
    waits: Sketch = EMPTY
    durations: Sketch = EMPTY

    @property
    def entries(self) -> int:
        return (len(self.waits) + len(self.durations)) // 2


class StatsRecord(Struct, frozen=True, kw_only=True):
    epoch: int = 0
    """Revisions are comparable within an epoch: until the run bucket is replaced."""
    revision: int = 0
    """Up to which ends are counted."""
    tallies: tuple[Tally, ...] = ()


def record_key(tenant_id: str | None, bucket: Bucket, start: int) -> str:
    return f"{bucket.value}.{tenant_id or '='}.{start}"


def by_record(ends: Iterable[CountedEnd], now: float) -> dict[str, list[CountedEnd]]:
    """Ends by the keys of their records; without those that are older than records are kept."""
    groups: dict[tuple[str | None, int], list[CountedEnd]] = {}
    for end in ends:
        groups.setdefault((end.end.tenant_id, Bucket.MINUTE.start(end.at)), []).append(end)
    found: dict[str, list[CountedEnd]] = {}
    for (tenant_id, minute), group in groups.items():
        for bucket in Bucket:
            if now - minute < bucket.kept_sec:
                found.setdefault(record_key(tenant_id, bucket, bucket.start(minute)), []).extend(group)
    return found


def with_ends(
    record: StatsRecord | None, ends: Iterable[CountedEnd], epoch: int, reached: int
) -> StatsRecord | None:
    """The record with those of the ends that it lacks; None if it has all of them.

    `ends` are all ends of this record up to the revision `reached`, as far as it may lack them.
    """
    known = record or StatsRecord()
    mark = (known.epoch, known.revision)
    new = [end for end in ends if (epoch, end.revision) > mark]
    if not new:
        return None
    tallies = {(tally.flow, tally.tag, tally.status): tally for tally in known.tallies}
    for series, group in _by_series(new, set(tallies)).items():
        tallies[series] = _added(tallies.get(series) or Tally(*series, 0), group)
    return StatsRecord(epoch=epoch, revision=reached, tallies=_bounded(list(tallies.values())))


_Series = tuple[str, str, RunStatus]


def _by_series(ends: Iterable[CountedEnd], known: set[_Series]) -> dict[_Series, list[CountedEnd]]:
    found: dict[_Series, list[CountedEnd]] = {}
    for counted in ends:
        end = counted.end
        series = (end.flow_name, end.tag or "", end.status)
        if series not in known and len(known) >= MAX_SERIES:
            series = (OTHER, OTHER, end.status)
        known.add(series)
        found.setdefault(series, []).append(counted)
    return found


def _added(tally: Tally, ends: Sequence[CountedEnd]) -> Tally:
    return Tally(
        tally.flow,
        tally.tag,
        tally.status,
        tally.count + len(ends),
        _with(tally.waits, [end.wait for end in ends]),
        _with(tally.durations, [end.duration for end in ends]),
    )


def _with(sketch: Sketch, buckets: Iterable[int | None]) -> Sketch:
    counts = Counter(bucket for bucket in buckets if bucket is not None)
    return sketch_of(counts + counts_of([sketch])) if counts else sketch


def _bounded(tallies: list[Tally]) -> tuple[Tally, ...]:
    """The smallest are put together while there are too many entries."""
    tallies.sort(key=lambda tally: (tally.flow == OTHER, tally.count), reverse=True)
    while sum(tally.entries for tally in tallies) > MAX_ENTRIES and tallies[-1].flow != OTHER:
        tallies = _with_other(tallies[:-1], tallies[-1])
    return tuple(tallies)


def _with_other(tallies: list[Tally], added: Tally) -> list[Tally]:
    others = [tally for tally in tallies if tally.flow == OTHER and tally.status is added.status]
    together = [*others, added]
    merged = Tally(
        OTHER,
        OTHER,
        added.status,
        sum(tally.count for tally in together),
        sketch_of(counts_of(tally.waits for tally in together)),
        sketch_of(counts_of(tally.durations for tally in together)),
    )
    return [merged, *(tally for tally in tallies if tally not in others)]


# How far the ends are counted


class CountPosition(Struct, frozen=True, kw_only=True):
    stream_created: str
    epoch: int = 1
    revision: int = 0
    """Up to which all ends are in their records."""
    stored_at: float = 0.0
    """When the last of them was stored."""
    since: float = 0.0
    """Ends stored until then were counted in an earlier epoch."""
    horizon: int = 0
    """The last revision when counting began: what is older was never counted."""

    def counts(self, end: RunEnd, revision: int, stored_at: float | None) -> bool:
        """Whether it is the end of a run that is not counted up to here.

        A run is linked to its retry after its end was counted, except before counting began.
        """
        if not end.status.is_terminal or revision <= self.revision:
            return False
        if stored_at is not None and stored_at <= self.since:
            return False
        return end.retried_as is None or revision <= self.horizon


def begun(found: CountPosition | None, stream_created: str, horizon: int) -> CountPosition:
    """Where to go on when the run bucket is read from its beginning.

    The bucket may be another one, or an earlier state of it, restored from a backup. Then revisions start
    again, and times show what was counted.
    """
    if found is None:
        return CountPosition(stream_created=stream_created, horizon=horizon)
    if found.stream_created == stream_created and found.revision <= horizon:
        return found
    return CountPosition(stream_created=stream_created, epoch=found.epoch + 1, since=found.stored_at)


def reached(found: CountPosition, revision: int, stored_at: float) -> CountPosition:
    return CountPosition(
        stream_created=found.stream_created,
        epoch=found.epoch,
        revision=revision,
        stored_at=max(found.stored_at, stored_at),
        since=found.since,
        horizon=found.horizon,
    )


decode_run_end = decoding(RunEnd, "run snapshot")
decode_stats = decoding(StatsRecord, "statistics")
decode_count_position = decoding(CountPosition, "position of the statistics")
