"""Places and tokens of limits: pure decisions."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.limits.holders import (
    HeldPlace,
    Holders,
    KeyId,
    Standing,
    decode_holders,
    give_places,
    is_void,
    next_token_at,
    standing_of,
    tokens,
    without,
)
from pyoco_server.domain.limits.model import (
    Definition,
    FlowPause,
    Limit,
    LimitRecord,
    Match,
    Rate,
    changed,
    decode_limit,
    limits_anew,
    limits_of,
    new_limit,
    pause_key,
    rules_of,
)
from pyoco_server.domain.runs.model import RunLimit, RunSnapshot, RunStatus
from pyoco_server.errors import InvalidRequest, NatsUnavailable
from pyoco_server.memory.queue import MemoryQueue
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.limits.admit import AdmitRuns
from pyoco_server.usecases.limits.board import LimitBoard
from pyoco_server.usecases.limits.lines import Plan
from pyoco_server.usecases.limits.manage import ManageLimits
from pyoco_server.usecases.ports.stores import Change, Revision, Versioned
from support.builders import NOW, a_job, a_snapshot
from support.virtual_time import virtually

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


@pytest.mark.parametrize("key", ["params.customer.id", "params"])
def test_a_key_never_reads_the_reference_of_a_large_value(key: str) -> None:
    job = replace(a_job(), params={"customer": {"id": 7}, "n": 1}, values=(("params", "customer"),))
    with pytest.raises(InvalidRequest, match=r"reads params\.customer, a large value"):
        limits_of(job, [a_limit(key=key)])
    assert limits_of(job, [a_limit(key="params.n")]) == (RunLimit("two", "1"),)


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


def defined(board: LimitBoard, limit: Limit, revision: int) -> None:
    board.note_definition(limit.store_key, Versioned(limit, Revision(revision)))
    board.definitions_noted()


def test_an_answer_of_before_its_removal_does_not_bring_a_definition_back() -> None:
    """Of a limit and of a pause: runs would wait for what nobody defines."""
    board, limit = LimitBoard(), a_limit()
    pause = FlowPause(flow="f", tenant_id=None, since=NOW, reason=None, until=None)
    for key, record in ((limit.store_key, limit), (pause_key(None, "f"), pause)):
        board.forget_definition(key, 8)
        board.note_definition(key, Versioned(record, Revision(7)))
    assert board.definitions.is_empty
    board.note_definition(limit.store_key, Versioned(limit, Revision(9)))
    assert board.limit(OF) is not None


def test_a_feed_that_begins_again_counts_from_its_beginning() -> None:
    board, limit = LimitBoard(), a_limit()
    defined(board, limit, 7)
    board.forget_definition(limit.store_key, 8)
    for key in board.definitions.all_keys():
        board.forget_definition(key)
    defined(board, limit, 2)
    assert board.limit(OF) is not None


def waiting(board: LimitBoard, run_id: str, revision: int, flow: str, *limits: str) -> RunSnapshot:
    run = replace(
        a_snapshot(RunStatus.PENDING, None),
        run_id=run_id,
        flow_name=flow,
        tenant_id=None,
        limits=tuple(RunLimit(limit, "") for limit in limits),
        limit_rules=board.definitions.rules(None),
    )
    board.look([Change(run_id, Revision(revision), run, None)])
    return run


async def test_a_place_that_is_voided_is_free_for_every_line_of_its_key() -> None:
    """The run that did not use it cannot: its flow is paused. Those of another flow go on."""
    board, limit = LimitBoard(), a_limit(max_running=1)
    defined(board, limit, 1)
    board.definitions.have_read({None: board.definitions.rules(None)})
    waiting(board, "unused", 2, "one", "two")
    waiting(board, "next", 3, "other", "two")
    pause = FlowPause(flow="one", tenant_id=None, since=NOW, reason=None, until=None)
    board.note_definition(pause_key(None, "one"), Versioned(pause, Revision(2)))
    places = (HeldPlace("unused", 1, 2),)
    board.note_record(Versioned(Holders(limit="two", key="", places=places), Revision(1)))
    assert board.plan(NOW, (), 10) == Plan([], ["unused"])
    waiting(board, "unused", 4, "one", "two")
    admissions = board.plan(NOW, (), 10).admissions
    assert [run.run_id for _, runs in admissions for run in runs] == ["next"]


async def test_a_run_that_is_postponed_is_still_to_be_sorted() -> None:
    """Its limits changed while it was tried; it does not wait for those of before."""
    board, limit = LimitBoard(), a_limit()
    defined(board, limit, 1)
    waiting(board, "one", 2, "one", "two")
    defined(board, replace(limit, rules="others"), 3)
    board.postpone("one", NOW)
    assert board.unsorted() == ["one"]


class FailsOnce(MemoryStore[RunSnapshot]):
    """Does not answer the first read."""

    has_failed = False

    async def get(self, key: str) -> Versioned[RunSnapshot] | None:
        if self.has_failed:
            return await super().get(key)
        self.has_failed = True
        raise NatsUnavailable("nats unavailable: request timed out")


@virtually
async def test_a_holder_that_could_not_be_read_is_read_again_soon() -> None:
    """Nothing else may happen that would wake the line which waits for its place."""
    board, holders = LimitBoard(), MemoryStore[Holders](codec.encode, decode_holders)
    defined(board, a_limit(max_running=1), 1)
    board.definitions.have_read({None: board.definitions.rules(None)})
    waiting(board, "next", 2, "one", "two")
    full = Holders(limit="two", key="", places=(HeldPlace("ended", 1, 1),))
    board.note_record(Versioned(full, await holders.create(full.id.store_key, full)))
    lease = Lease(MemoryStore(codec.encode, codec.decode_lease), "l", "h", lambda: NOW, lasts_sec=15.0)
    admit = AdmitRuns(
        board=board,
        runs=FailsOnce(codec.encode, codec.decode_run),
        queue=MemoryQueue(NatsBackendConfig(), clock=lambda: NOW),
        holders=holders,
        lease=lease,
        clock=lambda: NOW + asyncio.get_running_loop().time(),
        meter=Mock(),
        ready=AsyncMock(),
    )
    working = asyncio.ensure_future(admit.run())
    await asyncio.sleep(5.0)
    working.cancel()
    found = await holders.get(full.id.store_key)
    assert found is not None
    assert found.value.admitted == 1


async def test_a_deletion_that_is_answered_late_leaves_what_was_defined_since() -> None:
    limits = MemoryStore[LimitRecord](codec.encode, decode_limit)
    board, limit = LimitBoard(), a_limit()
    defined(board, limit, await limits.create(limit.store_key, limit))

    async def removed_and_defined_elsewhere(key: str, _: object) -> None:
        board.forget_definition(key, 2)
        defined(board, limit, 3)

    limits.remove = removed_and_defined_elsewhere  # type: ignore[assignment, method-assign]
    manage = ManageLimits(limits, board, Mock(), lambda: NOW, lambda: "id", AsyncMock())
    await manage.delete(limit.name, ANONYMOUS)
    assert board.limit(OF) is not None
