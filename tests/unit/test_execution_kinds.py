"""Nodes that do not end with one run: each carries on from whatever is in the log."""

import pytest

from pyoco_server.domain.cel.values import Allowance, TooHeavy
from pyoco_server.domain.executions import commands as c
from pyoco_server.domain.executions.decide import MAX_MESSAGES, decide
from pyoco_server.domain.executions.graphs import definition_of, parse_graph
from pyoco_server.domain.executions.model import MAX_HELD_BYTES, outputs_for_rerun
from pyoco_server.domain.executions.records import run_id_of, summarise
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import InvalidRequest
from support.executions import ANN, EXECUTION_ID, T0, Life, begun, graph_of, repeat, sleep, task, wait
from support.tables import every_row


def problem_of(node: object) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parse_graph({"id": "g", "nodes": {"n": node}})
    return refused.value.detail


# Sleep


def test_a_sleep_wakes_at_its_time_and_nobody_is_asked() -> None:
    life = begun(graph_of({"n": sleep(for_sec=60), "last": task()}, "n > last"))
    assert (life.statuses["n"], life.node("n").wake_at, life.look().wake_at) == ("WAITING", T0 + 60, T0 + 60)
    assert summarise(life.state).waits == ()
    life.now += 59
    life.react()
    assert life.statuses["n"] == "WAITING"
    life.now += 1
    life.react()
    assert life.types_of("n")[1:] == [
        "NODE_READY",
        "NODE_STARTED",
        "NODE_WAITING",
        "NODE_RESUMED",
        "NODE_SUCCEEDED",
    ]
    assert (life.statuses["last"], life.node("n").wake_at) == ("RUNNING", None)


def test_a_sleep_until_a_time_in_the_past_does_not_wait() -> None:
    life = begun(graph_of({"n": sleep(until="${input.at}")}), input={"at": "1970-01-01T00:00:00Z"})
    assert life.status == "COMPLETED"


def test_an_operator_wakes_a_sleep_early() -> None:
    life = begun(graph_of({"n": sleep(for_sec=60)}))
    life.must(c.ResumeNode(actor=ANN, node_id="n"))
    life.react()
    assert life.status == "COMPLETED"


def test_a_cancel_ends_a_sleep_at_once() -> None:
    life = begun(graph_of({"n": sleep(for_sec=60)}))
    life.cancel()
    assert (life.status, life.node("n").wake_at) == ("CANCELED", None)


@every_row(
    ("node", "value", "problem"),
    [
        (sleep(for_sec="${input.x}"), -1, "for_sec must be a number of seconds from 0 to"),
        (sleep(for_sec="${input.x}"), "60", "for_sec must be a number of seconds from 0 to"),
        (sleep(for_sec="${input.x}"), True, "for_sec must be a number of seconds from 0 to"),
        (sleep(until="${input.x}"), "tomorrow", "until must be Unix seconds or RFC 3339"),
        (sleep(until="${input.x}"), None, "until is null; write RFC 3339 with an offset"),
        (sleep(until="${input.x}"), 1e300, "until must be from 0 to"),
        (sleep(until="${input.y}"), 1, "input has no 'y'"),
    ],
)
def test_a_sleep_without_a_usable_time_fails(node: dict[str, object], value: object, problem: str) -> None:
    life = begun(graph_of({"n": node}), input={"x": value})
    error = life.node("n").error
    assert error is not None
    assert (life.status, error.code) == ("FAILED", "TEMPLATE_FAILED")
    assert problem in error.message


@every_row(
    ("node", "problem"),
    [
        (sleep(), "node n: a sleep has either for_sec or until"),
        (sleep(for_sec=1, until=2), "node n: a sleep has either for_sec or until"),
        (sleep(for_sec=-1), "node n: for_sec must be a number of seconds"),
        (sleep(for_sec="60"), "node n: for_sec must be a number of seconds"),
        (sleep(until="noon"), "node n: until must be Unix seconds or RFC 3339"),
        (sleep(until="2026-12-01T00:00:00"), "node n: until must have an offset"),
        (sleep(for_sec="${nodes.x.output}"), "node n: ${nodes.x…}: unknown node 'x'"),
        (task(for_sec=1), "node n: for_sec is only for sleep nodes, and this is a task"),
    ],
)
def test_a_sleep_that_could_not_work_is_refused(node: dict[str, object], problem: str) -> None:
    assert problem in problem_of(node)


# Messages


def send(life: Life, data: object = None, name: str = "paid") -> list[object]:
    return [*life.must(c.SendMessage(actor=ANN, name=name, data=data))]


PAID = wait(message="paid", when="data.amount >= 10")


def test_a_message_resumes_the_node_that_waits_for_it() -> None:
    life = begun(graph_of({"n": PAID, "last": task(params={"x": "${nodes.n.output.amount}"})}, "n > last"))
    assert (life.statuses["n"], life.node("n").message) == ("WAITING", "paid")
    assert [found.message for found in summarise(life.state).waits] == ["paid"]
    send(life, {"amount": 12})
    life.react()
    assert life.types_of("n")[-2:] == ["NODE_RESUMED", "NODE_SUCCEEDED"]
    assert life.node("n").output == {"amount": 12}
    assert (life.dispatched[0].params, life.state.messages) == ({"x": 12}, ())


def test_a_message_that_meets_no_condition_is_recorded_and_changes_nothing() -> None:
    life = begun(graph_of({"n": PAID}))
    send(life, {"amount": 9})
    life.react()
    assert (life.types[-1], life.statuses["n"], life.state.messages) == ("MESSAGE_RECEIVED", "WAITING", ())


def test_early_messages_are_kept_and_taken_one_by_one_oldest_first() -> None:
    graph = graph_of({"first": task(), "n": PAID, "again": PAID}, "first > n", "n > again")
    life = Life(graph, start=False)
    send(life, {"amount": 10})
    life.must(c.StartExecution(actor=ANN))
    life.react()
    send(life, {"amount": 11})
    assert [message.data["amount"] for message in life.state.messages] == [10, 11]
    life.succeed("first")
    assert life.status == "COMPLETED"
    assert [life.node(name).output["amount"] for name in ("n", "again")] == [10, 11]


def test_two_nodes_that_wait_take_a_message_each() -> None:
    graph = graph_of(
        {
            "split": {"type": "fork"},
            "a": wait(message="paid"),
            "b": wait(message="paid"),
            "end": {"type": "join"},
        },
        "split > a",
        "split > b",
        "a > end",
        "b > end",
    )
    life = begun(graph)
    send(life, 1)
    life.react()
    assert life.statuses == {"split": "SUCCEEDED", "a": "SUCCEEDED", "b": "WAITING", "end": "IDLE"}
    send(life, 2)
    life.react()
    assert (life.status, life.node("b").output) == ("COMPLETED", 2)


def test_a_message_that_came_in_time_beats_the_deadline() -> None:
    life = begun(graph_of({"n": wait(message="paid", timeout_sec=5)}))
    send(life, 1)
    life.now += 5
    life.react()
    assert life.status == "COMPLETED"


def test_a_message_without_a_node_for_it_is_refused() -> None:
    life = begun(graph_of({"n": PAID}))
    answer = life.do(c.SendMessage(actor=ANN, name="payed"))
    assert "no node of graph g waits for message 'payed' (did you mean 'paid'?)" in str(answer)
    assert life.refused(c.SendMessage(actor=ANN, name="paid", data={})) == "MESSAGE_CONDITION_FAILED"
    assert life.refused(c.SendMessage(actor=ANN, name="paid", data=[])) == "MESSAGE_CONDITION_FAILED"
    life.cancel()
    assert life.refused(c.SendMessage(actor=ANN, name="paid", data={"amount": 10})) == "EXECUTION_TERMINAL"


def test_a_message_for_a_node_that_has_ended_is_refused() -> None:
    life = begun(graph_of({"n": PAID, "last": task()}, "n > last"))
    send(life, {"amount": 10})
    life.react()
    assert life.refused(c.SendMessage(actor=ANN, name="paid", data={"amount": 10})) == "MESSAGE_NOT_EXPECTED"


def test_messages_that_no_node_can_take_any_more_are_dropped() -> None:
    life = begun(graph_of({"n": wait(message="paid"), "last": task()}, "n > last"))
    send(life, "a" * 100)
    send(life, "b" * 100)
    life.react()
    assert (life.statuses["n"], life.state.messages) == ("SUCCEEDED", ())


def test_an_execution_keeps_a_bounded_number_of_messages() -> None:
    life = begun(graph_of({"first": task(), "n": wait(message="paid")}, "first > n"))
    for number in range(MAX_MESSAGES):
        send(life, number)
    assert life.refused(c.SendMessage(actor=ANN, name="paid", data=7)) == "TOO_MANY_MESSAGES"
    large = begun(graph_of({"first": task(), "n": wait(message="paid")}, "first > n"))
    for _ in range(2):
        send(large, "x" * (MAX_HELD_BYTES // 3))
    over = c.SendMessage(actor=ANN, name="paid", data="x" * (MAX_HELD_BYTES // 3))
    assert large.refused(over) == "EXECUTION_TOO_LARGE"


def test_the_conditions_of_messages_have_a_budget() -> None:
    life = begun(graph_of({"n": wait(message="paid", when="data.exists(x, x == 1)")}))
    command = c.SendMessage(actor=ANN, name="paid", data=[0] * 1_000)
    with pytest.raises(TooHeavy):
        decide(life.state, life.graph, command, life.now, Allowance(1_000))
    assert isinstance(decide(life.state, life.graph, command, life.now), list)


@every_row(
    ("node", "problem"),
    [
        (wait(message="a b"), "node n: message 'a b' must match"),
        (wait(message="m", wait_key="k"), "node n: wait_key is for a resume, and message for a message"),
        (wait(when="true"), "node n: when needs message"),
        (wait(message="m", when="data.x >"), "node n: when: 'data.x >': column"),
        (wait(message="m", when="input.x"), "node n: when: 'input.x': column"),
        (wait(message="m", when="1"), "gives int, not true or false"),
        (task(message="m"), "node n: message is only for wait nodes, and this is a task"),
    ],
)
def test_a_wait_for_a_message_that_could_not_work_is_refused(node: dict[str, object], problem: str) -> None:
    assert problem in problem_of(node)


# Repeat


POLL = repeat(task(params={"turn": "${iteration}"}), "output.done", max=3, every_sec=5)


def test_a_repeat_runs_its_task_until_the_condition_holds() -> None:
    life = begun(graph_of({"n": POLL, "last": task(params={"x": "${nodes.n.output.at}"})}, "n > last"))
    life.succeed("n", result={"done": False})
    assert (life.statuses["n"], life.node("n").wake_at) == ("WAITING", life.now + 5)
    assert summarise(life.state).waits == ()
    life.now += 5
    life.react()
    assert (life.statuses["n"], life.node("n").iteration, life.node("n").attempt) == ("RUNNING", 2, 1)
    life.succeed("n", result={"done": True, "at": "noon"})
    assert life.node("n").output == {"done": True, "at": "noon"}
    ids = [run_id_of(EXECUTION_ID, "n", 1, turn) for turn in (1, 2)]
    assert [(run.run_id, run.params) for run in life.dispatched] == [
        (ids[0], {"turn": 1}),
        (ids[1], {"turn": 2}),
        (run_id_of(EXECUTION_ID, "last", 1), {"x": "noon"}),
    ]
    assert life.types_of("n")[2:] == [
        "NODE_STARTED",
        "NODE_WAITING",
        "NODE_READY",
        "NODE_STARTED",
        "NODE_SUCCEEDED",
    ]


def test_a_repeat_without_a_pause_goes_on_at_once() -> None:
    life = begun(graph_of({"n": repeat(task(), "output == 1")}))
    life.succeed("n", result=0)
    assert (life.statuses["n"], life.node("n").iteration, len(life.dispatched)) == ("RUNNING", 2, 2)


def test_a_repeat_that_reaches_its_limit_fails() -> None:
    life = begun(graph_of({"n": repeat(task(), "output == 1", max=2)}))
    life.succeed("n", result=0)
    life.succeed("n", result=0)
    assert life.state.error is not None
    assert (life.status, life.state.error.code) == ("FAILED", "REPEAT_LIMIT")
    assert life.state.error.message == "until does not hold after 2 iterations"


def test_each_iteration_has_its_attempts() -> None:
    work = task(retry={"max_attempts": 2}, timeout_sec=60)
    life = begun(graph_of({"n": repeat(work, "output == 1")}))
    life.fail("n")
    life.succeed("n", result=0)
    assert (life.node("n").iteration, life.node("n").attempt) == (2, 1)
    life.fail("n")
    life.now += 60
    life.react()
    assert life.state.error is not None
    assert (life.status, life.state.error.code) == ("FAILED", "TIMEOUT")


def test_an_until_that_cannot_be_evaluated_fails_its_node() -> None:
    life = begun(graph_of({"n": POLL}))
    life.succeed("n", result={})
    assert life.state.error is not None
    assert (life.status, life.state.error.code) == ("FAILED", "CONDITION_FAILED")
    assert life.state.error.message.startswith("until: 'output.done':")


def test_an_operator_ends_the_pause_of_a_repeat() -> None:
    life = begun(graph_of({"n": POLL}))
    life.succeed("n", result={"done": False})
    life.must(c.ResumeNode(actor=ANN, node_id="n"))
    life.react()
    assert (life.statuses["n"], life.node("n").iteration) == ("RUNNING", 2)


def test_a_cancel_ends_a_repeat_in_its_pause_and_in_its_run() -> None:
    life = begun(graph_of({"n": POLL}))
    life.cancel()
    life.react()
    assert len(life.cancelled) == 1
    life.end_cancelled_runs()
    assert life.status == "CANCELED"
    pausing = begun(graph_of({"n": POLL}))
    pausing.succeed("n", result={"done": False})
    pausing.cancel()
    assert pausing.status == "CANCELED"


@pytest.mark.parametrize(("result", "status"), [({"done": False}, "CANCELED"), ({"done": True}, "SUCCEEDED")])
def test_while_the_execution_fails_only_the_last_iteration_counts(result: object, status: str) -> None:
    nodes = {"split": {"type": "fork"}, "n": POLL, "bad": task(), "end": {"type": "join"}}
    life = begun(graph_of(nodes, "split > n", "split > bad", "n > end", "bad > end"))
    life.fail("bad")
    life.end_run("n", RunStatus.COMPLETED, result=result)
    life.react()
    assert (life.status, life.statuses["n"]) == ("FAILED", status)


@every_row(
    ("node", "problem"),
    [
        ({"type": "repeat"}, "node n: node is missing; node n: until is missing; node n: max is missing"),
        (repeat({"type": "wait"}, "true"), "node n: node must be a task with a flow, and this is a wait"),
        (repeat({"external": True}, "true"), "node n: node must have a flow"),
        (repeat({"flwo": "f"}, "true"), "node n: node: unknown key 'flwo' (did you mean 'flow'?)"),
        (repeat(task(), "output.x >"), "node n: until: 'output.x >': column"),
        (repeat(task(), "input.x"), "node n: until: 'input.x': column"),
        ({**repeat(task(), ""), "until": 5}, "node n: until of a repeat is a condition in CEL"),
        (repeat(task(), "true", max=0), "node n: max: expected int >= 1"),
        (repeat(task(params={"a": "${nodes.x.output}"}), "true"), "node n: ${nodes.x…}: unknown node 'x'"),
        (task(params={"a": "${iteration}"}), "'${iteration}' is only available in the params of the task"),
        (repeat(task(), "true", flow="f"), "node n: flow is only for task nodes, and this is a repeat"),
    ],
)
def test_a_repeat_that_could_not_work_is_refused(node: dict[str, object], problem: str) -> None:
    assert problem in problem_of(node)


def test_the_definition_of_a_repeat_is_kept() -> None:
    nodes = {"n": POLL}
    graph = parse_graph({"id": "g", "nodes": nodes, "edges": []})
    assert definition_of(graph)["nodes"] == nodes
    assert parse_graph(definition_of(graph), is_stored=True) == graph


# Undo


def trip() -> Life:
    """Flight and hotel are booked; the car is being booked."""
    nodes = {
        "flight": task(undo="no-flight"),
        "hotel": task(undo="no-hotel"),
        "car": task(undo="no-car"),
        "no-flight": task(params={"id": "${nodes.flight.output}"}),
        "no-hotel": task(params={"id": "${nodes.hotel.output}"}),
        "no-car": task(),
    }
    life = begun(graph_of(nodes, "flight > hotel", "hotel > car"))
    life.succeed("flight", result="f1")
    life.succeed("hotel", result="h1")
    return life


def undone(life: Life) -> list[tuple[str, object]]:
    return [(run.node_id, run.params) for run in life.dispatched if run.node_id.startswith("no-")]


def test_a_failure_undoes_what_had_succeeded_the_last_success_first() -> None:
    life = trip()
    life.fail("car")
    assert (life.status, undone(life)) == ("ACTIVE", [("no-hotel", {"id": "h1"})])
    life.succeed("no-hotel")
    assert undone(life)[1:] == [("no-flight", {"id": "f1"})]
    assert life.status == "ACTIVE"
    life.succeed("no-flight")
    assert (life.status, life.state.failed_node_id, life.statuses["no-car"]) == ("FAILED", "car", "IDLE")
    own = [event.payload for event in life.events if getattr(event.payload, "node_id", "") == "no-hotel"][1:]
    assert [getattr(payload, "undoes", None) for payload in own] == ["hotel"] * 3
    assert life.types[-1] == "EXECUTION_FAILED"


def test_a_cancel_undoes_too_and_ends_canceled() -> None:
    life = trip()
    life.cancel()
    life.react()
    life.end_cancelled_runs()
    life.succeed("no-hotel")
    assert life.must(c.CancelExecution(actor=ANN)) == []
    life.succeed("no-flight")
    assert (life.status, life.types[-1]) == ("CANCELED", "EXECUTION_CANCELED")
    assert life.statuses["no-flight"] == "SUCCEEDED"


def test_a_run_that_completed_before_its_cancel_arrived_is_undone() -> None:
    life = trip()
    life.cancel()
    life.end_run("car", RunStatus.COMPLETED)
    life.react()
    assert (life.statuses["car"], [name for name, _ in undone(life)]) == ("SUCCEEDED", ["no-car"])


def test_an_undo_that_fails_does_not_stop_the_others() -> None:
    life = trip()
    life.fail("car")
    life.fail("no-hotel")
    life.succeed("no-flight")
    assert (life.status, life.statuses["no-hotel"]) == ("FAILED", "FAILED")
    assert life.state.failed_node_id == "car"


def test_a_cancel_while_a_failure_is_being_undone_wins_and_the_undo_goes_on() -> None:
    life = trip()
    life.fail("car")
    life.cancel()
    life.react()
    assert (life.statuses["no-hotel"], life.cancelled) == ("RUNNING", [])
    life.succeed("no-hotel")
    life.succeed("no-flight")
    assert life.status == "CANCELED"


def test_nothing_is_undone_when_all_went_well() -> None:
    life = trip()
    life.succeed("car")
    assert (life.status, undone(life)) == ("COMPLETED", [])


def test_an_outside_worker_undoes_and_nobody_starts_an_undo_by_hand() -> None:
    graph = graph_of(
        {"n": task(undo="back"), "back": {"type": "task", "external": True}, "w": wait()}, "n > w"
    )
    life = begun(graph)
    life.succeed("n")
    assert life.refused(c.MarkNodeReady(actor=ANN, node_id="back")) == "NODE_STATUS"
    life.cancel()
    life.react()
    assert (life.status, life.statuses["back"]) == ("ACTIVE", "READY")
    life.must(c.StartNode(actor=ANN, node_id="back", worker_id="w"))
    life.must(c.SucceedNode(actor=ANN, node_id="back"))
    life.react()
    assert life.status == "CANCELED"


def test_a_rerun_does_again_what_was_undone_and_all_below_it() -> None:
    life = trip()
    life.fail("car")
    life.succeed("no-hotel")
    life.succeed("no-flight")
    assert outputs_for_rerun(life.state, life.graph) == {}


@every_row(
    ("nodes", "edges", "problem"),
    [
        ({"n": task(undo="x")}, (), "node n: undo: unknown node 'x'"),
        ({"n": task(undo="n")}, (), "node n: undo: n cannot be undone itself"),
        ({"n": task(undo="u"), "u": wait()}, (), "node n: undo: u is a wait; only a task can undo a node"),
        (
            {"n": task(undo="u"), "u": task(), "m": task(undo="u")},
            ("n > m",),
            "node m: undo: u undoes n already; add a node of its own",
        ),
        ({"n": task(undo="u"), "u": task()}, ("n > u",), "node n: undo: u has edges"),
        (
            {"n": task(undo="u"), "u": task(params={"x": "${nodes.m.output}"}), "m": task()},
            ("n > m",),
            "node u: ${nodes.m…}: m is not upstream",
        ),
        (
            {"n": sleep(for_sec=1, undo="u"), "u": task()},
            (),
            "node n: undo is only for task, wait, repeat, execution and map",
        ),
    ],
)
def test_an_undo_that_could_not_work_is_refused(
    nodes: dict[str, dict[str, object]], edges: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        graph_of(nodes, *edges)
    assert problem in refused.value.detail
