"""Which task waits for which, for flows of every kind."""

from typing import Any

from pyoco import Flow, task
from pyoco.dsl.syntax import switch

from pyoco_server.engine.flow_plan import task_graph_of
from pyoco_server.engine.flow_run import FlowRun


def tasks(*names: str) -> list[Any]:
    """New ones: a task object remembers the flows it was part of."""

    def made(name: str) -> Any:
        def work() -> str:
            return name

        work.__name__ = name
        return task(work)

    return [made(name) for name in names]


def test_a_chain() -> None:
    a, b = tasks("a", "b")
    assert task_graph_of(Flow("f") >> a >> b) == {"a": (), "b": ("a",)}


def test_branches_that_meet_again() -> None:
    a, b, c, d = tasks("a", "b", "c", "d")
    flow = Flow("f") >> a >> [b, c] >> d
    assert task_graph_of(flow) == {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def test_only_dependencies_inside_the_flow_count() -> None:
    a, b, d = tasks("a", "b", "d")
    _other = Flow("other") >> d >> b
    assert task_graph_of(Flow("f") >> a >> b) == {"a": (), "b": ("a",)}


def test_a_loop_is_its_body_once() -> None:
    a, b, c, d = tasks("a", "b", "c", "d")
    flow = Flow("f") >> a >> (b >> c)[3] >> d
    assert task_graph_of(flow) == {"a": (), "b": ("a",), "c": ("b",), "d": ("c",)}


def test_after_a_switch_comes_whatever_case_was_taken_or_none() -> None:
    a, b, c, d = tasks("a", "b", "c", "d")
    flow = Flow("f") >> a >> switch("$ctx.params.kind")["x" >> b, "y" >> c] >> d
    found = task_graph_of(flow)
    assert (found["b"], found["c"]) == (("a",), ("a",))
    assert set(found["d"]) == {"a", "b", "c"}


def test_a_run_tells_it_with_its_progress() -> None:
    a, b = tasks("a", "b")
    outcome = FlowRun(Flow("f") >> a >> b, "run", {}).run()
    assert outcome.progress.task_dependencies == {"a": (), "b": ("a",)}
