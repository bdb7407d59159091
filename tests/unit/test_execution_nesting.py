"""Graphs in graphs: what is refused, and nodes that are carried out by an execution of their own."""

import pytest

from pyoco_server.domain.executions import commands as c
from pyoco_server.domain.executions.graphs import Graph, definition_of, parse_graph
from pyoco_server.domain.executions.model import children_to_rerun, outputs_for_rerun
from pyoco_server.domain.executions.nesting import MAX_DEPTH, problems_of
from pyoco_server.domain.executions.records import StartChild, child_id_of
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import InvalidRequest
from support.executions import ANN, EXECUTION_ID, FORK, begun, execution, graph_of, join, task
from support.tables import every_row

ABOVE = {"n": execution(input={"ym": "${input.ym}"}), "last": task(params={"x": "${nodes.n.output.end}"})}


def nest(graph_id: str, *below: str) -> Graph:
    nodes = {f"n-{name}": execution(name) for name in below} or {"n": task()}
    first, *others = nodes
    edges = [{"from": first, "to": other} for other in others]
    return parse_graph({"id": graph_id, "nodes": nodes, "edges": edges})


# What is refused


def test_graphs_may_be_nested_eight_deep() -> None:
    below = {f"g{depth}": nest(f"g{depth}", f"g{depth + 1}") for depth in range(2, MAX_DEPTH)}
    innermost = {f"g{MAX_DEPTH}": nest(f"g{MAX_DEPTH}")}
    assert problems_of(nest("g1", "g2"), below | innermost) == []
    [problem] = problems_of(nest("g0", "g1"), below | innermost | {"g1": nest("g1", "g2")})
    assert problem.startswith("node n-g1: graphs are nested 9 deep, 8 are allowed: g0 → g1 → g2 → ")


@every_row(
    ("below", "problem"),
    [
        ({"b": None}, "node n-b: graph b is not registered"),
        ({"b": nest("b", "a")}, "node n-b: cycle of graphs: a → b → a"),
        ({"b": nest("b", "c"), "c": nest("c", "b")}, "node n-b: cycle of graphs: b → c → b"),
        ({"b": nest("b", "b")}, "node n-b: cycle of graphs: b → b"),
        ({f"g{n}": nest(f"g{n}") for n in range(101)}, "more than 100 graphs are nested below it"),
    ],
)
def test_a_graph_that_cannot_be_nested_is_refused(below: dict[str, Graph | None], problem: str) -> None:
    assert problems_of(nest("a", "b"), below) == [problem]


def test_one_graph_may_be_in_many_places() -> None:
    below = {"b": nest("b", "d"), "c": nest("c", "d"), "d": nest("d")}
    assert problems_of(nest("a", "b", "c", "d"), below) == []


@every_row(
    ("node", "problem"),
    [
        ({"type": "execution"}, "node n: graph is missing"),
        (execution("a b"), "node n: graph 'a b' must match"),
        (execution(input="${nodes.x.output}"), "node n: ${nodes.x…}: unknown node 'x'"),
        (execution(input="${secrets.x}"), "is only resolved in the params of a task"),
        (execution(params={}), "node n: params is only for task nodes, and this is an execution"),
        (task(graph="b"), "node n: graph is only for execution and map nodes, and this is a task"),
    ],
)
def test_an_execution_node_that_could_not_work_is_refused(node: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_graph({"id": "g", "nodes": {"n": node}})
    assert problem in refused.value.detail


def test_the_definition_of_an_execution_node_is_kept() -> None:
    nodes = {"n": execution(input={"a": "${input.b}"}, retry={"max_attempts": 2}, timeout_sec=5)}
    graph = parse_graph({"id": "g", "nodes": nodes, "edges": []})
    assert definition_of(graph)["nodes"] == nodes
    assert parse_graph(definition_of(graph), is_stored=True) == graph


# Their lives


def test_the_result_of_the_child_is_the_output_of_the_node() -> None:
    life = begun(graph_of(ABOVE, "n > last"), input={"ym": "2026-11"})
    child_id = child_id_of(EXECUTION_ID, "n", 1)
    assert life.children == [
        StartChild(execution_id=child_id, node_id="n", graph_id="below", input={"ym": "2026-11"})
    ]
    assert (life.node("n").child_execution_id, life.node("n").run_id) == (child_id, None)
    life.succeed("n", result={"end": 7})
    assert life.node("n").output == {"end": 7}
    assert [run.params for run in life.dispatched] == [{"x": 7}]


def test_each_attempt_has_a_child() -> None:
    life = begun(graph_of({"n": execution(retry={"max_attempts": 2}, timeout_sec=60)}))
    life.fail("n", error="node x of its execution failed: boom")
    first, second = (child_id_of(EXECUTION_ID, "n", attempt) for attempt in (1, 2))
    assert [child.execution_id for child in life.children] == [first, second]
    life.now += 60
    life.react()
    assert life.state.error is not None
    assert (life.status, life.state.error.code, life.cancelled) == ("FAILED", "TIMEOUT", [second])


def test_a_child_that_somebody_cancels_fails_its_node() -> None:
    life = begun(graph_of({"n": execution()}))
    life.end_run("n", RunStatus.CANCELLED)
    life.react()
    assert life.state.error is not None
    assert (life.status, life.state.error.code) == ("FAILED", "EXECUTION_CANCELED")


def test_a_cancel_reaches_the_child_and_waits_for_its_end() -> None:
    life = begun(graph_of(ABOVE, "n > last"), input={"ym": 1})
    life.cancel()
    life.react()
    assert (life.status, life.cancelled) == ("ACTIVE", [child_id_of(EXECUTION_ID, "n", 1)])
    life.end_cancelled_runs()
    assert life.status == "CANCELED"


def test_a_child_that_completed_before_the_cancel_arrived_is_undone() -> None:
    life = begun(graph_of({"n": execution(undo="back"), "back": task()}))
    life.cancel()
    life.end_run("n", RunStatus.COMPLETED, result=1)
    life.react()
    assert (life.statuses["n"], life.statuses["back"]) == ("SUCCEEDED", "RUNNING")
    life.succeed("back")
    assert life.status == "CANCELED"


def test_a_child_that_nobody_waits_for_is_cancelled() -> None:
    life = begun(graph_of({"n": execution()}))
    life.must(c.SucceedNode(actor=ANN, node_id="n", output=1))
    life.react()
    assert (life.status, life.cancelled) == ("COMPLETED", [child_id_of(EXECUTION_ID, "n", 1)])


def test_a_rerun_from_its_failure_carries_the_child_on() -> None:
    nodes = {"first": task(), "n": execution(), "split": FORK, "a": execution(), "b": task(), "end": join()}
    edges = ("first > n", "n > split", "split > a", "split > b", "a > end", "b > end")
    life = begun(graph_of(nodes, *edges))
    life.succeed("first")
    life.succeed("n", result=1)
    life.fail("a")
    life.end_cancelled_runs()
    assert life.status == "FAILED"
    assert set(outputs_for_rerun(life.state, life.graph)) == {"first", "split", "n"}
    assert children_to_rerun(life.state, life.graph) == {"a": child_id_of(EXECUTION_ID, "a", 1)}
