"""Flows of which some tasks are not run, because their outputs are known from another run."""

import datetime as dt
import enum
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from pyoco import Flow, task
from pyoco.dsl.syntax import switch

from pyoco_server.domain import codec
from pyoco_server.domain.runs.jobs import Ending, FlowOutcome
from pyoco_server.domain.runs.model import (
    FailureKind,
    KeptTasks,
    Reusable,
    RunStatus,
    TaskRecord,
    TaskState,
    kept_tasks_of,
    replace,
)
from pyoco_server.engine.flow_run import FlowRun
from support.builders import RUN_ID, a_snapshot
from support.tables import every_row


class Work:
    """A flow with a task that fails until it is repaired, and a record of what ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.is_repaired = False

    def chain(self, *, is_longer: bool = False) -> Flow:
        @task
        def first() -> None:
            self.ran.append("first")

        @task
        def load(n: int) -> list[int]:
            self.ran.append("load")
            return list(range(n))

        @task
        def total(load: list[int]) -> int:
            self.ran.append("total")
            load.append(100)  # changes what it was given
            if not self.is_repaired:
                raise ValueError("no")
            return sum(load)

        return (
            Flow(name="work") >> first >> load >> total if is_longer else Flow(name="work") >> load >> total
        )

    def graph(self) -> Flow:
        def made(name: str, result: Callable[..., Any]) -> Any:
            def run(**given: Any) -> Any:
                self.ran.append(name)
                return result(**given)

            run.__name__ = name
            return task(run)

        def broken() -> int:
            if not self.is_repaired:
                raise ValueError("no")
            return 2

        @task
        def both(left: int, right: int) -> int:
            self.ran.append("both")
            return left * 10 + right

        return Flow(name="work") >> (made("left", lambda: 1) & made("right", broken)) >> both


def kept_of(outcome: FlowOutcome) -> KeptTasks:
    """As they come back from the store."""
    run = a_snapshot(
        RunStatus.FAILED,
        tasks=outcome.progress.tasks,
        task_records=outcome.progress.task_records,
        task_dependencies=outcome.progress.task_dependencies,
    )
    kept = kept_tasks_of(codec.decode_run(codec.encode(run)))
    assert kept is not None
    return kept


@pytest.mark.parametrize(
    ("shape", "again", "result"),
    [("chain", ["total"], {"total": 103}), ("graph", ["both", "right"], {"both": 12})],
)
def test_only_what_did_not_succeed_is_run(shape: str, again: list[str], result: dict[str, int]) -> None:
    work = Work()
    flow = getattr(work, shape)()
    kept = kept_of(FlowRun(flow, RUN_ID, {"n": 3}).run())
    work.ran, work.is_repaired = [], True
    outcome = FlowRun(flow, RUN_ID, {"n": 3}, kept=kept).run()
    assert (outcome.ending, outcome.result, sorted(work.ran)) == (Ending.COMPLETED, result, again)
    for name, record in kept.records.items():
        assert outcome.progress.task_records[name] == record, "with the times and inputs of then"
        assert outcome.progress.tasks[name] is TaskState.SUCCEEDED


def test_a_kept_task_is_shown_as_done_from_the_first_report() -> None:
    work = Work()
    flow = work.chain()
    kept = kept_of(FlowRun(flow, RUN_ID, {"n": 3}).run())
    run = FlowRun(flow, RUN_ID, {"n": 3}, kept=kept)
    seen = []
    run.follow(lambda progress: seen.append(progress.tasks.get("load", TaskState.SUCCEEDED)))
    run.run()
    assert set(seen) == {TaskState.SUCCEEDED}


def test_outputs_of_an_earlier_run_are_not_used_in_a_flow_that_has_changed() -> None:
    work = Work()
    kept = kept_of(FlowRun(work.chain(), RUN_ID, {"n": 3}).run())
    work.ran = []
    for changed in (work.chain(is_longer=True), work.graph()):
        outcome = FlowRun(changed, RUN_ID, {"n": 3}, kept=kept).run()
        assert (outcome.ending, outcome.failure_kind) == (Ending.EXECUTION_ERROR, FailureKind.INVALID_JOB)
        assert "flow 'work' has other tasks than the retried run" in (outcome.error or "")
    assert work.ran == []


def test_a_flow_that_has_got_a_switch_is_not_run_in_part() -> None:
    @task
    def first() -> int:
        return 1

    @task
    def second() -> int:
        raise ValueError("no")

    plain = Flow(name="f") >> first >> second
    kept = kept_of(FlowRun(plain, RUN_ID, {}).run())
    switched = Flow(name="f") >> first >> switch("$ctx.results.first")["*" >> second]
    outcome = FlowRun(switched, RUN_ID, {}, kept=kept).run()
    assert "has other tasks" in (outcome.error or "")
    whole = FlowRun(switched, RUN_ID, {}).run().progress.task_records
    assert {record.reusable for record in whole.values()} == {Reusable.CONTROL_FLOW}


class Colour(enum.Enum):
    RED = "red"


class Named(NamedTuple):
    x: int


@every_row(
    ("value", "is_exact"),
    [
        (None, True),
        (True, True),
        (1, True),
        (2**63 - 1, True),
        (1.5, True),
        ("text", True),
        ("日本語" * 1000, True),
        ([1, [2, {"a": None}]], True),
        ({"b": 1, "a": [1.0]}, True),
        ({"$repr": "x", "type": "y"}, True),
        ((1, 2), False),
        ([(1, 2)], False),
        ({1, 2}, False),
        ({"a": {1: 2}}, False),
        (float("nan"), False),
        ([float("inf")], False),
        (2**64, False),
        (b"x", False),
        (Decimal("1.0"), False),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), False),
        (Colour.RED, False),
        (Named(1), False),
        (object(), False),
        ("\ud800", False),
        ("x" * 300_000, False),
        ([0] * 300_000, False),
    ],
)
def test_only_a_value_that_its_record_holds_as_it_is_can_be_used_again(value: Any, is_exact: bool) -> None:  # noqa: FBT001
    @task
    def give() -> Any:
        return value

    @task
    def stop() -> None:
        raise ValueError("no")

    outcome = FlowRun(Flow(name="f") >> give >> stop, RUN_ID, {}).run()
    record = outcome.progress.task_records["give"]
    assert record.reusable is (Reusable.YES if is_exact else Reusable.NOT_EXACT)
    if is_exact:
        read = kept_of(outcome).records["give"].output
        assert (read, type(read)) == (value, type(value))


def test_what_a_kept_task_put_into_the_scratch_is_missed_and_not_replaced_by_a_default() -> None:
    @task
    def note(ctx: Any) -> int:
        ctx.scratch["seen"] = 7
        return 1

    @task
    def look(ctx: Any, how: str) -> Any:
        if how == "fail":
            raise ValueError("no")
        ctx.scratch["own"] = 1
        assert ctx.scratch["own"] == 1
        return ctx.scratch.get("seen", 0) if how == "get" else "seen" in ctx.scratch

    flow = Flow(name="f") >> note >> look
    kept = kept_of(FlowRun(flow, RUN_ID, {"how": "fail"}).run())
    for how in ("get", "in"):
        outcome = FlowRun(flow, RUN_ID, {"how": how}, kept=kept).run()
        assert "ctx.scratch has no 'seen'" in (outcome.error or ""), outcome
        assert "retry the run from the start" in (outcome.error or "")


def test_the_declared_outputs_of_a_kept_task_are_where_they_belong() -> None:
    @task
    def give(ctx: Any) -> int:
        return 5

    @task
    def use(ctx: Any, fails: bool) -> int:  # noqa: FBT001
        if fails:
            raise ValueError("no")
        found: int = ctx.scratch["given"]
        return found

    give.task.outputs = ["scratch.given"]
    flow = Flow(name="f") >> give >> use
    kept = kept_of(FlowRun(flow, RUN_ID, {"fails": True}).run())
    assert FlowRun(flow, RUN_ID, {"fails": False}, kept=kept).run().result == {"use": 5}


def test_a_kept_task_with_an_isolated_failure_beside_it_is_not_run() -> None:
    ran: list[str] = []

    @task
    def fine() -> int:
        ran.append("fine")
        return 1

    @task
    def broken() -> int:
        ran.append("broken")
        raise ValueError("no")

    broken.task.fail_policy = "isolate"
    flow = Flow(name="f") >> (fine & broken)
    outcome = FlowRun(flow, RUN_ID, {}).run()
    assert outcome.ending is Ending.COMPLETED
    kept = kept_of(outcome)
    ran.clear()
    FlowRun(flow, RUN_ID, {}, kept=kept).run()
    assert ran == ["broken"]


def test_a_record_of_an_older_worker_says_nothing_about_its_output() -> None:
    record = TaskRecord(state=TaskState.SUCCEEDED, output=1)
    assert (record.reusable, replace(record, output=None).reusable) == (None, None)
