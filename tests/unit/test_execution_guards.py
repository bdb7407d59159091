"""Every guard of every command, in every phase of an execution and every status of a node.

What is expected stands here in full, in the words of the specification of the 12 commands.
"""

from typing import Any

import pytest

from pyoco_server.domain.executions import commands as c, events as e
from pyoco_server.domain.executions.commands import Rejected
from pyoco_server.domain.executions.decide import Decision, decide
from pyoco_server.domain.executions.events import TYPE_OF, Failure
from pyoco_server.domain.executions.graphs import Graph
from pyoco_server.domain.executions.model import (
    MAX_HELD_BYTES,
    Execution,
    ExecutionStatus,
    NodeState,
    NodeStatus,
    replace,
)
from support.executions import ANN, EXTERNAL, T0, Life, begun, chain, graph_of, task, wait
from support.tables import every_row

GRAPH = graph_of({"n": EXTERNAL, "next": EXTERNAL}, "n > next")
RETRYING = graph_of({"n": {**EXTERNAL, "retry": {"max_attempts": 2, "backoff_sec": 5}}})
LATER = T0 + 100

PHASES: dict[str, dict[str, Any]] = {
    "created": {},
    "started": {"started_at": T0},
    "failing": {"started_at": T0, "fail_requested_at": T0, "failed_node_id": "next", "error": Failure("no")},
    "cancelling": {"started_at": T0, "cancel_requested_at": T0},
    "cancelling while failing": {"started_at": T0, "fail_requested_at": T0, "cancel_requested_at": T0},
    "completed": {"started_at": T0, "completed_at": T0, "status": ExecutionStatus.COMPLETED},
    "failed": {"started_at": T0, "failed_at": T0, "status": ExecutionStatus.FAILED},
    "canceled": {"cancel_requested_at": T0, "canceled_at": T0, "status": ExecutionStatus.CANCELED},
    "canceled, archived": {"canceled_at": T0, "status": ExecutionStatus.CANCELED, "archived_at": T0},
}
ENDED = ("completed", "failed", "canceled", "canceled, archived")
CANCELLING = ("cancelling", "cancelling while failing")

EXECUTION_COMMANDS: dict[str, c.Command] = {
    "CreateExecution": c.CreateExecution(actor=ANN, graph_version=1),
    "StartExecution": c.StartExecution(actor=ANN),
    "CancelExecution": c.CancelExecution(actor=ANN),
    "ArchiveExecution": c.ArchiveExecution(actor=ANN),
}
NODE_COMMANDS: dict[str, c.Command] = {
    "MarkNodeReady": c.MarkNodeReady(actor=ANN, node_id="n"),
    "StartNode": c.StartNode(actor=ANN, node_id="n"),
    "ReportNodeProgress": c.ReportNodeProgress(actor=ANN, node_id="n", progress=1.0),
    "PutNodeWaiting": c.PutNodeWaiting(actor=ANN, node_id="n"),
    "RequestResumeNode": c.RequestResumeNode(actor=ANN, node_id="n"),
    "ResumeNode": c.ResumeNode(actor=ANN, node_id="n"),
    "SucceedNode": c.SucceedNode(actor=ANN, node_id="n"),
    "FailNode": c.FailNode(actor=ANN, node_id="n"),
}

FAILED_FOR_GOOD = ["NODE_FAIL_REPORTED", "NODE_FAILED"]
IN_STATUS: dict[str, dict[str, list[str]]] = {
    "MarkNodeReady": {"IDLE": ["NODE_READY"], "READY": []},
    "StartNode": {"READY": ["NODE_STARTED"], "RUNNING": []},
    "ReportNodeProgress": {"RUNNING": ["NODE_PROGRESS_REPORTED"]},
    "PutNodeWaiting": {"RUNNING": ["NODE_WAITING"]},
    "RequestResumeNode": {"WAITING": ["NODE_RESUME_REQUESTED"]},
    "ResumeNode": {"WAITING": ["NODE_RESUMED"]},
    "SucceedNode": {"RUNNING": ["NODE_SUCCEEDED"]},
    "FailNode": {"RUNNING": FAILED_FOR_GOOD, "WAITING": FAILED_FOR_GOOD},
}
"""The events of a node command while the execution goes on; what is missing is refused."""


REPORTS = ("ReportNodeProgress", "SucceedNode", "FailNode")
"""What a RUNNING node still reports while the execution fails is kept."""


def an_execution(phase: str, status: str, **node: Any) -> Execution:
    return Execution(
        execution_id="e",
        graph_id="g",
        graph_version=1,
        created_at=T0,
        updated_at=T0,
        version=3,
        nodes={"n": a_node(status, **node), "next": a_node("IDLE")},
        **PHASES[phase],
    )


def a_node(status: str, **more: Any) -> NodeState:
    begun_once = status not in ("IDLE", "READY")
    return NodeState(node_type="task", **{"status": NodeStatus(status), "attempt": int(begun_once), **more})


def expected_of_node(command: str, phase: str, status: str) -> list[str] | str:
    if phase == "created":
        return "EXECUTION_NOT_STARTED"
    if phase in ENDED:
        return "EXECUTION_TERMINAL"
    if phase in CANCELLING:
        return "EXECUTION_CANCEL_REQUESTED"
    if phase == "failing" and command not in REPORTS:
        return "EXECUTION_FAIL_REQUESTED"
    return IN_STATUS[command].get(status, "NODE_STATUS")


def expected_of_execution(command: str, phase: str, status: str) -> list[str] | str:
    match command:
        case "CreateExecution":
            return "EXECUTION_EXISTS"
        case "StartExecution":
            return expected_start(phase)
        case "CancelExecution":
            return [] if phase in (*ENDED, *CANCELLING) else expected_cancel(status)
        case _:
            return expected_archive(phase)


def expected_start(phase: str) -> list[str] | str:
    if phase == "created":
        return ["EXECUTION_STARTED"]
    if phase in ENDED:
        return "EXECUTION_TERMINAL"
    return "EXECUTION_CANCEL_REQUESTED" if phase in CANCELLING else []


def expected_archive(phase: str) -> list[str] | str:
    if phase not in ENDED:
        return "EXECUTION_NOT_TERMINAL"
    return [] if phase == "canceled, archived" else ["EXECUTION_ARCHIVED"]


def expected_cancel(status: str) -> list[str]:
    """One commit; `next` is IDLE in every case."""
    of_node = {"RUNNING": ["NODE_INTERRUPT_REQUESTED"], "SUCCEEDED": [], "FAILED": [], "CANCELED": []}
    end = [] if status == "RUNNING" else ["EXECUTION_CANCELED"]
    return ["EXECUTION_CANCEL_REQUESTED", *of_node.get(status, ["NODE_CANCELED"]), "NODE_CANCELED", *end]


def answer(decision: Decision) -> list[str] | str:
    if isinstance(decision, Rejected):
        assert decision.message
        return decision.code.value
    return [TYPE_OF[type(event)] for event in decision]


@every_row("phase", PHASES)
@every_row("command", NODE_COMMANDS)
def test_a_node_command(command: str, phase: str) -> None:
    for status in NodeStatus.__members__:
        decision = decide(an_execution(phase, status), GRAPH, NODE_COMMANDS[command], LATER)
        assert answer(decision) == expected_of_node(command, phase, status), status


@every_row("phase", PHASES)
@every_row("command", EXECUTION_COMMANDS)
def test_an_execution_command(command: str, phase: str) -> None:
    for status in NodeStatus.__members__:
        decision = decide(an_execution(phase, status), GRAPH, EXECUTION_COMMANDS[command], LATER)
        assert answer(decision) == expected_of_execution(command, phase, status), status


def test_there_are_these_12_commands() -> None:
    assert {*EXECUTION_COMMANDS, *NODE_COMMANDS} == set(c.COMMANDS)


@every_row("command", [*EXECUTION_COMMANDS, *NODE_COMMANDS])
def test_only_a_create_has_an_effect_where_there_is_no_execution(command: str) -> None:
    decision = decide(None, GRAPH, {**EXECUTION_COMMANDS, **NODE_COMMANDS}[command], LATER)
    created = ["EXECUTION_CREATED", "NODE_CREATED", "NODE_CREATED"]
    assert answer(decision) == (created if command == "CreateExecution" else "EXECUTION_NOT_FOUND")


@every_row("phase", PHASES)
@every_row("command", NODE_COMMANDS)
def test_a_node_that_is_not_there_is_not_found_in_any_phase(command: str, phase: str) -> None:
    strange = replace(NODE_COMMANDS[command], node_id="nobody")
    assert answer(decide(an_execution(phase, "IDLE"), GRAPH, strange, LATER)) == "NODE_NOT_FOUND"


@every_row("status", ["READY", "RUNNING", "WAITING"])
@every_row("command", NODE_COMMANDS)
def test_a_node_that_is_being_stopped_takes_no_command(command: str, status: str) -> None:
    """Also those that would have no effect: whoever carries it out is to learn that it must stop."""
    stopping = an_execution("started", status, stop_requested_at=T0, stop_reason="not needed")
    wanted = "NODE_CANCEL_REQUESTED" if status in IN_STATUS[command] else "NODE_STATUS"
    assert answer(decide(stopping, GRAPH, NODE_COMMANDS[command], LATER)) == wanted


# Where there was a choice, row by row


@every_row("phase", PHASES)
def test_creating_an_id_again_never_revives_an_execution(phase: str) -> None:
    decision = decide(an_execution(phase, "CANCELED"), GRAPH, EXECUTION_COMMANDS["CreateExecution"], LATER)
    assert answer(decision) == "EXECUTION_EXISTS"


def test_a_second_start_has_the_same_effect_and_no_event() -> None:
    life = Life(GRAPH)
    assert life.must(c.StartExecution(actor=ANN)) == []


def test_node_commands_before_the_start_are_refused() -> None:
    life = Life(GRAPH, start=False)
    assert life.refused(c.MarkNodeReady(actor=ANN, node_id="n")) == "EXECUTION_NOT_STARTED"


def test_a_cancel_before_the_start_is_confirmed_at_once() -> None:
    life = Life(GRAPH, start=False)
    life.cancel()
    assert life.status == "CANCELED"
    assert set(life.statuses.values()) == {"CANCELED"}
    assert life.refused(c.StartExecution(actor=ANN)) == "EXECUTION_TERMINAL"


@pytest.mark.parametrize("phase", ["cancelling", "canceled", "completed", "failed"])
def test_a_cancel_that_is_pending_or_too_late_is_no_event(phase: str) -> None:
    assert decide(an_execution(phase, "RUNNING"), GRAPH, c.CancelExecution(actor=ANN), LATER) == []


def test_a_cancel_is_one_commit_with_all_that_follows_from_it() -> None:
    graph = graph_of({"n": EXTERNAL, "w": wait(), "idle": task()}, "n > w", "w > idle")
    life = Life(graph)
    life.must(c.MarkNodeReady(actor=ANN, node_id="w"))
    life.react()
    life.must(c.StartNode(actor=ANN, node_id="n", worker_id="w-1"))
    assert life.statuses == {"n": "RUNNING", "w": "WAITING", "idle": "IDLE"}
    reason = "wrong month"
    assert life.must(c.CancelExecution(actor=ANN, reason=reason)) == [
        e.ExecutionCancelRequested(requested_by="ann", reason=reason),
        e.NodeInterruptRequested(node_id="n", worker_id="w-1", reason=reason),
        e.NodeCanceled(node_id="w", reason=reason),
        e.NodeCanceled(node_id="idle", reason=reason),
    ]
    assert (life.state.cancel_requested_by, life.state.cancel_reason) == ("ann", reason)


def test_a_late_end_of_a_node_after_a_cancel_is_refused() -> None:
    life = begun(GRAPH)
    life.must(c.StartNode(actor=ANN, node_id="n"))
    life.cancel()
    assert life.refused(c.SucceedNode(actor=ANN, node_id="n")) == "EXECUTION_CANCEL_REQUESTED"
    assert life.refused(c.FailNode(actor=ANN, node_id="n")) == "EXECUTION_CANCEL_REQUESTED"


def test_an_archive_needs_an_end_and_is_made_once() -> None:
    life = begun(GRAPH)
    assert life.refused(c.ArchiveExecution(actor=ANN)) == "EXECUTION_NOT_TERMINAL"
    life.cancel()
    assert life.must(c.ArchiveExecution(actor=ANN, reason="old")) == [e.ExecutionArchived(reason="old")]
    assert life.state.archived_at == life.now
    assert life.must(c.ArchiveExecution(actor=ANN)) == []


def test_a_start_by_the_same_worker_and_attempt_is_the_same_and_by_another_is_refused() -> None:
    life = begun(GRAPH)
    mine = c.StartNode(actor=ANN, node_id="n", worker_id="me", attempt=1)
    assert life.must(mine) == [e.NodeStarted(node_id="n", attempt=1, worker_id="me")]
    assert life.must(mine) == []
    assert life.must(replace(mine, attempt=None)) == []
    assert life.refused(replace(mine, worker_id="other")) == "NODE_HELD_BY_ANOTHER"
    assert life.refused(replace(mine, worker_id=None)) == "NODE_HELD_BY_ANOTHER"
    assert life.refused(replace(mine, attempt=2)) == "WRONG_ATTEMPT"


@pytest.mark.parametrize("command", ["ReportNodeProgress", "PutNodeWaiting", "SucceedNode", "FailNode"])
def test_who_lost_a_node_does_not_speak_for_it(command: str) -> None:
    life = begun(GRAPH)
    life.must(c.StartNode(actor=ANN, node_id="n", worker_id="me"))
    word = NODE_COMMANDS[command]
    assert life.refused(replace(word, worker_id="other")) == "NODE_HELD_BY_ANOTHER"
    assert life.refused(replace(word, attempt=2)) == "WRONG_ATTEMPT"
    assert life.must(replace(word, worker_id="me", attempt=1))


def test_a_wait_node_succeeds_by_the_commit_that_resumes_it() -> None:
    life = begun(graph_of({"w": wait()}))
    assert life.refused(c.SucceedNode(actor=ANN, node_id="w")) == "NODE_STATUS"
    assert life.must(c.ResumeNode(actor=ANN, node_id="w", data={"ok": True})) == [
        e.NodeResumed(node_id="w", data={"ok": True}),
        e.NodeSucceeded(node_id="w", output={"ok": True}),
    ]
    assert life.node("w").output == {"ok": True}


def test_a_task_that_waited_goes_on_when_it_is_resumed() -> None:
    life = begun(GRAPH)
    life.must(c.StartNode(actor=ANN, node_id="n"))
    life.must(c.PutNodeWaiting(actor=ANN, node_id="n", prompt="really?"))
    assert life.refused(c.SucceedNode(actor=ANN, node_id="n")) == "NODE_STATUS"
    assert life.must(c.ResumeNode(actor=ANN, node_id="n", data=1)) == [e.NodeResumed(node_id="n", data=1)]
    assert (life.node("n").status, life.node("n").resume_data) == (NodeStatus.RUNNING, 1)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_failure_with_attempts_left_leads_back_to_ready(waiting: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    life = begun(RETRYING)
    life.must(c.StartNode(actor=ANN, node_id="n"))
    if waiting:
        life.must(c.PutNodeWaiting(actor=ANN, node_id="n", deadline=life.now + 60))
    error = Failure("no luck")
    reported = e.NodeFailReported(node_id="n", attempt=1, error=error, retry_at=life.now + 5)
    assert life.must(c.FailNode(actor=ANN, node_id="n", error=error)) == [reported]
    node = life.node("n")
    assert (node.status, node.retry_at, node.error, node.deadline) == ("READY", life.now + 5, error, None)


def test_a_start_before_retry_at_is_refused_and_at_it_is_not() -> None:
    life = begun(RETRYING)
    life.must(c.StartNode(actor=ANN, node_id="n"))
    life.must(c.FailNode(actor=ANN, node_id="n"))
    again = c.StartNode(actor=ANN, node_id="n")
    life.now += 4.999
    assert life.refused(again) == "RETRY_NOT_DUE"
    life.now = T0 + 5
    assert life.must(again) == [e.NodeStarted(node_id="n", attempt=2)]
    assert [type(event) for event in life.must(c.FailNode(actor=ANN, node_id="n"))] == [
        e.NodeFailReported,
        e.NodeFailed,
    ]


def test_the_attempt_of_a_start_is_the_next_one_or_wrong() -> None:
    life = begun(GRAPH)
    assert life.refused(c.StartNode(actor=ANN, node_id="n", attempt=2)) == "WRONG_ATTEMPT"
    assert life.must(c.StartNode(actor=ANN, node_id="n", attempt=1))


@pytest.mark.parametrize("command", [c.ResumeNode, c.RequestResumeNode])
def test_the_resume_key_must_match_a_wait_key(command: type[c.ResumeNode | c.RequestResumeNode]) -> None:
    life = begun(graph_of({"w": wait(wait_key="${input.ym}")}), input={"ym": 202401})
    assert life.node("w").wait_key == "202401"
    assert life.refused(command(actor=ANN, node_id="w")) == "RESUME_KEY_MISMATCH"
    assert life.refused(command(actor=ANN, node_id="w", resume_key="202402")) == "RESUME_KEY_MISMATCH"
    assert life.must(command(actor=ANN, node_id="w", resume_key="202401"))


def test_a_wait_without_a_key_takes_any_resume_key() -> None:
    life = begun(graph_of({"w": wait()}))
    assert life.must(c.ResumeNode(actor=ANN, node_id="w", resume_key="whatever"))


def test_asking_for_a_resume_is_recorded_and_changes_nothing() -> None:
    life = begun(graph_of({"w": wait(timeout_sec=60)}))
    before = life.node("w")
    life.now += 1
    asked = life.must(c.RequestResumeNode(actor=ANN, node_id="w", data="please", requested_by="bob"))
    assert asked == [e.NodeResumeRequested(node_id="w", data="please", requested_by="bob")]
    after = life.node("w")
    assert after.resume_request is not None
    assert (after.resume_request.requested_by, after.resume_request.data) == ("bob", "please")
    assert replace(after, resume_request=None, updated_at=before.updated_at) == before
    assert life.look().events == ()


def test_rejected_commands_leave_no_event() -> None:
    life = begun(chain(2))
    version = life.state.version
    life.refused(c.StartNode(actor=ANN, node_id="n1"))
    assert life.state.version == version
    assert len(life.events) == version


@every_row("command", NODE_COMMANDS)
def test_a_sibling_that_is_being_stopped_may_still_report_while_the_execution_fails(command: str) -> None:
    """D39: its work is done; a re-run carries it over."""
    failing = an_execution("failing", "RUNNING", stop_requested_at=T0, stop_reason="another node failed")
    decision = decide(failing, GRAPH, NODE_COMMANDS[command], LATER)
    wanted = IN_STATUS[command]["RUNNING"] if command in REPORTS else "EXECUTION_FAIL_REQUESTED"
    assert answer(decision) == wanted


def test_a_failure_while_the_execution_fails_is_final_though_attempts_are_left() -> None:
    """D39: nothing becomes READY any more."""
    graph = graph_of({"n": {**EXTERNAL, "retry": {"max_attempts": 3}}, "next": EXTERNAL}, "n > next")
    failing = an_execution("failing", "RUNNING")
    assert answer(decide(failing, graph, NODE_COMMANDS["FailNode"], LATER)) == FAILED_FOR_GOOD


def test_asking_for_a_resume_twice_is_one_event() -> None:
    """D39: the same effect again is no event; other data or another person is."""
    life = Life(graph_of({"n": EXTERNAL}))
    life.react()
    life.must(c.StartNode(actor=ANN, node_id="n"))
    life.must(c.PutNodeWaiting(actor=ANN, node_id="n", wait_key="k"))
    ask = c.RequestResumeNode(actor=ANN, node_id="n", resume_key="k", data={"ok": True})
    assert len(life.must(ask)) == 1
    assert life.must(ask) == []
    assert len(life.must(replace(ask, data={"ok": 1}))) == 1
    assert len(life.must(replace(ask, requested_by="bob"))) == 1


# The values that an execution holds


def full(graph: Graph, held_bytes: int) -> Life:
    """Its entry node runs, and it holds so much already."""
    life = begun(graph)
    life.must(c.StartNode(actor=ANN, node_id="n"))
    life.known = replace(life.state, held_bytes=held_bytes)
    return life


OUTPUT = "x" * 1_000
ROOM_FOR_IT = MAX_HELD_BYTES - len(OUTPUT) - len('""')


def test_an_output_is_refused_when_the_execution_would_hold_too_much() -> None:
    succeed = c.SucceedNode(actor=ANN, node_id="n", output=OUTPUT)
    assert full(GRAPH, ROOM_FOR_IT + 1).refused(succeed) == "EXECUTION_TOO_LARGE"
    life = full(GRAPH, ROOM_FOR_IT)
    assert life.must(succeed)
    assert life.state.held_bytes == MAX_HELD_BYTES


def test_a_full_execution_still_fails_ends_and_is_cancelled() -> None:
    assert full(GRAPH, MAX_HELD_BYTES).must(c.SucceedNode(actor=ANN, node_id="n"))
    assert full(GRAPH, MAX_HELD_BYTES).must(c.FailNode(actor=ANN, node_id="n"))
    assert full(GRAPH, MAX_HELD_BYTES).cancel()


def test_metrics_need_room_only_for_what_they_add() -> None:
    """A worker may report its progress for ever."""
    life = full(GRAPH, 0)
    report = c.ReportNodeProgress(actor=ANN, node_id="n", metrics={"log": "x" * (MAX_HELD_BYTES // 2)})
    for _ in range(5):
        life.must(report)
    assert life.state.held_bytes == len('{"log":""}') + MAX_HELD_BYTES // 2
    more = c.ReportNodeProgress(actor=ANN, node_id="n", metrics={"log": "x" * MAX_HELD_BYTES})
    assert life.refused(more) == "EXECUTION_TOO_LARGE"


@pytest.mark.parametrize("command", [c.ResumeNode, c.RequestResumeNode])
def test_the_data_of_a_resume_needs_room(command: type[c.ResumeNode | c.RequestResumeNode]) -> None:
    life = begun(graph_of({"w": wait()}))
    life.known = replace(life.state, held_bytes=MAX_HELD_BYTES)
    assert life.refused(command(actor=ANN, node_id="w", data="x")) == "EXECUTION_TOO_LARGE"
    assert life.must(command(actor=ANN, node_id="w"))
