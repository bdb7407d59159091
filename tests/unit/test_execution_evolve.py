"""The reducer: what each event does to each status of a node in each phase of an execution, and nothing else.

The table of transitions is written down here once more, from the specification.
"""

from itertools import product
from typing import Any

import pytest

from pyoco_server.domain.executions import commands as c, events as e
from pyoco_server.domain.executions.events import EXTENSIONS, PAYLOADS, Failure
from pyoco_server.domain.executions.evolve import evolve, fold
from pyoco_server.domain.executions.model import (
    Execution,
    ExecutionStatus,
    NodeState,
    NodeStatus,
    held_by,
    json_size,
    replace,
)
from support.executions import ANN, EXTERNAL, T0, Life, begun, diamond, graph_of, join, task, wait
from support.tables import every_row

AT = T0 + 50
ERROR = Failure("boom")
REASON = "because"

PHASES: dict[str, dict[str, Any]] = {
    "CREATED": {},
    "STARTED": {"started_at": T0},
    "FAILING": {"started_at": T0, "fail_requested_at": T0, "failed_node_id": "x", "error": ERROR},
    "CANCELLING": {"started_at": T0, "cancel_requested_at": T0},
    "COMPLETED": {"started_at": T0, "completed_at": T0, "status": ExecutionStatus.COMPLETED},
    "FAILED": {"started_at": T0, "failed_at": T0, "status": ExecutionStatus.FAILED},
    "CANCELED": {"cancel_requested_at": T0, "canceled_at": T0, "status": ExecutionStatus.CANCELED},
}
ENDED = ("COMPLETED", "FAILED", "CANCELED")
STATUSES = tuple(NodeStatus.__members__)
OVER = ("SUCCEEDED", "FAILED", "CANCELED")

RETRYING = e.NodeFailReported(node_id="n", attempt=1, error=ERROR, retry_at=AT + 5)
NODE_EVENTS: dict[str, e.Payload] = {
    "NODE_READY": e.NodeReady(node_id="n"),
    "NODE_STARTED": e.NodeStarted(node_id="n", attempt=1, worker_id="w", run_id="r"),
    "NODE_PROGRESS_REPORTED": e.NodeProgressReported(
        node_id="n", progress=50, message="half", metrics={"k": 1}
    ),
    "NODE_WAITING": e.NodeWaiting(node_id="n", wait_key="k", prompt="p?", deadline=AT + 9),
    "NODE_RESUME_REQUESTED": e.NodeResumeRequested(node_id="n", requested_by="bob", data=1),
    "NODE_RESUMED": e.NodeResumed(node_id="n", data=2),
    "NODE_SUCCEEDED": e.NodeSucceeded(node_id="n", output={"v": 1}),
    "NODE_SUCCEEDED with carried_from": e.NodeSucceeded(node_id="n", output=2, carried_from="e-0"),
    "NODE_FAIL_REPORTED": e.NodeFailReported(node_id="n", attempt=1, error=ERROR),
    "NODE_FAIL_REPORTED with retry_at": RETRYING,
    "NODE_FAILED": e.NodeFailed(node_id="n", error=ERROR),
    "NODE_CANCEL_REQUESTED": e.NodeCancelRequested(node_id="n", reason=REASON),
    "NODE_INTERRUPT_REQUESTED": e.NodeInterruptRequested(node_id="n", reason=REASON),
    "NODE_CANCELED": e.NodeCanceled(node_id="n", reason=REASON),
    "FORK_OPENED": e.ForkOpened(node_id="n", branch_ids=("a", "b")),
    "MAP_OPENED": e.MapOpened(node_id="n", elements=2, items=2),
    "MAP_ITEMS_ENDED": e.MapItemsEnded(node_id="n", ended=(e.ItemEnd(index=0),)),
    "MAP_ITEMS_ENDED with carried_from": e.MapItemsEnded(
        node_id="n", ended=(e.ItemEnd(index=0, output=1),), items=2, carried_from="e-0"
    ),
    "JOIN_GATE_UPDATED": e.JoinGateUpdated(
        node_id="n",
        policy="ANY_SUCCESS",
        expected_branches=("a", "b"),
        completed_branches=("a",),
        failed_branches=(),
        canceled_branches=(),
        is_passable=True,
    ),
    "JOIN_PASSED": e.JoinPassed(node_id="n"),
}
EXECUTION_EVENTS: dict[str, e.Payload] = {
    "EXECUTION_CREATED": e.ExecutionCreated(graph_id="other", graph_version=9),
    "NODE_CREATED": e.NodeCreated(node_id="n", node_type="wait"),
    "EXECUTION_STARTED": e.ExecutionStarted(),
    "EXECUTION_CANCEL_REQUESTED": e.ExecutionCancelRequested(requested_by="bob", reason=REASON),
    "EXECUTION_CANCELED": e.ExecutionCanceled(),
    "EXECUTION_ARCHIVED": e.ExecutionArchived(),
    "EXECUTION_FAIL_REQUESTED": e.ExecutionFailRequested(failed_node_id="n", error=ERROR),
    "EXECUTION_FAILED": e.ExecutionFailed(failed_node_id="n", error=ERROR),
    "EXECUTION_COMPLETED": e.ExecutionCompleted(result={"n": 1}),
    "MESSAGE_RECEIVED": e.MessageReceived(name="m", data=1),
}
ALL_EVENTS = {**NODE_EVENTS, **EXECUTION_EVENTS}

SAME = "the same status, with more known"
TRANSITIONS: dict[str, dict[str, str]] = {
    "NODE_READY": {"IDLE": "READY"},
    "NODE_STARTED": {"READY": "RUNNING"},
    "NODE_PROGRESS_REPORTED": {"RUNNING": SAME},
    "NODE_WAITING": {"RUNNING": "WAITING"},
    "NODE_RESUME_REQUESTED": {"WAITING": SAME},
    "NODE_RESUMED": {"WAITING": "RUNNING"},
    "NODE_SUCCEEDED": {"RUNNING": "SUCCEEDED"},
    "NODE_SUCCEEDED with carried_from": {"IDLE": "SUCCEEDED"},
    "NODE_FAIL_REPORTED": {"RUNNING": SAME, "WAITING": SAME},
    "NODE_FAIL_REPORTED with retry_at": {"RUNNING": "READY", "WAITING": "READY"},
    "NODE_FAILED": {"RUNNING": "FAILED", "WAITING": "FAILED"},
    "NODE_CANCEL_REQUESTED": {"READY": SAME, "RUNNING": SAME, "WAITING": SAME},
    "NODE_INTERRUPT_REQUESTED": {"RUNNING": SAME},
    "NODE_CANCELED": dict.fromkeys(("IDLE", "READY", "RUNNING", "WAITING"), "CANCELED"),
    "FORK_OPENED": {"RUNNING": SAME},
    "MAP_OPENED": {"RUNNING": SAME},
    "MAP_ITEMS_ENDED": {"RUNNING": SAME},
    "MAP_ITEMS_ENDED with carried_from": {"IDLE": SAME},
    "JOIN_GATE_UPDATED": dict.fromkeys(("IDLE", "READY", "RUNNING", "WAITING"), SAME),
    "JOIN_PASSED": {"RUNNING": SAME},
}
AFTER_A_CANCEL: dict[str, dict[str, str]] = {
    "MAP_ITEMS_ENDED": {"RUNNING": SAME},
    "NODE_SUCCEEDED": {"RUNNING": "SUCCEEDED"},
    "NODE_FAILED": {"RUNNING": "FAILED"},
    "NODE_CANCEL_REQUESTED": TRANSITIONS["NODE_CANCEL_REQUESTED"],
    "NODE_INTERRUPT_REQUESTED": TRANSITIONS["NODE_INTERRUPT_REQUESTED"],
    "NODE_CANCELED": TRANSITIONS["NODE_CANCELED"],
}


def an_execution(phase: str, status: str) -> Execution:
    return Execution(
        execution_id="e",
        graph_id="g",
        graph_version=1,
        created_at=T0,
        updated_at=T0,
        version=7,
        nodes={
            "n": NodeState(node_type="task", status=NodeStatus(status), updated_at=T0),
            "other": NodeState(node_type="task", status=NodeStatus.READY, updated_at=T0),
        },
        **PHASES[phase],
    )


def an_event(payload: e.Payload, sequence: int = 8, schema_version: int = 1) -> e.Event:
    return e.Event(
        sequence=sequence,
        execution_id="e",
        occurred_at=AT,
        actor=ANN,
        payload=payload,
        schema_version=schema_version,
    )


def after(state: Execution, payload: e.Payload) -> Execution:
    found = evolve(state, an_event(payload))
    assert found is not None
    return found


def expected_status(event: str, phase: str, status: str) -> str | None:
    """None: without effect."""
    if phase in ENDED:
        return None
    if phase == "CREATED" and event != "NODE_CANCELED":
        return None
    if phase == "FAILING" and event.endswith("with carried_from"):
        return None
    table = AFTER_A_CANCEL if phase == "CANCELLING" else TRANSITIONS
    return table.get(event, {}).get(status)


def test_the_tables_here_name_all_24_types() -> None:
    assert {event.partition(" with ")[0] for event in ALL_EVENTS} == set(PAYLOADS)
    assert len(set(PAYLOADS) - set(EXTENSIONS)) == 24


@every_row("event", NODE_EVENTS)
def test_a_node_event(event: str) -> None:
    for phase, status in product(PHASES, STATUSES):
        check_node_event(event, phase, status)


def check_node_event(event: str, phase: str, status: str) -> None:
    before = an_execution(phase, status)
    found = after(before, NODE_EVENTS[event])
    wanted = expected_status(event, phase, status)
    if wanted is None:
        assert found == replace(before, version=8)
        return
    assert found.nodes["n"].status == (status if wanted is SAME else wanted)
    assert found.nodes["n"].updated_at == AT
    assert found.nodes["n"].canceled_by_execution is (event == "NODE_CANCELED" and phase == "CANCELLING")
    assert replace(found, version=7, updated_at=T0, nodes=before.nodes, held_bytes=0) == before
    assert found.nodes["other"] == before.nodes["other"]


def test_an_undo_takes_effect_after_the_request_of_an_end_and_for_a_success_alone() -> None:
    for phase, status in product(PHASES, [*STATUSES, *OVER]):
        before = an_execution(phase, "IDLE")
        undone = replace(before.nodes["other"], status=NodeStatus(status))
        before = replace(before, nodes={**before.nodes, "other": undone})
        found = after(before, e.NodeReady(node_id="n", undoes="other"))
        is_due = phase in ("FAILING", "CANCELLING") and status == "SUCCEEDED"
        assert found.nodes["n"].status == ("READY" if is_due else "IDLE"), (phase, status)


EXECUTION_PHASES = {
    "EXECUTION_STARTED": {"CREATED": "STARTED"},
    "EXECUTION_CANCEL_REQUESTED": dict.fromkeys(("CREATED", "STARTED", "FAILING"), "CANCELLING"),
    "EXECUTION_CANCELED": {"CANCELLING": "CANCELED"},
    "EXECUTION_ARCHIVED": {phase: phase for phase in ENDED},
    "EXECUTION_FAIL_REQUESTED": {"STARTED": "FAILING"},
    "EXECUTION_FAILED": {"FAILING": "FAILED"},
    "EXECUTION_COMPLETED": {"STARTED": "COMPLETED"},
}


@every_row("event", EXECUTION_EVENTS)
def test_an_execution_event(event: str) -> None:
    for phase, status in product(PHASES, STATUSES):
        check_execution_event(event, phase, status)


def check_execution_event(event: str, phase: str, status: str) -> None:
    before = an_execution(phase, status)
    found = after(before, EXECUTION_EVENTS[event])
    wanted = EXECUTION_PHASES.get(event, {}).get(phase)
    if wanted is None:
        assert found == replace(before, version=8)
        return
    assert found.phase == wanted
    assert (found.version, found.updated_at) == (8, AT)
    if event != "EXECUTION_CANCELED":
        assert found.nodes == before.nodes


@every_row("event", ALL_EVENTS)
def test_a_node_that_has_ended_never_changes(event: str) -> None:
    for phase, status in product(PHASES, OVER):
        before = an_execution(phase, status)
        assert after(before, ALL_EVENTS[event]).nodes["n"] == before.nodes["n"], (phase, status)


@every_row("event", ALL_EVENTS)
def test_an_execution_that_has_ended_can_be_archived_and_nothing_else(event: str) -> None:
    for phase in ENDED:
        before = an_execution(phase, "RUNNING")
        found = after(before, ALL_EVENTS[event])
        archived_at = AT if event == "EXECUTION_ARCHIVED" else None
        assert found == replace(before, version=8, updated_at=found.updated_at, archived_at=archived_at), (
            phase
        )


def test_an_archive_keeps_the_time_of_the_first() -> None:
    first = after(an_execution("COMPLETED", "SUCCEEDED"), e.ExecutionArchived())
    later = replace(an_event(e.ExecutionArchived(), 9), occurred_at=AT + 1)
    assert evolve(first, later) == replace(first, version=9)


@pytest.mark.parametrize("status", STATUSES)
def test_the_end_of_a_cancel_leaves_nothing_unfinished(status: str) -> None:
    found = after(an_execution("CANCELLING", status), e.ExecutionCanceled())
    assert found.status == "CANCELED"
    assert found.canceled_at == AT
    assert all(node.status.is_terminal for node in found.nodes.values())
    node = found.nodes["n"]
    if status in OVER:
        assert node == an_execution("CANCELLING", status).nodes["n"]
    else:
        assert (node.status, node.canceled_by_execution, node.ended_at) == ("CANCELED", True, AT)
        assert (node.deadline, node.retry_at) == (None, None)


@every_row("event", ALL_EVENTS)
def test_another_schema_version_moves_the_version_and_nothing_else(event: str) -> None:
    for phase, status, schema_version in product(PHASES, STATUSES, (0, 2)):
        before = an_execution(phase, status)
        strange = an_event(ALL_EVENTS[event], 8, schema_version)
        assert evolve(before, strange) == replace(before, version=8), (phase, status)


def test_an_unknown_type_moves_the_version_and_nothing_else() -> None:
    for phase, status in product(PHASES, STATUSES):
        before = an_execution(phase, status)
        unknown = e.Unknown(type="NODE_TELEPORTED", fields={"node_id": "n"})
        assert evolve(before, an_event(unknown)) == replace(before, version=8), (phase, status)


def test_an_event_of_a_node_that_is_not_there_has_no_effect() -> None:
    before = an_execution("STARTED", "IDLE")
    assert after(before, e.NodeReady(node_id="nobody")) == replace(before, version=8)


@pytest.mark.parametrize("payload", [e.NodeReady(node_id="n"), e.Unknown(type="X", fields=None)])
def test_before_it_was_created_there_is_no_execution(payload: e.Payload) -> None:
    assert evolve(None, an_event(payload, 1)) is None
    assert evolve(None, an_event(e.ExecutionCreated(graph_id="g", graph_version=1), 1, 2)) is None


def test_a_retry_begins_with_a_clean_attempt() -> None:
    state = an_execution("STARTED", "RUNNING")
    state = after(state, NODE_EVENTS["NODE_PROGRESS_REPORTED"])
    state = after(state, RETRYING)
    assert (state.nodes["n"].retry_at, state.nodes["n"].error) == (AT + 5, ERROR)
    node = after(state, e.NodeStarted(node_id="n", attempt=2)).nodes["n"]
    assert (node.attempt, node.retry_at, node.error) == (2, None, None)
    assert (node.progress, node.progress_message, node.metrics) == (None, None, None)
    assert (node.worker_id, node.run_id) == (None, None)


def test_progress_keeps_what_a_later_report_does_not_say() -> None:
    state = after(an_execution("STARTED", "RUNNING"), NODE_EVENTS["NODE_PROGRESS_REPORTED"])
    node = after(state, e.NodeProgressReported(node_id="n", progress=0)).nodes["n"]
    assert (node.progress, node.progress_message, node.metrics) == (0, "half", {"k": 1})


def test_a_wait_says_until_when_and_for_what_and_a_resume_ends_that() -> None:
    state = after(an_execution("STARTED", "RUNNING"), NODE_EVENTS["NODE_WAITING"])
    node = state.nodes["n"]
    assert (node.wait_key, node.prompt, node.deadline, node.waiting_at) == ("k", "p?", AT + 9, AT)
    node = after(state, NODE_EVENTS["NODE_RESUMED"]).nodes["n"]
    assert (node.deadline, node.resume_data, node.resumed_at) == (None, 2, AT)


def test_the_first_reason_to_stop_is_kept() -> None:
    state = after(an_execution("STARTED", "RUNNING"), e.NodeCancelRequested(node_id="n", reason="first"))
    node = after(state, e.NodeInterruptRequested(node_id="n", reason="second")).nodes["n"]
    assert (node.stop_requested_at, node.stop_reason) == (AT, "first")


# The fold


def a_full_life() -> Life:
    """Forks, a retry, a wait, a failure that is saved, progress, and an end."""
    graph = graph_of(
        {
            "first": {**EXTERNAL, "retry": {"max_attempts": 2}},
            "split": {"type": "fork"},
            "a": task(),
            "b": task(),
            "gather": join("ALL_DONE"),
            "ask": wait(prompt="ok?", timeout_sec=60),
            "last": EXTERNAL,
        },
        "first > split",
        "split > a",
        "split > b",
        "a > gather",
        "b > gather",
        "gather > ask",
        "ask > last",
    )
    life = begun(graph)
    life.must(c.StartNode(actor=ANN, node_id="first", worker_id="w"))
    life.must(c.ReportNodeProgress(actor=ANN, node_id="first", progress=10))
    life.must(c.FailNode(actor=ANN, node_id="first"))
    life.must(c.StartNode(actor=ANN, node_id="first", worker_id="w"))
    life.must(c.SucceedNode(actor=ANN, node_id="first", output=1))
    life.react()
    life.succeed("a")
    life.fail("b")
    life.must(c.RequestResumeNode(actor=ANN, node_id="ask"))
    life.must(c.ResumeNode(actor=ANN, node_id="ask", data={"ok": True}))
    life.react()
    life.must(c.StartNode(actor=ANN, node_id="last"))
    life.must(c.SucceedNode(actor=ANN, node_id="last", output="done"))
    life.react()
    life.must(c.ArchiveExecution(actor=ANN))
    assert life.status == "COMPLETED"
    return life


def test_folding_any_prefix_twice_gives_the_same() -> None:
    events = a_full_life().events
    for count in range(len(events) + 1):
        once = fold(events[:count])
        assert once == fold(events[:count])
        assert fold(events[count:], once) == fold(events)


def test_a_fold_changes_no_state_that_was_given_out() -> None:
    life = a_full_life()
    states = []
    state: Execution | None = None
    for event in life.events:
        state = evolve(state, event)
        states.append(state)
    assert states == [fold(life.events[: count + 1]) for count in range(len(life.events))]


def test_the_state_at_a_sequence_inside_a_commit_is_exact() -> None:
    """Known fault elsewhere: a wrong state at a sequence. Every event of a commit is a moment of its own."""
    life = begun(diamond())
    seen = [fold(life.events[:count]) for count in range(1, len(life.events) + 1)]
    assert [state.version for state in seen if state is not None] == list(range(1, len(seen) + 1))
    last = life.commits[-1]
    assert [event.type for event in last.events()][:4] == [
        "NODE_READY",
        "NODE_STARTED",
        "FORK_OPENED",
        "NODE_SUCCEEDED",
    ]
    of_split = [
        state.nodes["split"].status.value for state in seen[last.first_sequence - 2 :] if state is not None
    ][:5]
    assert of_split == ["IDLE", "READY", "RUNNING", "RUNNING", "SUCCEEDED"]


def test_the_state_between_a_cancel_and_its_end_in_one_commit_is_exact() -> None:
    life = Life(diamond())
    life.cancel()
    first = life.commits[-1].first_sequence
    asked, confirmed = fold(life.events[:first]), fold(life.events)
    assert asked is not None
    assert confirmed is not None
    assert (asked.status, asked.phase, asked.version) == ("ACTIVE", "CANCELLING", first)
    assert {node.status for node in asked.nodes.values()} == {"IDLE"}
    assert (confirmed.status, confirmed.version) == ("CANCELED", len(life.events))


def test_a_commit_numbers_its_events_without_gaps() -> None:
    life = a_full_life()
    assert [event.sequence for event in life.events] == list(range(1, len(life.events) + 1))
    assert len({event.event_id for event in life.events}) == len(life.events)
    assert [event.event_id for event in life.events] == [event.event_id for event in a_full_life().events]


def held(state: Execution) -> int:
    return json_size(state.input) + json_size(state.result) + sum(map(held_by, state.nodes.values()))


def test_the_size_of_what_an_execution_holds_is_right_after_every_event() -> None:
    """Progress, a retry, a resume and an end: values come, are replaced and are dropped."""
    retrying = {**EXTERNAL, "retry": {"max_attempts": 2, "backoff_sec": 0}}
    life = begun(graph_of({"n": retrying, "w": wait()}, "n > w"), input={"a": [1, 2, 3]})
    start = c.StartNode(actor=ANN, node_id="n")
    ask = c.RequestResumeNode(actor=ANN, node_id="w", data=["maybe"])
    for command in (
        start,
        c.ReportNodeProgress(actor=ANN, node_id="n", metrics={"m": "long" * 9}),
        c.ReportNodeProgress(actor=ANN, node_id="n", metrics={"m": 1}),
        c.FailNode(actor=ANN, node_id="n"),
        start,
        c.SucceedNode(actor=ANN, node_id="n", output=["é", None]),
        ask,
        c.ResumeNode(actor=ANN, node_id="w", data={"yes": True}),
    ):
        life.must(command)
        life.react()
    sizes = set()
    state: Execution | None = None
    for event in life.events:
        state = evolve(state, event)
        assert state is not None
        assert state.held_bytes == held(state), event.type
        sizes.add(state.held_bytes)
    assert life.status == "COMPLETED"
    assert len(sizes) >= 7


def test_a_state_of_an_older_version_counts_from_now_on() -> None:
    life = begun(graph_of({"n": EXTERNAL}))
    life.must(c.StartNode(actor=ANN, node_id="n"))
    life.must(c.ReportNodeProgress(actor=ANN, node_id="n", metrics={"m": "long" * 9}))
    life.known = replace(life.state, held_bytes=0)
    life.must(c.ReportNodeProgress(actor=ANN, node_id="n", metrics={"m": 1}))
    assert life.state.held_bytes == 0
    life.must(c.SucceedNode(actor=ANN, node_id="n", output="abc"))
    assert life.state.held_bytes == len('"abc"')
