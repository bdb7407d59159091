"""What a schedule does with its ticks: overlap, outages, pauses, and exactly one record each."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pyoco_server.domain.schedules.model import (
    PAGE,
    CatchUp,
    Definition,
    Due,
    Overlap,
    Schedule,
    Target,
    Tick,
    TickPage,
    TickStatus,
    changed,
    id_of,
    jitter_of,
    new_schedule,
    replace,
    timing,
)
from pyoco_server.domain.schedules.ticks import (
    MAX_CATCH_UP,
    Placed,
    RunEnd,
    attend,
    backfilled,
    filed,
    paused,
    resumed,
    settled,
    ticks_of_pause,
    to_cancel,
    triggered,
)
from pyoco_server.errors import InvalidRequest
from support.tables import every_row

NOW = 1_800_000_000.0
STARTED, SKIPPED, MISSED = TickStatus.STARTED, TickStatus.SKIPPED, TickStatus.MISSED


def definition(**fields: Any) -> Definition:
    if "cron" not in fields:
        fields.setdefault("every_sec", 60.0)
    return Definition(target=fields.pop("target", Target(flow="f")), timezone="UTC", **fields)


def schedule(**fields: Any) -> Schedule:
    return new_schedule("s", definition(**fields), tenant_id=None, api_key_id=None, incarnation="i", now=NOW)


def told(ticks: Iterable[Tick]) -> list[tuple[float, str, str | None, int]]:
    """Due times from the first on, statuses, reasons and counts."""
    return [(tick.due_at - NOW, tick.status.value, tick.reason, tick.count) for tick in ticks]


def ended(found: Schedule, end: RunEnd = RunEnd.COMPLETED) -> Mapping[str, RunEnd]:
    return {run.id: end for run in found.active}


def all_placed(found: Schedule) -> Schedule:
    return settled(found, {run_id: Placed() for run_id in found.placing})


def test_a_tick_starts_a_run_when_it_is_due_and_not_before() -> None:
    new = schedule()
    assert attend(new, {}, NOW + 59.9) is new
    found = attend(new, {}, NOW + 60.1)
    assert told(found.ticks) == [(60, "STARTED", None, 1)]
    assert found.next_due_at == NOW + 120
    assert found.to_place == (Due(NOW + 60),)
    assert found.ticks[0].run_id == id_of(new, Due(NOW + 60))
    assert found.ticks[0].late_sec == 0.1
    assert attend(found, {}, NOW + 60.2) is found


def test_the_id_of_a_run_follows_from_the_schedule_its_incarnation_and_the_tick() -> None:
    new = schedule()
    others = [new, replace(new, incarnation="j"), replace(new, tenant_id="t"), replace(new, id="r")]
    assert len({id_of(one, Due(NOW)) for one in others} | {id_of(new, Due(NOW + 1))}) == 5
    assert id_of(new, Due(NOW)) == id_of(replace(new, version=7), Due(NOW))


@pytest.mark.parametrize(
    ("overlap", "second", "third"),
    [
        (Overlap.SKIP, [(120, "SKIPPED", "overlap", 1)], [(180, "SKIPPED", "overlap", 1)]),
        (Overlap.QUEUE, [], [(180, "SKIPPED", "overlap", 1)]),
        (Overlap.CANCEL_RUNNING, [], [(120, "SKIPPED", "overlap", 1)]),
        (Overlap.ALLOW, [(120, "STARTED", None, 1)], [(180, "STARTED", None, 1)]),
    ],
)
def test_what_a_tick_does_while_a_run_is_active(
    overlap: Overlap, second: list[Any], third: list[Any]
) -> None:
    one = attend(schedule(overlap=overlap), {}, NOW + 60)
    two = attend(one, {}, NOW + 120)
    three = attend(two, {}, NOW + 180)
    assert told(two.ticks[1:]) == second
    assert told(three.ticks[len(two.ticks) :]) == third


def test_a_queued_tick_starts_when_the_run_has_ended() -> None:
    two = attend(attend(schedule(overlap=Overlap.QUEUE), {}, NOW + 60), {}, NOW + 120)
    assert two.waiting == (Due(NOW + 120),)
    over = attend(two, ended(two), NOW + 130)
    assert told(over.ticks[1:]) == [(120, "STARTED", None, 1)]
    assert over.ticks[1].late_sec == 10
    assert not over.waiting


def test_cancel_running_cancels_what_runs_and_the_newest_tick_follows() -> None:
    one = attend(schedule(overlap=Overlap.CANCEL_RUNNING), {}, NOW + 60)
    assert to_cancel(one) == ()
    two = attend(one, {}, NOW + 120)
    assert to_cancel(two) == two.active
    three = attend(two, {}, NOW + 180)
    over = attend(three, ended(three, RunEnd.CANCELLED), NOW + 181)
    assert told(over.ticks) == [
        (60, "STARTED", None, 1),
        (120, "SKIPPED", "overlap", 1),
        (180, "STARTED", None, 1),
    ]


# Outages


def after_outage(catch_up: CatchUp, seconds: float, **fields: Any) -> Schedule:
    return attend(schedule(catch_up=catch_up, **fields), {}, NOW + seconds)


def test_after_an_outage_the_latest_tick_is_started() -> None:
    assert told(after_outage(CatchUp.LATEST, 250).ticks) == [
        (60, "MISSED", None, 1),
        (120, "MISSED", None, 1),
        (180, "MISSED", None, 1),
        (240, "STARTED", None, 1),
    ]


def test_after_an_outage_nothing_late_is_started_if_so_wanted() -> None:
    assert told(after_outage(CatchUp.NONE, 182).ticks) == [
        (60, "MISSED", None, 1),
        (120, "MISSED", None, 1),
        (180, "STARTED", None, 1),
    ]
    assert {tick.status for tick in after_outage(CatchUp.NONE, 230).ticks} == {MISSED}


def test_after_an_outage_all_ticks_are_started_one_after_the_other() -> None:
    found = after_outage(CatchUp.ALL, 250)
    for second in range(3):
        found = attend(found, ended(found), NOW + 251 + second)
    assert told(found.ticks) == [(60.0 * n, "STARTED", None, 1) for n in (1, 2, 3, 4)]
    assert len(found.active) == 1


def test_after_an_outage_all_ticks_are_started_at_once_if_they_may_overlap() -> None:
    found = after_outage(CatchUp.ALL, 250, overlap=Overlap.ALLOW)
    assert [tick.status for tick in found.ticks] == [STARTED] * 4


def test_at_most_a_hundred_ticks_are_caught_up() -> None:
    found = after_outage(CatchUp.ALL, 60 * 130 + 30, overlap=Overlap.ALLOW)
    assert told(found.ticks[:1]) == [(60, "SKIPPED", "limit", 30)]
    assert [tick.status for tick in found.ticks[1:]] == [STARTED] * MAX_CATCH_UP


def test_ticks_outside_the_window_are_one_record() -> None:
    found = after_outage(CatchUp.LATEST, 610, catch_up_window_sec=150.0)
    assert told(found.ticks) == [
        (60, "SKIPPED", "outside window", 7),
        (480, "MISSED", None, 1),
        (540, "MISSED", None, 1),
        (600, "STARTED", None, 1),
    ]
    assert found.ticks[0].last_due_at == NOW + 420


def test_an_outage_of_a_year_is_decided_quickly() -> None:
    found = after_outage(CatchUp.LATEST, 365 * 86_400, cron="* * * * * *", catch_up_window_sec=86_400.0)
    assert sum(tick.count for tick in found.ticks) == 365 * 86_400
    assert len(found.ticks) == 102


def test_a_tick_that_is_a_little_late_is_no_outage() -> None:
    found = attend(schedule(every_sec=1.0, overlap=Overlap.ALLOW), {}, NOW + 4.5)
    assert told(found.ticks) == [(float(n), "STARTED", None, 1) for n in (1, 2, 3, 4)]


# Pauses


def test_a_pause_is_one_record_and_nothing_is_caught_up() -> None:
    pausing = paused(schedule(catch_up=CatchUp.ALL), "holiday", NOW + 30)
    assert attend(pausing, {}, NOW + 70) is pausing
    assert told(ticks_of_pause(pausing, NOW + 200)) == [(60, "SKIPPED", "paused", 3)]
    found = resumed(pausing, NOW + 250)
    assert told(found.ticks) == [(60, "SKIPPED", "paused", 4)]
    assert found.next_due_at == NOW + 300
    assert (found.paused_at, found.paused_reason) == (None, None)


def test_a_pause_without_a_tick_leaves_no_record() -> None:
    found = resumed(paused(schedule(), None, NOW + 10), NOW + 20)
    assert found.ticks == ()
    assert found.next_due_at == NOW + 60


def test_a_waiting_tick_is_not_started_after_a_pause() -> None:
    two = attend(attend(schedule(overlap=Overlap.QUEUE), {}, NOW + 60), {}, NOW + 120)
    pausing = paused(two, None, NOW + 121)
    assert told(pausing.ticks[1:]) == [(120, "SKIPPED", "paused", 1)]
    assert attend(pausing, ended(pausing), NOW + 122).to_place == two.to_place


def test_failures_in_a_row_pause_a_schedule_and_a_success_resets_the_count() -> None:
    found = schedule(pause_after_failures=2)
    for number, end in enumerate([RunEnd.FAILED, RunEnd.COMPLETED, RunEnd.FAILED, RunEnd.CANCELLED], 1):
        found = attend(found, {}, NOW + 60 * number)
        found = attend(found, ended(found, end), NOW + 60 * number + 1)
        assert not found.is_paused
    found = attend(found, {}, NOW + 300)
    found = attend(found, ended(found, RunEnd.FAILED), NOW + 301)
    assert found.paused_reason == "2 runs in a row failed"
    assert resumed(found, NOW + 302).failures == 0


# By hand


def test_a_trigger_ignores_overlap_and_pause() -> None:
    found = triggered(
        paused(attend(schedule(), {}, NOW + 60), None, NOW + 61), Due(NOW + 62, "x", manual=True), NOW + 62
    )
    assert found.ticks[-1].manual
    assert found.ticks[-1].status is STARTED
    assert found.next_due_at == NOW + 120
    assert len(found.active) == 2


def test_a_backfill_runs_one_after_the_other() -> None:
    due = [Due(NOW - 120.0), Due(NOW - 60.0)]
    found = backfilled(schedule(overlap=Overlap.CANCEL_RUNNING), due, NOW)
    assert told(found.ticks) == [(-120, "STARTED", None, 1)]
    assert to_cancel(found) == ()
    found = attend(found, ended(found), NOW + 1)
    assert told(found.ticks[1:]) == [(-60, "STARTED", None, 1)]


def test_a_backfill_of_a_paused_schedule_goes_on_to_its_end() -> None:
    found = backfilled(paused(schedule(), None, NOW), [Due(NOW - 120.0), Due(NOW - 60.0)], NOW)
    assert told(attend(found, ended(found), NOW + 1).ticks[1:]) == [(-60, "STARTED", None, 1)]


# Changes


def test_an_equal_definition_changes_nothing() -> None:
    new = schedule()
    assert changed(new, definition(), "other key", NOW + 50) is new


def test_another_target_keeps_the_rhythm() -> None:
    found = changed(schedule(), definition(target=Target(flow="g")), None, NOW + 50)
    assert (found.version, found.next_due_at) == (2, NOW + 60)


def test_another_timing_counts_from_the_change() -> None:
    found = changed(schedule(), definition(every_sec=30.0), None, NOW + 50)
    assert (found.version, found.next_due_at) == (2, NOW + 80)


def test_a_changed_schedule_does_not_repeat_a_tick() -> None:
    found = attend(schedule(), {}, NOW + 60)
    again = changed(found, definition(every_sec=30.0, starts_at=NOW + 60), None, NOW + 61)
    assert again.next_due_at == NOW + 90


def test_a_change_keeps_a_pause() -> None:
    found = changed(paused(schedule(), "why", NOW), definition(every_sec=30.0), None, NOW + 1)
    assert found.paused_reason == "why"


def test_the_first_tick_is_at_starts_at() -> None:
    assert schedule(starts_at=NOW + 5).next_due_at == NOW + 5
    assert schedule(starts_at=NOW - 1).next_due_at == NOW - 1
    assert schedule(starts_at=NOW - 100).next_due_at == NOW + 20


def test_after_ends_at_there_is_no_tick() -> None:
    found = attend(schedule(starts_at=NOW, ends_at=NOW + 60), {}, NOW)
    found = attend(found, ended(found), NOW + 60)
    assert [tick.status for tick in found.ticks] == [STARTED, STARTED]
    assert found.next_due_at is None
    assert attend(found, {}, NOW + 9_999) is found


@every_row(
    ("fields", "problem"),
    [
        ({"every_sec": None}, "cron, every_sec: give exactly one"),
        ({"every_sec": 60.0, "cron": "* * * * *"}, "cron, every_sec: give exactly one"),
        ({"every_sec": 0.5}, "every_sec: must be from 1"),
        ({"ends_at": NOW - 1}, "ends_at: is over"),
        ({"starts_at": NOW + 9, "ends_at": NOW + 8}, "ends_at: must not be before starts_at"),
        ({"cron": "0 0 1 1 *", "ends_at": NOW + 60}, "no tick lies between starts_at and ends_at"),
        ({"jitter_sec": -1.0}, "jitter_sec"),
        ({"catch_up_window_sec": 1e12}, "catch_up_window_sec"),
        ({"pause_after_failures": 0}, "pause_after_failures: must be at least 1"),
        ({"description": "x" * 2_001}, "description"),
        ({"target": Target()}, "target: give exactly one of flow, graph and template"),
        ({"target": Target(flow="f", graph="g")}, "target: give exactly one"),
        ({"target": Target(flow="f", input={"a": 1})}, "target.input: not with flow"),
        ({"target": Target(graph="g", params={"a": 1})}, "target.params: not with graph"),
        ({"target": Target(template="a.b")}, "target.template: must match"),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        schedule(**fields)
    assert problem in refused.value.detail


# Jitter


def test_jitter_delays_ticks_and_loses_none() -> None:
    found = schedule(jitter_sec=20.0, overlap=Overlap.ALLOW)
    assert found.fires_at is not None
    assert NOW + 60 < found.fires_at < NOW + 80
    assert attend(found, {}, found.fires_at - 0.01) is found
    for number in range(1, 20):
        fires_at = found.fires_at
        assert fires_at is not None
        found = attend(found, {}, fires_at)
        assert found.ticks[-1].due_at == NOW + 60 * number
        assert found.ticks[-1].fired_at == NOW + 60 * number + jitter_of(found, NOW + 60 * number)


# The history


def test_the_history_is_filed_in_pages_and_the_newest_stays() -> None:
    found = schedule(every_sec=1.0, overlap=Overlap.ALLOW)
    pages: list[tuple[int, TickPage]] = []
    for second in range(1, 3 * PAGE + 2):
        found = all_placed(attend(found, {}, NOW + second))
        part = filed(found)
        found = part.schedule
        pages += part.pages
        assert found.ticks
    assert [number for number, _ in pages] == [0, 1, 2]
    history = [tick for _, page in pages for tick in page.ticks] + list(found.ticks)
    assert [tick.due_at - NOW for tick in history] == list(range(1, 3 * PAGE + 2))


def test_what_may_still_change_is_not_filed() -> None:
    found = attend(schedule(catch_up=CatchUp.LATEST), {}, NOW + 60 * 80)
    assert filed(found).pages == ()
    assert len(filed(all_placed(found)).pages) == 2


def test_a_run_that_cannot_be_placed_is_a_skipped_tick_with_its_reason() -> None:
    found = attend(schedule(target=Target(graph="g")), {}, NOW + 60)
    assert found.ticks[0].execution_id is not None
    done = settled(found, {found.ticks[0].execution_id: Placed(problem="graph g not found")})
    assert told(done.ticks) == [(60, "SKIPPED", "graph g not found", 1)]
    assert (done.active, done.to_place, done.ticks[0].execution_id) == ((), (), None)


def test_what_could_not_be_placed_yet_is_left_to_do() -> None:
    found = attend(schedule(every_sec=1.0, overlap=Overlap.ALLOW), {}, NOW + 2.5)
    first, second = found.to_place
    half = settled(found, {id_of(found, first): Placed()}, is_complete=False)
    assert (half.to_place, half.is_settled) == ((second,), False)
    whole = settled(half, {id_of(found, second): Placed()})
    assert (whole.to_place, whole.is_settled) == ((), True)


def test_a_template_of_one_step_is_a_run() -> None:
    found = attend(schedule(target=Target(template="t")), {}, NOW + 60)
    run_id = found.ticks[0].execution_id
    assert run_id is not None
    done = settled(found, {run_id: Placed(is_execution=False)})
    assert (done.ticks[0].run_id, done.ticks[0].execution_id) == (run_id, None)
    assert not done.active[0].is_execution


# Every tick has exactly one record, whatever happens when.

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait", "wait", "wait", "sleep", "end", "fail", "pause", "resume", "trigger", "put"]
        ),
        st.floats(0.01, 400),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(
    STEPS,
    st.sampled_from(Overlap),
    st.sampled_from(CatchUp),
    st.sampled_from([0.0, 7.0, 200.0]),
    st.sampled_from([30.0, 300.0, 86_400.0]),
    st.sampled_from([{"every_sec": 7.0}, {"cron": "*/2 * * * *"}, {"cron": "*/20 * * * * *"}]),
)
def test_every_tick_has_exactly_one_record(
    steps: list[tuple[str, float]],
    overlap: Overlap,
    catch_up: CatchUp,
    jitter: float,
    window: float,
    times: dict[str, Any],
) -> None:
    wanted = definition(
        overlap=overlap,
        catch_up=catch_up,
        jitter_sec=jitter,
        catch_up_window_sec=window,
        pause_after_failures=3,
        **times,
    )
    found = new_schedule("s", wanted, tenant_id=None, api_key_id=None, incarnation="i", now=NOW)
    due, now = timing(found), NOW
    for step, seconds in steps:
        now += seconds * 20 if step == "sleep" else seconds
        match step:
            case "end" | "fail":
                found = attend(
                    found, ended(found, RunEnd.FAILED if step == "fail" else RunEnd.COMPLETED), now
                )
            case "pause":
                found = paused(found, None, now)
            case "resume":
                found = resumed(found, now)
            case "trigger":
                found = triggered(found, Due(now, str(now), manual=True), now)
            case "put":
                found = changed(found, replace(wanted, description=str(now)), None, now)
            case _:
                found = attend(found, {}, now)
        if step in ("wait", "sleep"):
            found = all_placed(found)
    history = [*found.ticks, *ticks_of_pause(found, now)]
    planned = [tick for tick in history if not tick.manual]
    until = (found.next_due_at or now) if not found.is_paused else now + 0.001
    assert sum(tick.count for tick in planned) + len(found.waiting) == due.count(NOW + 0.001, until - 0.001)
    singles = [tick.due_at for tick in planned if tick.count == 1] + [one.due_at for one in found.waiting]
    assert len(set(singles)) == len(singles)
    for fold in planned:
        if fold.count > 1 and fold.last_due_at is not None:
            assert not any(fold.due_at <= at <= fold.last_due_at for at in singles)
    runs = [tick.run_id for tick in history if tick.status is STARTED]
    assert None not in runs
    assert len(set(runs)) == len(runs)
