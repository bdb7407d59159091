"""Maps: one run or execution per item, few events, and the right items after crashes and in reruns."""

from typing import Any

import pytest

from pyoco_server.domain.executions import commands as c, events as e
from pyoco_server.domain.executions.graphs import definition_of, parse_graph
from pyoco_server.domain.executions.model import Execution, carry_over
from pyoco_server.domain.executions.orchestration import Reaction, react
from pyoco_server.domain.executions.records import RunFact, child_id_of, run_id_of
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import InvalidRequest
from support.executions import ANN, EXECUTION_ID, GRACE_SEC, Life, begun, graph_of, map_of, task
from support.tables import every_row

DOUBLE = task(params={"x": "${item}", "at": "${index}"})


class MapLife(Life):
    """Like an orchestrator in a process: of items it knows what it was told and what it has kept."""

    def __init__(self, graph: Any, **options: Any) -> None:
        self.kept: dict[str, RunFact | None] = {}
        self.reactions = 0
        super().__init__(graph, **options)

    def told(self, **news: RunFact | None) -> Reaction:
        self.runs |= {work_id: fact for work_id, fact in news.items() if fact is not None}
        known = {**self.kept, **news}
        reaction = react(self.state, self.graph, known, self.now, GRACE_SEC)
        if reaction.events:
            self.append(reaction.events)
        self.carry_out(reaction)
        self.kept = {**reaction.kept}
        self.reactions += 1
        return reaction

    def item_ends(self, index: int, status: RunStatus = RunStatus.COMPLETED, result: Any = None) -> Reaction:
        run_id = next(
            run_id
            for attempt in (3, 2, 1)
            if (run_id := run_id_of(EXECUTION_ID, "n", attempt, index)) in self.runs
        )
        return self.told(**{run_id: RunFact(status, result, "boom" if status is RunStatus.FAILED else None)})

    @property
    def active(self) -> list[str]:
        return [run_id for run_id, run in self.runs.items() if not run.status.is_terminal]

    @property
    def map_events(self) -> list[e.MapItemsEnded]:
        return [event.payload for event in self.events if isinstance(event.payload, e.MapItemsEnded)]


def started(node: dict[str, Any], items: Any, **more: Any) -> MapLife:
    life = MapLife(graph_of({"n": node, **more}, *(f"n > {name}" for name in more)), input=items)
    life.told()
    return life


# The life of a map


def test_the_outputs_are_in_order_and_the_next_node_reads_them() -> None:
    life = started(
        map_of(DOUBLE, max_parallel=2), ["a", "b", "c"], last=task(params={"all": "${nodes.n.output}"})
    )
    assert [run.params for run in life.dispatched] == [{"x": "a", "at": 0}, {"x": "b", "at": 1}]
    for index in (1, 0, 2):
        life.item_ends(index, result=index * 10)
    assert life.node("n").output == [0, 10, 20]
    assert [run.params for run in life.dispatched[2:]] == [{"x": "c", "at": 2}, {"all": [0, 10, 20]}]
    assert life.types_of("n")[1:4] == ["NODE_READY", "NODE_STARTED", "MAP_OPENED"]
    assert life.node("n").map is not None


def test_ten_thousand_items_take_a_hundred_events_and_never_more_places_than_allowed() -> None:
    life = started(map_of(DOUBLE, max_parallel=7), list(range(10_000)))
    ended = 0
    while life.status == "ACTIVE":
        assert len(life.dispatched) == min(ended + 7, 10_000)
        life.told(**{life.dispatched[ended].run_id: RunFact(RunStatus.COMPLETED, 1)})
        ended += 1
    assert (life.status, ended) == ("COMPLETED", 10_000)
    assert len(life.dispatched) == len({run.run_id for run in life.dispatched}) == 10_000
    assert len(life.map_events) == 100
    assert life.node("n").output == [1] * 10_000


def test_an_end_is_recorded_soon_also_if_the_next_takes_long() -> None:
    life = started(map_of(DOUBLE, max_parallel=2), [1, 2, 3])
    life.now += 10
    life.item_ends(0)
    assert [item.index for event in life.map_events for item in event.ended] == [0]
    reaction = life.item_ends(1)
    assert (len(life.map_events), reaction.wake_at) == (1, life.now + 0.25)
    life.now += 0.25
    life.told()
    assert len(life.map_events) == 2


def test_no_items_are_no_work() -> None:
    life = started(map_of(DOUBLE), [])
    assert (life.status, life.node("n").output, life.dispatched) == ("COMPLETED", [], [])


def test_a_batch_is_one_item() -> None:
    life = started(map_of(task(params={"x": "${items}", "at": "${index}"}), batch=2), [1, 2, 3])
    assert [run.params for run in life.dispatched] == [{"x": [1, 2], "at": 0}, {"x": [3], "at": 1}]
    life.item_ends(0, result="a")
    life.item_ends(1, result="b")
    assert life.node("n").output == ["a", "b"]


def test_items_of_a_graph_are_executions() -> None:
    graph = graph_of({"n": map_of("below", input={"x": "${item}"}, max_parallel=1)})
    life = MapLife(graph, input=["a", "b"])
    life.told()
    ids = [child_id_of(EXECUTION_ID, "n", 1, index) for index in (0, 1)]
    for child_id in ids:
        life.told(**{child_id: RunFact(RunStatus.COMPLETED, {"end": 1}, is_execution=True)})
    assert [(child.execution_id, child.input) for child in life.children] == [
        (ids[0], {"x": "a"}),
        (ids[1], {"x": "b"}),
    ]
    assert (life.status, life.node("n").output) == ("COMPLETED", [{"end": 1}, {"end": 1}])


# Failures


def test_the_first_failure_ends_the_map_and_stops_the_others() -> None:
    life = started(map_of(DOUBLE), [1, 2, 3])
    life.item_ends(1, RunStatus.FAILED)
    error = life.state.error
    assert error is not None
    assert (life.status, error.code) == ("FAILED", "ITEMS_FAILED")
    assert error.message == "1 of 3 items failed, 0 may: item 1: boom"
    assert life.cancelled == [run_id_of(EXECUTION_ID, "n", 1, index) for index in (0, 2)]


@every_row(("tolerate", "status"), [(1, "FAILED"), (2, "COMPLETED"), ("49%", "FAILED"), ("50%", "COMPLETED")])
def test_as_many_failures_as_tolerated_are_null(tolerate: int | str, status: str) -> None:
    life = started(map_of(DOUBLE, tolerate=tolerate), [1, 2, 3, 4])
    for index, end in enumerate((RunStatus.FAILED, RunStatus.COMPLETED) * 2):
        if life.status == "ACTIVE":
            life.item_ends(index, end, result=index)
    assert life.status == status
    if status == "COMPLETED":
        assert life.node("n").output == [None, 1, None, 3]


def test_each_item_has_its_attempts() -> None:
    node = map_of(task(retry={"max_attempts": 2, "backoff_sec": 5}), max_parallel=1)
    life = started(node, [1, 2])
    life.item_ends(0, RunStatus.FAILED)
    assert [run.run_id for run in life.dispatched] == [
        run_id_of(EXECUTION_ID, "n", 1, index) for index in (0, 1)
    ]
    life.now += 1
    life.told()
    life.now += 5
    life.item_ends(1, result="b")
    assert life.dispatched[-1].run_id == run_id_of(EXECUTION_ID, "n", 2, 0)
    life.item_ends(0, result="a")
    assert (life.status, life.node("n").output) == ("COMPLETED", ["a", "b"])


def test_an_item_without_its_params_fails_without_a_run() -> None:
    life = started(map_of(task(params={"x": "${item.a}"}), tolerate=1), [{"b": 1}, {"a": 2}])
    life.item_ends(1, result="b")
    assert (life.status, life.node("n").output, len(life.dispatched)) == ("COMPLETED", [None, "b"], 1)


@every_row(
    ("node", "items", "code", "problem"),
    [
        (map_of(DOUBLE, max_items=2), [1, 2, 3], "TOO_MANY_ITEMS", "over has 3 elements, and max_items is 2"),
        (map_of(DOUBLE), {"a": 1}, "TEMPLATE_FAILED", "over is an object, not a list"),
        (map_of(DOUBLE, "${input.x}"), {}, "TEMPLATE_FAILED", "input has no 'x'"),
    ],
)
def test_a_map_without_a_usable_list_fails(node: dict[str, Any], items: Any, code: str, problem: str) -> None:
    life = begun(graph_of({"n": node}), input=items)
    error = life.node("n").error
    assert error is not None
    assert (life.status, error.code, life.dispatched) == ("FAILED", code, [])
    assert problem in error.message


# Cancels, crashes and reruns


def test_a_cancel_reaches_every_item_once_and_waits_for_them() -> None:
    life = started(map_of(DOUBLE, max_parallel=3), list(range(10)))
    life.cancel()
    life.told(**life.facts())
    assert (life.status, len(life.cancelled)) == ("ACTIVE", 3)
    for run_id in life.active:
        life.told(**{run_id: RunFact(RunStatus.CANCELLED)})
    assert (life.status, len(life.cancelled)) == ("CANCELED", 3)


def test_whoever_takes_over_starts_nothing_twice_and_loses_no_end() -> None:
    life = started(map_of(DOUBLE, max_parallel=5), list(range(300)))
    for step in range(60):
        life.told(**{life.active[step % 5]: RunFact(RunStatus.COMPLETED, step)})
    unrecorded = 60 - sum(len(event.ended) for event in life.map_events)
    before = len(life.dispatched)
    assert unrecorded > 0
    life.kept = {}
    life.told(**life.facts())
    assert (len(life.dispatched), len(life.active)) == (before, 5)
    while life.status == "ACTIVE":
        life.told(**{life.active[0]: RunFact(RunStatus.COMPLETED, 1)})
    assert len(life.dispatched) == 300
    assert None not in life.node("n").output


def failed_map() -> MapLife:
    life = started(map_of(DOUBLE, max_parallel=2), ["a", "b", "c"])
    life.item_ends(0, result="A")
    life.item_ends(1, RunStatus.FAILED)
    life.end_cancelled_runs()
    assert life.status == "FAILED"
    return life


def rerun_of(old: MapLife) -> MapLife:
    life = MapLife(old.graph, input=old.state.input)
    life.append(tuple(carry_over(old.graph, old.state)))
    return life


def test_a_rerun_runs_only_the_items_that_have_not_succeeded() -> None:
    again = rerun_of(failed_map())
    known = again.node("n").map
    assert known is not None
    assert (known.statuses, known.carried_from, again.statuses["n"]) == ("c..", EXECUTION_ID, "IDLE")
    again.told()
    assert [run.params["x"] for run in again.dispatched] == ["b", "c"]
    again.item_ends(1, result="B")
    again.item_ends(2, RunStatus.FAILED)
    third = rerun_of(again)
    third.told()
    assert [run.params["x"] for run in third.dispatched] == ["c"]
    third.item_ends(2, result="C")
    assert (third.status, third.node("n").output) == ("COMPLETED", ["A", "B", "C"])


def test_what_an_operator_ends_stops_its_items() -> None:
    life = started(map_of(DOUBLE), [1, 2])
    life.must(c.SucceedNode(actor=ANN, node_id="n", output="by hand"))
    life.told(**life.facts())
    assert (life.status, life.node("n").output, len(life.cancelled)) == ("COMPLETED", "by hand", 2)
    waiting = started(map_of(DOUBLE), [1])
    assert waiting.refused(c.PutNodeWaiting(actor=ANN, node_id="n")) == "NODE_STATUS"
    assert isinstance(waiting.state, Execution)


# What is refused


@every_row(
    ("node", "problem"),
    [
        ({"type": "map", "over": "${input}"}, "node n: a map has either node, a task, or graph"),
        ({**map_of("g"), "node": task()}, "node n: a map has either node, a task, or graph"),
        ({"type": "map", "node": task()}, "node n: over is missing"),
        (map_of(task(), "all ${input}"), "node n: over must be one reference"),
        (map_of(task(), "${input"), "has no closing }"),
        (map_of(task(), ["${input}"]), "node n: over must be one reference or a list without"),
        (map_of(task(), 5), "node n: over: expected"),
        (map_of(task(), tolerate="10"), "node n: tolerate: expected"),
        (map_of(task(), tolerate="101%"), "node n: tolerate: expected"),
        (map_of(task(), tolerate=-1), "node n: tolerate: expected"),
        (map_of(task(), max_parallel=0), "node n: max_parallel: expected int >= 1"),
        (map_of(task(), max_items=10_001), "node n: max_items: expected int <= 10000"),
        (map_of(task(), batch=0), "node n: batch: expected int >= 1"),
        (map_of(task(), retry={"max_attempts": 2}), "node n: retry belongs to the task inside"),
        (map_of(task(), input=1), "node n: input is for graph; a task has params"),
        (map_of({"external": True}), "node n: node must have a flow"),
        (
            map_of(task(params={"x": "${items}"})),
            "available in the params or the input of a map with batch",
        ),
        (
            map_of(task(params={"x": "${item}"}), batch=2),
            "'${item}' is only available in the params",
        ),
        (task(params={"x": "${item}"}), "'${item}' is only available in the params or the input of a map"),
    ],
)
def test_a_map_that_could_not_work_is_refused(node: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_graph({"id": "g", "nodes": {"n": node}})
    assert problem in refused.value.detail


def test_the_definition_of_a_map_is_kept() -> None:
    nodes = {
        "n": map_of(task(retry={"max_attempts": 2}), tolerate="10%", max_parallel=3, undo="u"),
        "u": task(),
        "m": map_of(
            "below", [1, 2], input={"x": "${items}"}, batch=2, max_items=5, retry={"max_attempts": 2}
        ),
    }
    graph = parse_graph({"id": "g", "nodes": nodes, "edges": [{"from": "n", "to": "m"}]})
    assert definition_of(graph)["nodes"] == nodes
    assert parse_graph(definition_of(graph), is_stored=True) == graph
