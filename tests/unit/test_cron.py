"""Cron expressions, time zones and clock changes: the table of vectors, and two second opinions."""

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from pathlib import Path
from time import process_time
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings, strategies as st

from pyoco_server.domain.schedules.cron import MACROS, parse_cron
from pyoco_server.domain.schedules.timing import Interval, Window, ZonedCron, newest, ticks_after, zone_of
from pyoco_server.errors import InvalidRequest
from support import cron_oracle
from support.tables import every_row

TABLE = Path(__file__).parent / "data/cron_vectors.txt"
LINES = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]


def read(line: str) -> tuple[str, str, datetime, list[datetime]]:
    zone, cron, start, expected = (part.strip() for part in line.split("|"))
    return (
        zone,
        cron,
        datetime.fromisoformat(start),
        [datetime.fromisoformat(tick) for tick in expected.split()],
    )


def next_ticks(cron: str, zone: str, after: datetime, count: int) -> list[datetime]:
    timing = ZonedCron(parse_cron(cron), ZoneInfo(zone))
    found = islice(ticks_after(timing, after.timestamp()), count)
    return [datetime.fromtimestamp(at, UTC) for at in found]


def test_the_table_has_at_least_two_hundred_vectors_in_the_zones_that_matter() -> None:
    zones = {read(line)[0] for line in LINES}
    assert len(LINES) >= 200
    assert zones >= {
        "Asia/Tokyo",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Africa/Casablanca",
    }


@every_row("line", LINES)
def test_ticks_are_those_of_the_table(line: str) -> None:
    zone, cron, start, expected = read(line)
    assert next_ticks(cron, zone, start, len(expected)) == expected


def test_the_table_is_what_a_patient_observer_of_a_clock_sees() -> None:
    """Minute by minute; every fifth vector, because patience takes time."""
    for line in LINES[::5]:
        zone, cron, start, expected = read(line)
        if expected[-1] - start < timedelta(days=10) and not cron.startswith("@"):
            assert cron_oracle.ticks(cron, zone, start, expected[-1]) == expected, line


def items(least: int, most: int) -> st.SearchStrategy[str]:
    value = st.integers(least, most)
    ranges = st.tuples(value, value).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, 20).map(lambda step: f"*/{step}" if step <= most - least + 1 else "*")
    return st.lists(st.one_of(value.map(str), ranges, steps), min_size=1, max_size=3).map(",".join)


CRONS = st.tuples(
    items(0, 59),
    items(0, 23),
    st.one_of(st.just("*"), st.just("L"), items(1, 28)),
    st.one_of(st.just("*"), items(1, 12)),
    st.one_of(st.just("*"), st.sampled_from(["1", "MON-FRI", "5L", "2#2", "0", "7"])),
).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(CRONS, st.integers(1_577_836_800, 2_208_988_800))
def test_without_clock_changes_ticks_are_those_of_cronsim(cron: str, at: int) -> None:
    start = datetime.fromtimestamp(at, UTC)
    assert next_ticks(cron, "UTC", start, 5) == list(islice(CronSim(cron, start), 5))


@settings(max_examples=60, deadline=None)
@given(
    CRONS,
    st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Beirut"]),
    st.integers(0, 20_000),
    st.integers(0, 6_000),
)
def test_counts_and_the_newest_ticks_are_those_of_a_walk(
    cron: str, zone: str, start: int, minutes: int
) -> None:
    timing = ZonedCron(parse_cron(cron), ZoneInfo(zone))
    first = datetime(2026, 3, 20, tzinfo=UTC).timestamp() + start * 60
    last = first + minutes * 60
    walked = list(takewhile(lambda at: at <= last, ticks_after(timing, first - 0.5)))
    assert timing.count(first, last) == len(walked)
    assert newest(timing, first, last, 7) == walked[-7:]


def test_a_month_of_seconds_is_counted_at_once() -> None:
    timing = ZonedCron(parse_cron("* * * * * *"), ZoneInfo("Europe/Berlin"))
    first = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
    assert timing.count(first, first + 30 * 86_400 - 1) == 30 * 86_400
    assert newest(timing, first, first + 30 * 86_400, 3)[-1] == first + 30 * 86_400


@pytest.mark.parametrize("hours", ["*", "0-23"])
def test_seconds_are_counted_as_quickly_as_days_also_where_clocks_change(hours: str) -> None:
    """A pause of years, or a backfill since 1970, is counted while requests wait."""
    zone, years = ZoneInfo("Europe/Berlin"), 3 * 365 * 86_400.0
    first = datetime(2022, 1, 1, tzinfo=zone).timestamp()

    def cost(cron: str) -> float:
        began = process_time()
        ZonedCron(parse_cron(cron), zone).count(first, first + years)
        return process_time() - began

    assert min(cost(f"* * {hours} * * *") for _ in range(3)) < 10 * min(cost("0 0 * * *") for _ in range(3))


@pytest.mark.parametrize("macro", MACROS)
def test_macros_are_known(macro: str) -> None:
    assert next_ticks(macro, "UTC", datetime(2026, 1, 1, 12, tzinfo=UTC), 3)


@every_row(
    ("cron", "problem"),
    [
        ("", "must have 5 fields"),
        ("* * * *", "it has 4"),
        ("0 0 1 1 * 2026 *", "it has 7"),
        ("0 0 1 1 * 2026", "day of week '2026'"),  # six fields have seconds in front, not years behind
        ("60 * * * *", "minute '60': 60 is not from 0 to 59"),
        ("* 24 * * *", "hour '24'"),
        ("* * 0 * *", "day of month '0'"),
        ("* * * 13 *", "month '13'"),
        ("* * * * 8", "day of week '8'"),
        ("5/15 * * * *", "a step needs a range or *: 5-59/15"),
        ("0 22-2 * * *", "the range ends before it starts; write 22-23,0-2"),
        ("0 0 ? * *", "day of month '?'"),
        ("0 0 15W * *", "day of month '15W'"),
        ("0 0 LW * *", "day of month 'LW'"),
        ("0 0 L-3 * *", "day of month 'L-3'"),
        ("0 0 * * L", "day of week 'L'"),
        ("0 0 * * 5#6", "a number from 1 to 5"),
        ("0 0 * * 5#0", "a number from 1 to 5"),
        ("*/0 * * * *", "the step must be from 1 to 60"),
        ("*/90 * * * *", "the step must be from 1 to 60"),
        ("-5 * * * *", "minute '-5'"),
        ("1,,2 * * * *", "minute ''"),
        ("0 0 * * MOM", "did you mean 'MON'?"),
        ("0 0 * febr *", "month 'febr'"),
        ("@dayly", "did you mean '@daily'?"),
        ("@reboot", "is not one of"),
        ("0 0 30 2 *", "never matches"),
        ("0 0 31 4,6,9,11 *", "never matches"),
        ("\u0661 * * * *", "minute"),
        ("0 " * 150, "at most 200 characters"),
    ],
)
def test_what_cannot_be_read_one_way_only_is_refused(cron: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_cron(cron)
    assert problem in refused.value.detail


@pytest.mark.parametrize("name", ["Europe/Berlim", "Mars/Base", "", "../etc/passwd", "Europe", "utc+9"])
def test_a_zone_that_is_not_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an IANA time zone"):
        zone_of(name)


def test_an_interval_counts_from_its_first_tick() -> None:
    timing = Interval(1_000.0, 0.7 + 0.8)
    assert list(islice(ticks_after(timing, 0), 4)) == [1_000.0, 1_001.5, 1_003.0, 1_004.5]
    assert timing.after(1_001.5) == 1_003.0
    assert timing.count(0, 1_004.4) == 3
    assert timing.count(1_001.5, 1_004.5) == 3
    assert timing.count(1_001.6, 1_002.9) == 0
    assert newest(timing, 0, 1_004.6, 2) == [1_003.0, 1_004.5]


def test_an_interval_does_not_drift() -> None:
    timing = Interval(1_700_000_000.123, 0.1 * 13)
    walked = list(islice(ticks_after(timing, 0), 10_000))
    assert walked[-1] == pytest.approx(1_700_000_000.123 + 9_999 * 1.3, abs=0.001)
    assert timing.count(walked[0], walked[-1]) == 10_000


def test_ticks_lie_in_their_window() -> None:
    window = Window(Interval(1_000.0, 10.0), starts_at=1_000.0, ends_at=1_020.0)
    assert list(ticks_after(window, 0)) == [1_000.0, 1_010.0, 1_020.0]
    assert window.count(0, 9_999) == 3
    assert newest(window, 0, 9_999, 2) == [1_010.0, 1_020.0]
