"""Statistics: quantiles from sketches, records of ended runs, series."""

import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pyoco_server.domain import codec
from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.runs.changes import Claim, decide
from pyoco_server.domain.runs.model import FailureKind, Owner, RunFailure, RunSnapshot, RunStatus, RunTry
from pyoco_server.domain.stats.records import (
    MAX_ENTRIES,
    MAX_SERIES,
    OTHER,
    Bucket,
    CountedEnd,
    CountPosition,
    RunEnd,
    StatsRecord,
    begun,
    by_record,
    counted_end,
    decode_run_end,
    end_of,
    ended_at,
    with_ends,
)
from pyoco_server.domain.stats.series import MAX_SHOWN, StatsBy, StatsQuery, series_of, stretch_of
from pyoco_server.domain.stats.sketches import (
    BUCKETS,
    ERROR,
    LEAST_SEC,
    MOST_SEC,
    Quantiles,
    bucket_of,
    counts_of,
    quantiles_of,
    seconds_of,
    sketch_of,
)
from pyoco_server.errors import InvalidListQuery
from support.builders import NOW, OWNER, a_snapshot

SECONDS = st.floats(min_value=0, max_value=MOST_SEC)
ROUNDING = 1e-6
MESSAGE_BYTES = 1_048_576
"""What a NATS server accepts unless it is told otherwise."""


def exact(values: list[float], percent: int) -> float:
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


@given(st.lists(SECONDS, min_size=1, max_size=300), st.integers(1, 5))
def test_quantiles_are_within_the_error_of_the_exact_ones(values: list[float], parts: int) -> None:
    """However many sketches the values were spread over."""
    sketches = [sketch_of(Counter(map(bucket_of, values[part::parts]))) for part in range(parts)]
    found = quantiles_of(counts_of(sketches))
    for percent, shown in ((50, found.p50), (95, found.p95), (99, found.p99)):
        wanted = exact(values, percent)
        assert shown is not None
        assert shown == pytest.approx(wanted, rel=ERROR, abs=LEAST_SEC + ROUNDING)


def test_quantiles_of_nothing_are_none() -> None:
    assert quantiles_of(counts_of([])) == Quantiles(None, None, None)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, LEAST_SEC, MOST_SEC, math.inf])
def test_every_number_has_a_bucket(value: float) -> None:
    assert 0 <= bucket_of(value) < BUCKETS
    assert seconds_of(bucket_of(value)) <= MOST_SEC * (1 + ERROR)


# Records


def end(
    revision: int, at: float = NOW, status: RunStatus = RunStatus.COMPLETED, **changed: Any
) -> CountedEnd:
    fields = {"flow_name": "f", "tag": "cpu", "submitted_at": at - 3, "start_time": at - 2, "end_time": at}
    return counted_end(revision, at, RunEnd(status=status, updated_at=at, **{**fields, **changed}))


def count(record: StatsRecord | None) -> int:
    assert record is not None
    return sum(tally.count for tally in record.tallies)


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 30))
def test_ends_are_counted_once_in_whatever_pieces_they_come(stops: list[int], total: int) -> None:
    """A piece begins at the stored position or earlier, and ends where its reader stopped."""
    ends = [end(revision) for revision in range(1, total + 1)]
    record: StatsRecord | None = None
    for stop in [*stops, total]:
        piece = [one for one in ends if one.revision <= stop]
        record = with_ends(record, piece, 1, stop) or record
    assert count(record) == total


def test_a_reader_of_an_earlier_epoch_adds_nothing() -> None:
    record = with_ends(None, [end(5)], 2, 5)
    assert with_ends(record, [end(900)], 1, 900) is None
    assert count(with_ends(record, [end(1)], 3, 1)) == 2


def test_beyond_its_limit_a_record_puts_runs_together() -> None:
    """None of them is lost, and their status is kept."""
    ends = [end(number, flow_name=f"flow-{number}") for number in range(1, 2 * MAX_SERIES)]
    record = with_ends(None, [*ends, end(1000, status=RunStatus.FAILED, flow_name="late")], 1, 1000)
    assert record is not None
    assert count(record) == 2 * MAX_SERIES
    assert len(record.tallies) == MAX_SERIES + 2
    others = {tally.status: tally.count for tally in record.tallies if tally.flow == OTHER}
    assert others == {RunStatus.COMPLETED: MAX_SERIES - 1, RunStatus.FAILED: 1}


def test_a_record_of_very_different_runs_fits_into_a_message() -> None:
    ends = [
        end(
            1 + flow * BUCKETS + number,
            flow_name=f"{'flow' * 16}-{flow}",
            start_time=NOW - seconds_of(number),
            submitted_at=NOW - 2 * seconds_of(number),
        )
        for flow in range(MAX_SERIES)
        for number in range(BUCKETS)
    ]
    record = with_ends(None, ends, 1, len(ends))
    assert record is not None
    assert count(record) == len(ends)
    assert sum(tally.entries for tally in record.tallies) <= MAX_ENTRIES
    assert len(codec.encode(record)) < MESSAGE_BYTES / 2


def test_an_end_belongs_to_a_minute_and_an_hour_while_these_are_kept() -> None:
    ended = end(1, tenant_id="acme")
    minute, hour = int(NOW // 60 * 60), int(NOW // 3600 * 3600)
    assert by_record([ended], NOW) == {f"minute.acme.{minute}": [ended], f"hour.acme.{hour}": [ended]}
    assert by_record([ended], NOW + 86_400) == {f"hour.acme.{hour}": [ended]}
    assert by_record([ended], NOW + 90 * 86_400) == {}


def test_ends_of_an_hour_are_in_its_record_and_in_those_of_their_minutes() -> None:
    hour = NOW // 3600 * 3600
    ends = [
        end(n, hour + at, tenant_id=of)
        for n, (at, of) in enumerate([(1, "a"), (59, "a"), (60, "a"), (2, "b")])
    ]
    found = by_record(ends, NOW + 3600)
    assert {key: [one.revision for one in some] for key, some in found.items()} == {
        f"minute.a.{int(hour)}": [0, 1],
        f"minute.a.{int(hour) + 60}": [2],
        f"hour.a.{int(hour)}": [0, 1, 2],
        f"minute.b.{int(hour)}": [3],
        f"hour.b.{int(hour)}": [3],
    }


# What is counted of a run


def snapshot_as_end(run: RunSnapshot) -> RunEnd:
    return decode_run_end(codec.encode(run))


def test_a_run_is_counted_the_same_whether_its_message_or_its_snapshot_was_read() -> None:
    failure = RunFailure(kind=FailureKind.ERROR, message="it failed")
    fields: dict[str, Any] = {
        "flow_name": "etl",
        "updated_at": NOW + 9,
        "tag": "gpu",
        "tenant_id": "acme",
        "attempt": 2,
        "submitted_at": NOW,
        "start_time": NOW + 5,
        "end_time": NOW + 8,
        "not_before": NOW + 1,
        "waited_sec": 3.0,
        "tries": (RunTry(n=1, started_at=NOW, ended_at=NOW + 1, worker_id="w", failure=failure),),
        "retried_as": "another",
    }
    assert {*fields, "status"} == set(RunEnd.__struct_fields__)
    run = a_snapshot(RunStatus.FAILED, **fields)
    found = end_of(run)
    assert {name: getattr(found, name) for name in fields} == fields
    assert replace(found, tries=()) == replace(snapshot_as_end(run), tries=())


def test_the_wait_ends_with_the_first_start_and_leaves_out_a_delay() -> None:
    first = Owner("w", "i", 1)
    run = a_snapshot(submitted_at=NOW, not_before=NOW + 60)
    started = decide(run, Claim(first), NOW + 65)
    assert isinstance(started, RunSnapshot)
    again = decide(started, Claim(OWNER), NOW + 500)  # the worker died
    assert isinstance(again, RunSnapshot)
    assert (started.waited_sec, again.waited_sec) == (5.0, 5.0)
    assert snapshot_as_end(again).waited == 5.0


@pytest.mark.parametrize(
    ("changed", "waited"),
    [
        ({}, 10.0),
        ({"not_before": NOW + 4}, 6.0),
        ({"attempt": 2}, None),
        ({"submitted_at": None}, None),
        ({"start_time": None}, None),
        ({"start_time": NOW - 5}, 0.0),
        ({"waited_sec": 1.5, "attempt": 3}, 1.5),
    ],
)
def test_the_wait_of_a_run_of_an_older_worker(changed: dict[str, Any], waited: float | None) -> None:
    run = a_snapshot(**{"submitted_at": NOW, "start_time": NOW + 10, **changed})
    assert snapshot_as_end(run).waited == waited


def test_the_duration_is_that_of_the_last_try() -> None:
    assert end(1).end.took == 2.0
    assert end(1, start_time=None).end.took is None
    assert end(1, start_time=NOW + 1).end.took == 0.0


def test_a_run_ended_when_its_end_was_stored() -> None:
    """Whatever the clock of its worker showed."""
    ended = end(1).end
    assert ended_at(ended, None) == NOW
    assert ended_at(ended, NOW + 300) == NOW + 300
    linked = msgspec.structs.replace(ended, retried_as="x")
    assert (ended_at(linked, NOW + 300), ended_at(linked, NOW - 1)) == (NOW, NOW - 1)


# Positions


def test_a_bucket_that_was_replaced_begins_an_epoch() -> None:
    """What was counted is known by its time: a backup may have brought it back."""
    found = CountPosition(stream_created="a", revision=100, stored_at=NOW)
    assert begun(found, "a", 150) is found
    for created, horizon in (("b", 150), ("a", 50)):
        position = begun(found, created, horizon)
        assert (position.epoch, position.revision) == (2, 0)
        assert not position.counts(end(1).end, 1, NOW)
        assert position.counts(end(1).end, 1, NOW + 1)


def test_a_link_to_a_retry_is_no_second_end() -> None:
    position = CountPosition(stream_created="a", revision=3, horizon=10)
    linked = end(1, retried_as="x").end
    assert position.counts(linked, 10, NOW), "nobody counted before"
    assert not position.counts(linked, 11, NOW)
    assert not position.counts(linked, 3, NOW)
    assert not position.counts(end(1, status=RunStatus.RUNNING).end, 5, NOW)


# Series


def stored(*ends: CountedEnd) -> bytes:
    record = with_ends(None, ends, 1, 10_000)
    assert record is not None
    return codec.encode(record)


def fail(_start: int, error: Unreadable) -> None:
    raise error


def test_records_of_several_tenants_are_put_together() -> None:
    records = [(60, stored(end(1))), (60, stored(end(1), end(2))), (120, stored(end(1)))]
    (series,) = series_of(StatsQuery(), records, fail)
    assert [(point.at, point.count) for point in series.points] == [(60.0, 3), (120.0, 1)]


def test_the_smallest_of_too_many_series_are_one() -> None:
    flows = [end(number, flow_name=f"f{number // 2:03}") for number in range(2, 2 * MAX_SHOWN + 20)]
    records = [(60 * (1 + start // 50), stored(*flows[start : start + 50])) for start in range(0, 218, 50)]
    series = series_of(StatsQuery(by=StatsBy.FLOW), records, fail)
    assert len(series) == MAX_SHOWN + 1
    assert series[0].key == OTHER
    assert sum(point.count for one in series for point in one.points) == len(flows)


def test_a_damaged_record_is_reported_and_left_out() -> None:
    damaged: list[int] = []
    series = series_of(
        StatsQuery(), [(60, b"{"), (120, stored(end(1)))], lambda start, _: damaged.append(start)
    )
    assert ([point.at for point in series[0].points], damaged) == ([120.0], [60])


def test_the_time_shown_begins_with_a_bucket_that_is_kept() -> None:
    assert stretch_of(Bucket.MINUTE, None, None, 7230.0) == (3600.0, 7230.0)
    assert stretch_of(Bucket.MINUTE, 0, None, 100_000.0) == (13_560.0, 100_000.0)
    assert stretch_of(Bucket.HOUR, 7300, 9000, 100_000.0) == (7200.0, 9000)
    with pytest.raises(InvalidListQuery, match="since"):
        stretch_of(Bucket.HOUR, 9000, 9000, 100_000.0)
