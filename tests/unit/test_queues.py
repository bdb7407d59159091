"""Whose turn is next, and the names of lanes."""

from collections import Counter
from itertools import pairwise

import pytest

from pyoco_server.domain.queues import (
    MAX_SHARES,
    WEIGHTS,
    Lane,
    Pause,
    QueueRecord,
    Turns,
    lane_named,
    share_of,
    with_lane,
    with_tenant,
)
from pyoco_server.domain.runs.model import Priority
from support.tables import every_row

PRIORITIES = [Lane("cpu", priority=priority) for priority in Priority]


def taken(turns: Turns, lanes: list[Lane], count: int) -> list[Lane]:
    """The next jobs while all of these lanes have some."""
    found = []
    for _ in range(count):
        lane = turns.first_of(lanes)
        assert lane is not None
        turns.took(lane)
        found.append(lane)
    return found


def test_priorities_share_a_tag_by_their_weights() -> None:
    counted = Counter(lane.priority for lane in taken(Turns(), PRIORITIES, 2_100))
    assert counted == {priority: 100 * weight for priority, weight in WEIGHTS.items()}


def test_low_never_starves() -> None:
    order = taken(Turns(), PRIORITIES, 210)
    places = [place for place, lane in enumerate(order) if lane.priority is Priority.LOW]
    assert max(later - earlier for earlier, later in pairwise(places)) <= 21


def test_what_arrives_in_an_empty_lane_is_next_however_long_it_was_empty() -> None:
    turns = Turns()
    high, _, low = PRIORITIES
    taken(turns, [low], 10_000)
    assert taken(turns, [high, low], 1) == [high]
    # Without credit: it does not catch up with what it missed.
    assert Counter(taken(turns, [high, low], 170))[high] == pytest.approx(160, abs=2)


def test_tags_and_tenants_take_turns_whatever_their_priorities() -> None:
    lanes = [
        Lane("cpu", 0, Priority.HIGH),
        Lane("cpu", 0),
        Lane("cpu", 1, Priority.LOW),
        Lane("gpu", 0, Priority.LOW),
    ]
    counted = Counter((lane.tag, lane.share) for lane in taken(Turns(), lanes, 400))
    assert counted == {("cpu", 0): 100, ("cpu", 1): 100, ("gpu", 0): 200}


def test_several_at_once_are_as_many_as_one_by_one() -> None:
    turns, single = Turns(), Turns()
    for _ in range(20):
        assert turns.take(PRIORITIES, 8) == Counter(taken(single, PRIORITIES, 8))
    assert turns.take([], 3) == {}


def test_a_lane_that_had_fewer_keeps_its_place() -> None:
    turns = Turns()
    high, normal, low = PRIORITIES
    for _ in range(100):
        for lane, count in turns.take(PRIORITIES, 21).items():
            turns.gave_back(lane, count if lane is high else 0)
    assert turns.first_of(PRIORITIES) is high
    assert turns.take([normal, low], 5) == {normal: 4, low: 1}


@every_row("share", [0, 1, 15])
@every_row("priority", list(Priority))
def test_a_lane_is_found_by_its_name(share: int, priority: Priority) -> None:
    lane = Lane("cpu", share, priority)
    assert lane_named("cpu", lane.name) == lane


@pytest.mark.parametrize("name", ["urgent", "t", "t0", "thigh", "high_", "t1.high", "T1"])
def test_a_lane_of_a_newer_version_is_none(name: str) -> None:
    assert lane_named("cpu", name) is None


def test_the_plain_lane_has_the_names_of_the_contract() -> None:
    assert (Lane("cpu").subject("pyoco.work"), Lane("cpu").durable) == (
        "pyoco.work.cpu",
        "pyoco_workers_cpu",
    )
    assert Lane("cpu", 3, Priority.HIGH).subject("pyoco.work") == "pyoco.work._t3high.cpu"


def test_no_two_lanes_have_the_same_consumer() -> None:
    """Tags may contain what separates a lane from its tag."""
    tags = ("high", "t1_high", "high_t1", "_high", "workers", "workers_high", "low")
    lanes = [Lane(tag, share, priority) for tag in tags for share in (0, 1, 11) for priority in Priority]
    assert len({lane.durable for lane in lanes}) == len(lanes)
    assert len({lane.subject("w") for lane in lanes}) == len(lanes)


def test_tenants_have_shares_in_the_order_of_their_first_job() -> None:
    record = QueueRecord(tag="cpu")
    for number in range(MAX_SHARES + 5):
        record = with_tenant(record, f"tenant-{number}")
    assert [share_of(record, f"tenant-{number}") for number in range(MAX_SHARES)] == list(range(MAX_SHARES))
    assert 0 <= share_of(record, "tenant-20") < MAX_SHARES, "it shares a lane"


def test_a_lane_is_added_once_and_the_plain_one_never() -> None:
    record = with_lane(QueueRecord(tag="cpu"), Lane("cpu", priority=Priority.HIGH))
    assert record.lanes == ("high",)
    assert with_lane(record, Lane("cpu", priority=Priority.HIGH)) is record
    assert with_lane(record, Lane("cpu")) is record
    assert record.all_lanes() == [Lane("cpu"), Lane("cpu", priority=Priority.HIGH)]


def test_a_pause_is_over_at_its_end() -> None:
    record = QueueRecord(tag="cpu", paused=Pause(since=1.0, until=10.0))
    assert record.pause_at(9.0) == record.paused
    assert record.pause_at(10.0) is None
    assert QueueRecord(tag="cpu", paused=Pause(since=1.0)).pause_at(1e9) is not None
