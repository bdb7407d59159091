"""Chains without the engine's thread pool: whatever a flow can tell, it is the same either way."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from pyoco import Flow, task

from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress
from pyoco_server.engine.flow_plan import without_thread_pool
from pyoco_server.engine.flow_run import FlowRun
from support import flows
from support.builders import RUN_ID
from support.tables import every_row

PARAMS = {"p": 7, "q": "text"}


class Step(SimpleNamespace):
    """What one task of a chain does."""

    does: str
    retries: int
    failures: int
    saves: bool


steps = st.builds(
    Step,
    does=st.sampled_from(["returns", "adds", "takes_param", "takes_input", "takes_ctx", "fails", "cancels"]),
    retries=st.integers(0, 2),
    failures=st.integers(0, 2),
    saves=st.booleans(),
)


class Chain:
    """A flow of such steps, made anew for every run: pyoco's tasks remember the flows they were part of."""

    def __init__(self, plan: list[Step]) -> None:
        self.calls: list[str] = []
        self.run: FlowRun | None = None
        self.flow = Flow(name="generated")
        for number, step in enumerate(plan):
            self.flow = self.flow >> self._task(number, step)

    def _task(self, number: int, step: Step) -> Any:
        made = task(self._function(number, step))
        made.task.name = f"t{number}"
        made.task.retries = step.retries
        if step.does == "takes_input":
            made.task.inputs = {"given": "$ctx.params.p" if number == 0 else f"$node.t{number - 1}.output"}
        if step.saves:
            made.task.outputs = [f"scratch.s{number}"]
        return made

    def _function(self, number: int, step: Step) -> Callable[..., Any]:
        left = [step.failures]

        def called() -> None:
            self.calls.append(f"t{number}")
            if left[0] > 0:
                left[0] -= 1
                raise ConnectionError(f"t{number} fails")

        def returns() -> int:
            called()
            return number

        def adds(**_: Any) -> list[int]:
            called()
            return [number] * number

        def takes_param(p: int, q: str = "") -> str:
            called()
            return f"{p}{q}"

        def takes_input(given: Any) -> Any:
            called()
            return given

        def takes_ctx(ctx: Any) -> dict[str, Any]:
            called()
            return {"params": dict(ctx.params), "results": dict(ctx.results), "asked": ctx.is_cancelled}

        def fails() -> None:
            self.calls.append(f"t{number}")
            raise ValueError(f"t{number} is broken")

        def cancels() -> str:
            called()
            assert self.run is not None
            self.run.cancel()
            return "cancelled"

        functions = {
            f.__name__: f for f in (returns, adds, takes_param, takes_input, takes_ctx, fails, cancels)
        }
        return functions[step.does]


def outcome_of(chain: Chain, *, inline: bool) -> tuple[FlowOutcome, list[FlowProgress]]:
    reports: list[FlowProgress] = []
    chain.run = FlowRun(chain.flow, RUN_ID, dict(PARAMS))
    chain.run.follow(reports.append)
    with without_pauses(), pooled(not inline):
        return chain.run.run(), reports


@contextmanager
def without_pauses() -> Iterator[None]:
    """The engine waits before it tries a task again."""
    quick = SimpleNamespace(time=time.time, sleep=lambda _: None)
    with mock.patch("pyoco.core.engine.time", quick):
        yield


@contextmanager
def pooled(yes: bool) -> Iterator[None]:  # noqa: FBT001
    if not yes:
        yield
        return
    with mock.patch("pyoco_server.engine.flow_plan.without_thread_pool", lambda flow: flow):
        yield


def comparable(progress: FlowProgress) -> dict[str, Any]:
    """Without times, and without the engine's own frames of a traceback."""
    return {
        name: (
            progress.tasks[name],
            replace(record, started_at=None, ended_at=None, duration_ms=None, traceback=None),
            (record.traceback or "").strip().rpartition("\n")[2],
            (record.started_at is None, record.ended_at is None),
        )
        for name, record in progress.task_records.items()
    }


@given(st.lists(steps, min_size=1, max_size=6))
@settings(max_examples=150)
def test_a_chain_has_the_same_outcome_either_way(plan: list[Step]) -> None:
    pool, inline = Chain(plan), Chain(plan)
    assert without_thread_pool(inline.flow) is not inline.flow
    by_pool, reports_by_pool = outcome_of(pool, inline=False)
    by_inline, reports_inline = outcome_of(inline, inline=True)
    assert (by_inline.ending, by_inline.error, by_inline.result) == (
        by_pool.ending,
        by_pool.error,
        by_pool.result,
    )
    assert comparable(by_inline.progress) == comparable(by_pool.progress)
    assert inline.calls == pool.calls
    assert [progress.tasks for progress in reports_inline] == [progress.tasks for progress in reports_by_pool]


@pytest.mark.parametrize("inline", [False, True])
def test_a_cancel_between_tasks_starts_no_other(inline: bool) -> None:  # noqa: FBT001
    def step(does: str) -> Step:
        return Step(does=does, retries=0, failures=0, saves=False)

    chain = Chain([step("returns"), step("cancels"), step("returns")])
    outcome, _ = outcome_of(chain, inline=inline)
    assert outcome.ending is Ending.CANCELLED
    assert chain.calls == ["t0", "t1"]
    assert outcome.progress.tasks == {"t0": "SUCCEEDED", "t1": "SUCCEEDED", "t2": "CANCELLED"}


@pytest.mark.parametrize("inline", [False, True])
def test_what_is_no_exception_but_ends_programs_ends_the_run_only(inline: bool) -> None:  # noqa: FBT001
    with pooled(not inline):
        outcome = FlowRun(flows.exiting(), RUN_ID, {}).run()
    assert outcome.ending is Ending.EXECUTION_ERROR
    assert "SystemExit" in (outcome.error or "")


def a_timeout() -> Flow:
    flow = flows.chain()
    next(iter(flow.tasks)).timeout_sec = 5.0
    return flow


def any_of() -> Flow:
    flow = flows.chain()
    next(iter(flow.tasks)).trigger_policy = "ANY"
    return flow


def two_beginnings() -> Flow:
    @task
    def left() -> int:
        return 1

    @task
    def right() -> int:
        return 2

    flow = Flow(name="two") >> left
    flow.add_task(right.task)
    return flow


def waits_for_another_flow() -> Flow:
    @task
    def elsewhere() -> int:
        return 1

    @task
    def here(elsewhere: int) -> int:
        return elsewhere

    _ = Flow(name="other") >> elsewhere >> here
    flow = Flow(name="this")
    flow.add_task(here.task)
    return flow


@every_row(
    "make",
    [
        flows.parallel,
        flows.isolated,
        flows.choosing,
        a_timeout,
        any_of,
        two_beginnings,
        waits_for_another_flow,
        lambda: Flow(name="empty"),
    ],
)
def test_flows_that_are_more_than_a_chain_stay_as_they_are(make: Callable[[], Flow]) -> None:
    flow = make()
    assert without_thread_pool(flow) is flow


def test_a_chain_of_tasks_that_are_also_in_another_flow_is_a_chain() -> None:
    @task
    def one() -> int:
        return 1

    @task
    def two(one: int) -> int:
        return one + 1

    @task
    def also(one: int) -> int:
        return one + 2

    _ = Flow(name="other") >> one >> also
    flow = Flow(name="this") >> one >> two
    assert without_thread_pool(flow) is not flow
    assert FlowRun(flow, RUN_ID, {}).run().result == {"two": 2}
