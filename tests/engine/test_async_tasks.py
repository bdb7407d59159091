"""REQ-0008: tasks that are `async def`, in the real engine."""

import asyncio
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from pyoco import Flow, task
from pyoco.core.models import Task
from pyoco.dsl.syntax import switch

from pyoco_server.domain.runs.jobs import Ending, FlowOutcome
from pyoco_server.engine.flow_run import FlowRun
from pyoco_server.engine.print_capture import HostOutput, PrintCapture
from support import flows
from support.builders import RUN_ID


def run(flow: Any, params: dict[str, Any] | None = None) -> FlowOutcome:
    return FlowRun(flow, RUN_ID, params or {}).run()


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


def test_async_tasks_of_a_chain_are_awaited_in_one_loop_that_is_closed_at_the_end() -> None:
    """D20"""
    seen = Seen()
    flow = async_chain(seen)
    for _ in range(2):  # the second time with what the first has prepared
        outcome = run(flow, {"n": 5})
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


def test_async_tasks_in_the_thread_pool_share_one_loop() -> None:
    """D20"""
    seen = Seen()
    catcher = PrintCapture(HostOutput(), lambda: None)
    with catcher:
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
def test_an_async_task_that_raises_fails_its_run(error: BaseException) -> None:
    """D20"""

    @task
    async def breaks() -> None:
        await asyncio.sleep(0)
        raise error

    @task
    async def other() -> str:
        return "fine"

    assert run(Flow(name="chain") >> breaks).error == f"{type(error).__name__}: {error}"
    parallel = Flow(name="parallel")
    parallel.add_task(breaks.task)
    parallel.add_task(other.task)
    assert run(parallel).error == f"{type(error).__name__}: {error}"


def test_an_async_task_is_retried_like_any_other() -> None:
    tries = []

    @task
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError
        return len(tries)

    flaky.task.retries = 1
    assert run(Flow(name="f") >> flaky).result == {"flaky": 2}


class AsyncCallable:
    async def __call__(self, n: int) -> int:
        return n + 1


def test_partial_functions_methods_and_callable_objects_are_awaited_too() -> None:
    """D20"""

    async def add(n: int, m: int) -> int:
        return n + m

    for function in (partial(add, m=1), AsyncCallable(), AsyncCallable().__call__):
        flow = Flow(name="f")
        flow.add_task(Task(func=function, name="t"))
        assert run(flow, {"n": 1}).result == {"t": 2}


def test_async_tasks_in_a_flow_with_choices_are_awaited() -> None:
    """D20"""

    @task
    async def on_a() -> str:
        return "a"

    flow = Flow(name="f") >> switch("$ctx.params.way")["A" >> on_a]
    assert run(flow, {"way": "A"}).result == {"on_a": "a"}


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
def test_a_generator_function_is_refused_before_anything_runs(flow: Any, kind: str) -> None:
    """D20"""
    outcome = run(flow())
    assert outcome.ending is Ending.EXECUTION_ERROR
    assert outcome.error == f"task 'rows' is {kind} function (it has a yield): return a list instead"


def test_a_coroutine_that_nobody_awaits_fails_its_task_also_in_the_middle() -> None:
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
        outcome = run(flow)
        assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, problem)
        assert outcome.progress.tasks["forgets"] == "FAILED"
    assert flow.tasks


def test_a_coroutine_that_the_next_task_awaits_is_fine() -> None:
    async def work() -> int:
        return 1

    @task
    def begin() -> Any:
        return work()

    @task
    async def finish(begin: Any) -> int:
        return int(await begin)

    assert run(Flow(name="f") >> begin >> finish).result == {"finish": 1}


def test_a_generator_as_a_result_fails_its_task() -> None:
    """D20"""
    outcome = run(flows.returning(n for n in "ab"))
    assert outcome.error == "task 'give' returned a generator at output: not JSON; return a list"
