"""REQ-0008, REQ-0024: flows in the real engine, and what is told about them."""

import asyncio
import math
import threading
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Any

import msgspec
import pytest
from pyoco import Flow, task
from pyoco.core.models import Task
from pyoco.dsl.syntax import switch

from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress
from pyoco_server.engine.flow_run import FlowRun
from pyoco_server.engine.print_capture import HostOutput, PrintCapture
from support import flows
from support.things import RUN_ID


class Told:
    """Remembers all progress."""

    def __init__(self) -> None:
        self.progress: list[FlowProgress] = []

    def __call__(self, progress: FlowProgress) -> None:
        self.progress.append(progress)

    def states_of(self, task: str) -> list[str]:
        """The states of a task in their order, each once."""
        seen = [str(progress.tasks[task]) for progress in self.progress if progress.tasks]
        return list(dict.fromkeys(seen))


@pytest.fixture
def told() -> Told:
    return Told()


def run(flow: Any, told: Told, params: dict[str, Any] | None = None, *, live: bool = False) -> FlowOutcome:
    flow_run = FlowRun(flow, RUN_ID, params or {})
    if live:
        flow_run.follow(told)
    return flow_run.run()


def test_a_flow_that_succeeds_gives_the_output_of_its_last_task(told: Told) -> None:
    outcome = run(flows.chain(), told, {"n": 4})
    assert (outcome.ending, outcome.result, outcome.error) == (Ending.COMPLETED, {"total": 30}, None)
    assert outcome.progress.tasks == dict.fromkeys(["numbers", "squares", "total"], "SUCCEEDED")


def test_the_record_of_a_task_says_what_went_in_what_came_out_and_how_long_it_took(told: Told) -> None:
    record = run(flows.chain(), told, {"n": 2}).progress.task_records["squares"]
    assert (record.state, record.inputs, record.output) == ("SUCCEEDED", {"numbers": [1, 2]}, [1, 4])
    assert record.started_at is not None
    assert record.ended_at is not None
    assert record.ended_at >= record.started_at
    assert record.duration_ms is not None


def test_progress_is_told_from_the_first_pending_task_to_the_last_success(told: Told) -> None:
    run(flows.chain(), told, live=True)
    assert set(told.progress[1].tasks.values()) == {"PENDING"}
    for name in ("numbers", "squares", "total"):
        assert told.states_of(name) == ["PENDING", "RUNNING", "SUCCEEDED"]


def test_nothing_is_told_before_somebody_wants_to_know(told: Told) -> None:
    run(flows.chain(), told)
    assert told.progress == []


def test_progress_that_was_told_does_not_change_later(told: Told) -> None:
    run(flows.chain(), told, live=True)
    assert told.progress[1].task_records["total"].state == "PENDING"


def test_a_flow_that_fails_says_why_and_where(told: Told) -> None:
    outcome = run(flows.failing(), told)
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "ValueError: broken on purpose")
    assert outcome.result is None
    assert outcome.progress.tasks == {"fine": "SUCCEEDED", "breaks": "FAILED", "never": "PENDING"}
    record = outcome.progress.task_records["breaks"]
    assert record.error == "broken on purpose"
    assert "raise ValueError" in (record.traceback or "")


def test_a_flow_that_exits_the_process_ends_only_its_run(told: Told) -> None:
    outcome = run(flows.exiting(), told)
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "SystemExit: 3")


def test_a_task_that_is_retried_succeeds_in_the_end(told: Told) -> None:
    outcome = run(flows.retrying(failures=1), told)
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {"flaky": 2})
    assert outcome.progress.task_records["flaky"].state == "SUCCEEDED"


def test_a_task_whose_retries_are_used_up_fails_its_run(told: Told) -> None:
    outcome = run(flows.retrying(failures=2), told)
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "ConnectionError: attempt 2")


def test_an_isolated_failure_does_not_fail_the_run(told: Told) -> None:
    outcome = run(flows.isolated(), told)
    assert outcome.ending is Ending.COMPLETED
    assert outcome.progress.tasks == {"bad": "FAILED", "after_bad": "FAILED", "good": "SUCCEEDED"}
    assert outcome.result == {"after_bad": None, "good": "good"}


def test_branches_run_at_the_same_time(told: Told) -> None:
    outcome = run(flows.parallel(), told)
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {"join": "lr"})


@pytest.mark.parametrize(
    ("way", "expected"), [("A", {"on_a": "a was chosen"}), ("B", {"on_b": "b was chosen"})]
)
def test_the_result_of_a_flow_with_choices_is_that_of_the_task_that_ended_last(
    told: Told, way: str, expected: dict[str, str]
) -> None:
    outcome = run(flows.choosing(), told, {"way": way})
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, expected)


def test_a_task_that_is_part_of_two_flows_is_the_last_one_where_nothing_follows_it(told: Told) -> None:
    longer = flows.chain()
    numbers = next(task for task in longer.tasks if task.name == "numbers")
    shorter = Flow(name="shorter") >> numbers
    assert run(shorter, told).result == {"numbers": [1, 2, 3]}


def test_a_run_that_is_cancelled_before_it_starts_runs_no_task(told: Told) -> None:
    gate = flows.Gate()
    flow_run = FlowRun(gate.flow(), RUN_ID, {})
    flow_run.cancel()
    outcome = flow_run.run()
    assert outcome.ending is Ending.CANCELLED
    assert outcome.progress.tasks == {"wait": "CANCELLED", "after": "CANCELLED"}
    assert not gate.entered.is_set()


def test_a_run_that_is_cancelled_between_tasks_starts_no_further_one(told: Told) -> None:
    gate = flows.Gate()
    flow_run = FlowRun(gate.flow(), RUN_ID, {})
    outcomes: list[FlowOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(flow_run.run()))
    thread.start()
    assert gate.entered.wait(flows.PATIENCE_SEC)
    flow_run.cancel()
    gate.open()
    thread.join(flows.PATIENCE_SEC)
    assert [outcome.ending for outcome in outcomes] == [Ending.CANCELLED]
    assert outcomes[0].progress.tasks == {"wait": "SUCCEEDED", "after": "CANCELLED"}


def test_a_flow_with_choices_can_be_cancelled_before_it_starts(told: Told) -> None:
    flow_run = FlowRun(flows.choosing(), RUN_ID, {"way": "A"})
    flow_run.cancel()
    assert flow_run.run().ending is Ending.CANCELLED


def test_the_result_is_converted_by_the_rule_of_values(told: Told) -> None:
    """D21"""
    outcome = run(flows.returning({"when": {1}, "half": "\ud800", "on": date(2026, 1, 2)}), told)
    expected = {"when": [1], "half": "\\ud800", "on": "2026-01-02"}
    assert outcome.result == {"give": expected}
    assert outcome.progress.task_records["give"].output == expected


class DataFrame:
    def __repr__(self) -> str:
        return "2 rows"


def test_a_last_task_that_returns_what_json_cannot_hold_fails(told: Told) -> None:
    """D21"""
    outcome = run(flows.returning({"rows": DataFrame(), "n": 1}), told)
    problem = (
        "task 'give' returned a DataFrame at output.rows: not JSON; "
        "return a list of rows or save it as an artifact"
    )
    assert (outcome.ending, outcome.error, outcome.result) == (Ending.EXECUTION_ERROR, problem, None)
    assert outcome.progress.tasks == {"give": "FAILED"}
    record = outcome.progress.task_records["give"]
    assert (record.state, record.error) == ("FAILED", problem)
    assert record.output == {"rows": {"$repr": "2 rows", "type": "DataFrame"}, "n": 1}


def test_what_a_task_in_the_middle_returns_passes_on_as_it_is(told: Told) -> None:
    """D21"""
    frame = DataFrame()

    @task
    def load() -> Any:
        return frame

    @task
    def use(load: Any) -> bool:
        return load is frame

    outcome = run(Flow(name="f") >> load >> use, told, live=True)
    assert (outcome.ending, outcome.result, outcome.warnings) == (Ending.COMPLETED, {"use": True}, ())
    preview = {"$repr": "2 rows", "type": "DataFrame"}
    assert outcome.progress.task_records["load"].output == preview
    assert outcome.progress.task_records["use"].inputs == {"load": preview}


def test_not_a_number_is_null_in_the_result_with_a_warning_that_names_task_and_place(told: Told) -> None:
    """D21"""
    outcome = run(flows.returning({"mean": math.nan}), told)
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {"give": {"mean": None}})
    assert outcome.warnings == ("task 'give' returned NaN at output.mean: null instead",)


def test_a_result_above_the_limit_is_left_out_with_a_warning(told: Told) -> None:
    """D22"""
    outcome = FlowRun(flows.returning("x" * 5_000), RUN_ID, {}, max_value_bytes=1_024).run()
    assert (outcome.ending, outcome.result, outcome.result_truncated) == (Ending.COMPLETED, None, True)
    assert outcome.warnings == ("the result has more than 5,001 bytes as JSON; at most 1,024 bytes are kept",)
    assert outcome.progress.task_records_truncated
    output = outcome.progress.task_records["give"].output
    assert output["type"] == "str"
    assert output["$repr"].startswith("'xxx")


# Tasks that are `async def`


@dataclass
class Seen:
    loops: list[Any] = field(default_factory=list)


def async_chain(seen: Seen) -> Flow:
    @task
    async def fetch(n: int = 2) -> int:
        await asyncio.sleep(0)
        seen.loops.append(asyncio.get_running_loop())
        return n

    @task
    def double(fetch: int) -> int:
        return 2 * fetch

    @task
    async def add(double: int, ctx: Any) -> int:
        seen.loops.append(asyncio.get_running_loop())
        return double + int(ctx.params["n"])

    return Flow(name="async") >> fetch >> double >> add


def test_async_tasks_of_a_chain_are_awaited_in_one_loop_that_is_closed_at_the_end(told: Told) -> None:
    """D20"""
    seen = Seen()
    flow = async_chain(seen)
    for _ in range(2):  # the second time with what the first has prepared
        outcome = run(flow, told, {"n": 5})
        assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {"add": 15})
    assert outcome.progress.task_records["fetch"].output == 5
    assert outcome.progress.task_records["add"].inputs == {"double": 10}
    first, again, *other_run = seen.loops
    assert first is again
    assert first not in other_run
    assert all(loop.is_closed() for loop in seen.loops)


def async_branches(seen: Seen) -> Flow:
    """Each waits for the other: one after the other they would wait for ever."""
    met: dict[str, asyncio.Event] = {}

    async def meet(me: str, other: str) -> str:
        seen.loops.append(asyncio.get_running_loop())
        for name in (me, other):
            met.setdefault(name, asyncio.Event())
        met[me].set()
        await asyncio.wait_for(met[other].wait(), flows.PATIENCE_SEC)
        print(f"{me} has met {other}")  # noqa: T201
        return me

    @task
    async def left() -> str:
        return await meet("left", "right")

    @task
    async def right() -> str:
        return await meet("right", "left")

    @task
    async def join(left: str, right: str) -> str:
        return left + right

    flow = Flow(name="branches")
    for one in (left, right, join):
        flow.add_task(one.task)
    for one in (left, right):
        join.task.dependencies.add(one.task)
        one.task.dependents.add(join.task)
    return flow


def test_async_tasks_in_the_thread_pool_share_one_loop(told: Told) -> None:
    """D20"""
    seen = Seen()
    catcher = PrintCapture(HostOutput(), lambda: None)
    with catcher.catching():
        outcome = FlowRun(async_branches(seen), RUN_ID, {}, catcher.entered).run()
    assert (outcome.ending, outcome.error, outcome.result) == (
        Ending.COMPLETED,
        None,
        {"join": "leftright"},
    )
    assert len(set(map(id, seen.loops))) == 1
    assert seen.loops[0].is_closed()
    lines = [(entry.task, entry.text) for entry in catcher.take()]
    assert sorted(lines) == [("left", "left has met right\n"), ("right", "right has met left\n")]
    assert not [thread for thread in threading.enumerate() if thread.name == "pyoco-async"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_an_async_task_that_raises_fails_its_run(told: Told, error: BaseException) -> None:
    """D20"""

    @task
    async def breaks() -> None:
        await asyncio.sleep(0)
        raise error

    @task
    async def other() -> str:
        return "fine"

    assert run(Flow(name="chain") >> breaks, told).error == f"{type(error).__name__}: {error}"
    parallel = Flow(name="parallel")
    parallel.add_task(breaks.task)
    parallel.add_task(other.task)
    assert run(parallel, told).error == f"{type(error).__name__}: {error}"


def test_an_async_task_is_retried_like_any_other(told: Told) -> None:
    tries = []

    @task
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError
        return len(tries)

    flaky.task.retries = 1
    assert run(Flow(name="f") >> flaky, told).result == {"flaky": 2}


class AsyncCallable:
    async def __call__(self, n: int) -> int:
        return n + 1


def test_partial_functions_methods_and_callable_objects_are_awaited_too(told: Told) -> None:
    """D20"""

    async def add(n: int, m: int) -> int:
        return n + m

    for function in (partial(add, m=1), AsyncCallable(), AsyncCallable().__call__):
        flow = Flow(name="f")
        flow.add_task(Task(func=function, name="t"))
        assert run(flow, told, {"n": 1}).result == {"t": 2}


def test_async_tasks_in_a_flow_with_choices_are_awaited(told: Told) -> None:
    """D20"""

    @task
    async def on_a() -> str:
        return "a"

    flow = Flow(name="f") >> switch("$ctx.params.way")["A" >> on_a]
    assert run(flow, told, {"way": "A"}).result == {"on_a": "a"}


def generating() -> Flow:
    @task
    def rows() -> Any:
        yield 1

    return Flow(name="f") >> rows


def generating_async() -> Flow:
    @task
    async def rows() -> Any:
        yield 1

    return Flow(name="f") >> rows


@pytest.mark.parametrize(
    ("flow", "kind"), [(generating, "a generator"), (generating_async, "an async generator")]
)
def test_a_generator_function_is_refused_before_anything_runs(told: Told, flow: Any, kind: str) -> None:
    """D20"""
    outcome = run(flow(), told)
    assert outcome.ending is Ending.EXECUTION_ERROR
    assert outcome.error == f"task 'rows' is {kind} function (it has a yield): return a list instead"


def test_a_coroutine_that_nobody_awaits_fails_its_task_also_in_the_middle(told: Told) -> None:
    """D20"""

    async def work() -> int:
        return 1

    @task
    def forgets() -> Any:
        return work()

    @task
    def after(forgets: Any) -> str:
        return "done"

    problem = "task 'forgets' returned a coroutine at output: not JSON; await it: make the task an async def"
    for flow in (Flow(name="f") >> forgets, Flow(name="f") >> forgets >> after):
        outcome = run(flow, told)
        assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, problem)
        assert outcome.progress.tasks["forgets"] == "FAILED"
    assert flow.tasks


def test_a_coroutine_that_the_next_task_awaits_is_fine(told: Told) -> None:
    async def work() -> int:
        return 1

    @task
    def begin() -> Any:
        return work()

    @task
    async def finish(begin: Any) -> int:
        return int(await begin)

    assert run(Flow(name="f") >> begin >> finish, told).result == {"finish": 1}


def test_a_generator_as_a_result_fails_its_task(told: Told) -> None:
    """D20"""
    outcome = run(flows.returning(n for n in "ab"), told)
    assert outcome.error == "task 'give' returned a generator at output: not JSON; return a list"


# Records


def test_records_of_huge_values_are_bounded_and_read_once(told: Told) -> None:
    """D08"""
    rows = [{"i": 0}] * 1_500_000

    @task
    def load() -> Any:
        return rows

    @task
    def use(load: Any) -> int:
        return len(load)

    outcome = run(Flow(name="f") >> load >> use, told, live=True)
    assert outcome.result == {"use": 1_500_000}
    assert outcome.progress.task_records_truncated
    assert len(msgspec.json.encode(outcome.progress.task_records)) < 5_000
    assert outcome.progress.task_records["use"].inputs is not None
    assert outcome.progress.task_records["use"].inputs["load"]["type"] == "list"


def test_a_record_that_has_not_changed_is_the_same_object(told: Told) -> None:
    """D08"""
    run(flows.chain(), told, live=True)
    records = [progress.task_records["numbers"] for progress in told.progress if progress.tasks]
    ended = [record for record in records if record.state == "SUCCEEDED"]
    assert len(ended) > 2
    assert all(record is ended[0] for record in ended)
