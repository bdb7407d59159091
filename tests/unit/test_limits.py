"""Places and tokens of limits: pure decisions."""

from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.limits.holders import (
    HeldPlace,
    Holders,
    KeyId,
    Standing,
    give_places,
    is_void,
    next_token_at,
    standing_of,
    tokens,
    without,
)
from pyoco_server.domain.limits.model import (
    Definition,
    Limit,
    Match,
    Rate,
    changed,
    limits_anew,
    limits_of,
    new_limit,
    rules_of,
)
from pyoco_server.domain.runs.model import RunLimit, RunSnapshot, RunStatus
from pyoco_server.errors import InvalidRequest
from pyoco_server.usecases.limits.board import LimitBoard
from pyoco_server.usecases.ports.stores import Change, Revision, Versioned
from support.builders import NOW, a_job, a_snapshot

OF = KeyId(None, "two", "a")
TWO = Definition(match=Match(), max_running=2)


def a_limit(name: str = "two", **fields: Any) -> Limit:
    definition = Definition(**{"match": Match(), "max_running": 2, **fields})
    return new_limit(name, definition, tenant_id=None, rules=f"rules of {name}", now=NOW)


def place(number: int, try_number: int = 1, revision: int = 1) -> HeldPlace:
    return HeldPlace(f"run-{number}", try_number, revision)


def given(record: Holders, wanted: list[HeldPlace], ended: set[str] | None = None, **options: Any) -> Any:
    gone = ended or set()
    definition, now = options.get("definition", TWO), options.get("now", NOW)
    return give_places(
        record, definition, wanted, lambda one: one.run_id in gone, options.get("adopted", ()), now
    )


def test_as_many_runs_get_a_place_as_there_are() -> None:
    record, got = given(Holders(limit="two", key="a"), [place(1), place(2), place(3)])
    assert got == [place(1), place(2)]
    assert record.places == (place(1), place(2))
    assert record.admitted == 2


def test_the_place_of_a_run_that_has_ended_is_given_again() -> None:
    record = Holders(limit="two", key="a", places=(place(1), place(2)))
    record, got = given(record, [place(3), place(4)], {"run-1"})
    assert got == [place(3)]
    assert record.places == (place(2), place(3))


def test_a_run_gets_one_place_only() -> None:
    record = Holders(limit="two", key="a", places=(place(1),))
    assert given(record, [place(1, revision=2)])[1] == []


def test_runs_admitted_by_an_earlier_definition_count() -> None:
    record, got = given(Holders(limit="two", key="a"), [place(3)], adopted=[place(1), place(2)])
    assert got == []
    assert len(record.places) == 2


def test_a_place_that_is_given_back_is_free() -> None:
    record = Holders(limit="two", key="a", places=(place(1), place(2)))
    assert without(record, [place(1)]).places == (place(2),)
    assert without(record, [place(2, revision=9)]).places == record.places


def test_a_bucket_holds_its_burst_and_fills_at_its_rate() -> None:
    rate = Rate(count=2, per_sec=1.0, burst=3)
    definition = Definition(match=Match(), rate=rate)
    record, got = given(Holders(limit="two", key="a"), [place(n) for n in range(5)], definition=definition)
    assert len(got) == 3
    assert record.places == (), "a rate alone needs no list of holders"
    assert tokens(rate, record.full_at, NOW) == 0
    assert next_token_at(rate, record.full_at) == pytest.approx(NOW + 0.5)
    assert tokens(rate, record.full_at, NOW + 0.5) == 1
    assert tokens(rate, record.full_at, NOW + 60) == 3


def test_over_a_long_time_no_token_is_lost_or_won() -> None:
    rate = Rate(count=7, per_sec=3.0, burst=1)
    definition, now, starts = Definition(match=Match(), rate=rate), NOW, 0
    record = Holders(limit="two", key="a")
    while now < NOW + 300:
        record, got = given(record, [place(starts)], definition=definition, now=now)
        assert len(got) == 1
        starts += 1
        now = next_token_at(rate, record.full_at)
    assert starts == pytest.approx(300 * 7 / 3, abs=1)


def a_standing(**fields: Any) -> Standing:
    run = replace(a_snapshot(RunStatus.PENDING, None), limits=(RunLimit("two", "a"),))
    found = standing_of(run, 5)
    assert found is not None
    return replace(found, **fields)


@pytest.mark.parametrize(
    ("held", "run", "expected"),
    [
        (HeldPlace("r", 1, 5), {}, False),
        (HeldPlace("r", 1, 4), {}, True),
        (HeldPlace("r", 1, 9), {}, False),
        (HeldPlace("r", 1, 4), {"is_admitted": True, "is_waiting": False}, False),
        (HeldPlace("r", 1, 9), {"try_number": 2}, True),
        (HeldPlace("r", 2, 1), {"is_admitted": True, "is_waiting": False}, False),
        (HeldPlace("r", 1, 9), {"limits": ()}, True),
    ],
    ids=[
        "taken now",
        "written",
        "seen later",
        "admitted",
        "later try",
        "older picture",
        "other key",
    ],
)
def test_only_what_stays_true_voids_a_place(held: HeldPlace, run: dict[str, Any], expected: object) -> None:
    assert is_void(held, OF, a_standing(**run), is_sorted=True) is expected


def test_a_run_that_is_not_sorted_keeps_its_place() -> None:
    assert not is_void(HeldPlace("r", 1, 5), OF, a_standing(limits=()), is_sorted=False)


def test_limits_concern_the_runs_that_match() -> None:
    job = replace(a_job(), params={"customer": 7})
    limits = [
        a_limit("all"),
        a_limit("flow", match=Match(flow=job.flow_name), key="params.customer"),
        a_limit("other", match=Match(flow="other")),
        a_limit("graph", match=Match(graph="g")),
    ]
    assert limits_of(job, limits) == (RunLimit("all", ""), RunLimit("flow", "7"))
    assert RunLimit("graph", "") in limits_of(replace(job, graph_id="g"), limits)


def test_a_run_whose_key_cannot_be_evaluated_is_refused_but_never_stranded() -> None:
    limit = a_limit(key="params.customer")
    with pytest.raises(InvalidRequest, match="'two'"):
        limits_of(replace(a_job(), params={}), [limit])
    waiting = replace(a_snapshot(RunStatus.PENDING, None), params={})
    assert isinstance(waiting, RunSnapshot)
    assert limits_anew(waiting, [limit]) == (RunLimit("two", ""),)


def test_runs_are_sorted_anew_only_if_match_or_key_changed() -> None:
    limit = a_limit()
    more = changed(limit, replace(a_limit(max_running=3), rules="new"))
    assert (more.rules, more.definition.max_running) == (limit.rules, 3)
    other = changed(limit, replace(a_limit(key="tag"), rules="new"))
    assert other.rules == "new"
    assert changed(limit, replace(a_limit(), rules="new")) is limit
    assert rules_of([limit]) == rules_of([more]) != rules_of([other])
    assert rules_of([]) == ""


async def test_an_answer_of_before_the_end_does_not_bring_a_run_back() -> None:
    """A gateway reads the active runs for a new limit; one ends before the answer arrives."""
    board = LimitBoard()
    limit = replace(a_limit(), tenant_id=None)
    board.note_definition(limit.store_key, Versioned(limit, Revision(1)))
    board.definitions_noted()
    running, ended = (
        replace(a_snapshot(status, None), tenant_id=None)
        for status in (RunStatus.RUNNING, RunStatus.COMPLETED)
    )
    board.look([Change(running.run_id, Revision(3), ended, None)])
    board.note_active(running, 2)
    assert board.run(running.run_id) is None
