"""A flow of which pyoco would leave out a part is refused: a run must not be COMPLETED without its tasks."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyoco import Flow, task
from pyoco.dsl.syntax import TaskWrapper, switch

from pyoco_server.domain.runs.jobs import Ending, FlowOutcome
from pyoco_server.engine.flow_plan import left_out_of, problem_with
from pyoco_server.engine.flow_run import FlowRun
from pyoco_server.engine.resolve import load_resolver
from pyoco_server.errors import InvalidCliInput
from support.builders import RUN_ID
from support.executors import ended, lab
from support.tables import every_row


def tasks(names: str) -> list[TaskWrapper]:
    """New ones: `>>` writes into them."""

    def made(name: str) -> TaskWrapper:
        def function() -> str:
            return name

        function.__name__ = name
        return task(function)

    return [made(name) for name in names]


def plain() -> None:
    """Not a task."""


def outcome_of(flow: Flow) -> FlowOutcome:
    return FlowRun(flow, RUN_ID, {"x": "A", "none": []}).run()


def beside_a_switch() -> Flow:
    a, b, c, d = tasks("abcd")
    return Flow("f") >> a >> (b & c) >> switch("$ctx.params.x")["A" >> d]


def beside_a_loop() -> Flow:
    a, b, c = tasks("abc")
    return Flow("f") >> a[2] >> [b, c]


def added_beside_a_switch() -> Flow:
    a, b = tasks("ab")
    flow = Flow("f") >> switch("$ctx.params.x")["A" >> a]
    flow.add_task(b.task)
    return flow


def two_of_one_name() -> Flow:
    a, b = tasks("aa")
    return Flow("f") >> a >> b


def two_of_one_name_in_parallel() -> Flow:
    a, b, c = tasks("abb")
    return Flow("f") >> a >> (b & c)


def a_function() -> Flow:
    a, b = tasks("ab")
    return Flow("f") >> a >> plain >> b


def another_flow() -> Flow:
    a, b = tasks("ab")
    return Flow("f") >> a >> (Flow("g") >> b)


def parallel_in_parallel() -> Flow:
    a, b, c, d = tasks("abcd")
    return Flow("f") >> a >> (b & (c & d))


def a_chain_in_parallel() -> Flow:
    a, b, c = tasks("abc")
    return Flow("f") >> (a & (b >> c))


def before_a_chain() -> Flow:
    a, b, c, d = tasks("abcd")
    return Flow("f") >> ((a & b) >> (c >> d))


def before_a_task_beside_a_switch() -> Flow:
    a, b, c, d = tasks("abcd")
    return Flow("f") >> ((a & b) >> c) >> switch("$ctx.params.x")["A" >> d]


def a_case_without_parentheses() -> Flow:
    a, b, c, d = tasks("abcd")
    return Flow("f") >> switch("$ctx.params.x")["A" >> a >> b >> c, "*" >> d]


def one_case_twice() -> Flow:
    a, b = tasks("ab")
    return Flow("f") >> switch("$ctx.params.x")["A" >> a, "A" >> b]


def an_output_nowhere() -> Flow:
    (a,) = tasks("a")
    a.task.outputs = ["result.total"]
    return Flow("f") >> a


LEFT_OUT: list[tuple[Callable[[], Flow], str]] = [
    (beside_a_switch, "tasks 'b', 'c' would never run: beside a switch or a loop"),
    (beside_a_loop, "tasks 'b', 'c' would never run: beside a switch or a loop"),
    (added_beside_a_switch, "task 'b' would never run: beside a switch or a loop"),
    (two_of_one_name, "two tasks have the name 'a', and one of them would never run: rename it"),
    (two_of_one_name_in_parallel, "two tasks have the name 'b'"),
    (lambda: Flow("f"), "it has no tasks; add them with `flow >> task`"),
    (a_function, "the function 'plain' (without @task) would never run"),
    (another_flow, "the flow 'g' would never run"),
    (parallel_in_parallel, "a list inside of a list: 'c', 'd' would never run"),
    (a_chain_in_parallel, "tasks 'b', 'c' (a chain inside of a list) would never run"),
    (before_a_chain, "tasks 'a', 'b' would never run: `(a & b) >> c` inside of a chain keeps c alone"),
    (before_a_task_beside_a_switch, "tasks 'a', 'b' would never run: `(a & b) >> c` inside of a chain"),
    (
        a_case_without_parentheses,
        "tasks 'a', 'b' would never run: write a case of several tasks as `\"A\" >> (a",
    ),
    (one_case_twice, "task 'b' would never run: a switch has two cases 'A'; keep one"),
    (an_output_nowhere, "task 'a': outputs: 'result.total' would not be kept: it must begin with scratch."),
]


@every_row(("make", "problem"), LEFT_OUT)
def test_what_would_be_left_out_fails_the_run(make: Callable[[], Flow], problem: str) -> None:
    flow = make()
    outcome = outcome_of(flow)
    assert outcome.ending is Ending.EXECUTION_ERROR
    assert str(outcome.error).startswith(f"flow 'f': {problem}")
    assert str(left_out_of(flow)).startswith(problem)


def used_twice() -> Flow:
    a, b = tasks("ab")
    return Flow("f") >> a >> b >> a


def behind_itself() -> Flow:
    (a,) = tasks("a")
    return Flow("f") >> a >> a


def behind_a_task_of_another_flow() -> Flow:
    a, b = tasks("ab")
    assert Flow("g") >> a >> b
    return Flow("f") >> b


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (used_twice, "tasks 'a', 'b' would never run: they wait for each other; use a task once in a flow"),
        (behind_itself, "task 'a' would never run: it waits for itself; use a task once in a flow"),
        (behind_a_task_of_another_flow, "task 'b' would never run: it depends on task 'a', which this flow"),
    ],
)
def test_what_would_wait_for_ever_is_named_but_does_not_stop_a_worker(
    make: Callable[[], Flow], problem: str
) -> None:
    flow = make()
    assert str(outcome_of(flow).error).startswith(f"flow 'f': {problem}")
    assert left_out_of(flow) is None


def any_of_two() -> Flow:
    a, b, c = tasks("abc")
    flow = Flow("f") >> (a & b)
    assert (a | b) >> c
    flow.add_task(c.task)
    return flow


def of_two_flows() -> Flow:
    a, b = tasks("ab")
    assert Flow("g") >> a >> b
    return Flow("f") >> b[2]


def whole() -> list[Flow]:
    a, b, c, d, e = tasks("abcde")
    f, g, h, i, j = tasks("fghij")
    k, m, n = tasks("kmn")
    return [
        Flow("f") >> a >> (b & c) >> d >> e,
        Flow("f") >> f >> switch("$ctx.params.x")["A" >> (g >> h), "*" >> i] >> j,
        Flow("f") >> k >> m[2] >> k >> (n >> k)[2],
        any_of_two(),
        of_two_flows(),
    ]


@pytest.mark.parametrize("number", range(5))
def test_flows_that_are_whole_run(number: int) -> None:
    flow = whole()[number]
    assert problem_with(flow) is None
    assert outcome_of(flow).ending is Ending.COMPLETED


def test_a_flow_that_was_run_is_checked_again_after_a_change() -> None:
    a, b, c = tasks("abb")
    flow = Flow("f") >> a >> b
    assert outcome_of(flow).result == {"b": "b"}
    assert "two tasks have the name 'b'" in str(outcome_of(flow >> c).error)
    a, b = tasks("ab")
    flow = Flow("f") >> a
    assert outcome_of(flow).result == {"a": "a"}
    assert outcome_of(flow >> b).result == {"b": "b"}
    assert "the function 'plain'" in str(outcome_of(flow >> plain).error)


def test_a_function_that_was_exchanged_is_the_one_that_runs() -> None:
    (a,) = tasks("a")
    flow = Flow("f") >> a
    assert outcome_of(flow).result == {"a": "a"}
    a.task.func = lambda: "another"
    assert outcome_of(flow).result == {"a": "another"}


def test_isolated_failures_are_warnings_of_a_completed_run() -> None:
    a, b, c = tasks("abc")

    def fail() -> None:
        raise ValueError("no data")

    a.task.func, a.task.fail_policy = fail, "isolate"
    outcome = outcome_of(Flow("f") >> a >> b)
    assert outcome.ending is Ending.COMPLETED
    assert sorted(outcome.warnings) == [
        "task 'a' failed, and the flow continued: no data",
        "task 'b' did not run: a task before it failed",
    ]
    assert outcome_of(Flow("f") >> c).warnings == ()


def test_loops_without_a_round_are_a_warning() -> None:
    (a,) = tasks("a")
    outcome = outcome_of(Flow("f") >> a["$ctx.params.none"])
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, {})
    assert outcome.warnings == ("no task ran: the flow has only loops, and none had a round",)


FILE = """
from pyoco import Flow, task
from pyoco.dsl.syntax import switch

@task
def load(): return 1
@task
def check(): return 2
@task
def report(): return 3

"""
LOST = FILE + "daily = Flow('daily') >> (load & check) >> switch('$ctx.params.x')['A' >> report]\n"


def test_a_file_with_such_a_flow_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(LOST)
    with pytest.raises(InvalidCliInput) as refused:
        load_resolver(str(tmp_path))
    assert f"{tmp_path}: flow 'daily': tasks 'check', 'load' would never run" in refused.value.detail


TWICE = FILE + "other = load\n@task\ndef load(): return 4\nFLOW = Flow('daily') >> other >> load\n"


@pytest.mark.parametrize(
    ("source", "problem"), [(LOST, "tasks 'check', 'load'"), (TWICE, "two tasks have the name")]
)
async def test_in_a_real_process(tmp_path: Path, source: str, problem: str) -> None:
    flows = tmp_path / "flows.py"
    flows.write_text(
        source + "def resolve(name):\n    return next(f for f in globals().values() if isinstance(f, Flow))\n"
    )
    async with lab(tmp_path, flows=str(flows)) as at:
        outcome = await ended(await at.start("daily", x="A"))
        assert outcome.ending == "execution_error"
        assert str(outcome.error).startswith(f"flow 'daily': {problem}")
