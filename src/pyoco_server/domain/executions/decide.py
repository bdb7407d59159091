"""From a command to events, or to a refusal with a code, by the guard tables of `commands`. Pure."""

from collections.abc import Iterable
from typing import Final, cast

import msgspec

from pyoco_server.domain.cel.expressions import ConditionError
from pyoco_server.domain.cel.values import Allowance, ConditionFailed
from pyoco_server.domain.executions import commands as c, events as e
from pyoco_server.domain.executions.commands import REPORTS, Code, Rejected, Verdict, ask_node, ask_phase
from pyoco_server.domain.executions.conditions import DataValues
from pyoco_server.domain.executions.graphs import Graph, GraphNode, NodeType
from pyoco_server.domain.executions.model import (
    MAX_HELD_BYTES,
    Execution,
    NodeState,
    NodeStatus,
    Phase,
    json_size,
    pending_undos,
    replace,
    too_large,
)
from pyoco_server.domain.inputs import nearest

MAX_MESSAGES: Final = 100
"""Messages that an execution keeps for nodes that have not taken them yet."""
MAX_BACKOFF_SEC: Final = 3_600.0
CANCELED: Final = "the execution was cancelled"

Decision = list[e.Payload] | Rejected


def decide(
    state: Execution | None,
    graph: Graph,
    command: c.Command,
    now: float,
    allowance: Allowance | None = None,
) -> Decision:
    """The events of one commit; none if the command is already in effect.

    With an `allowance`, TooHeavy is raised once the conditions of a message exceed it.
    """
    if state is None:
        if isinstance(command, c.CreateExecution):
            return _create(graph, command)
        return Rejected(Code.EXECUTION_NOT_FOUND, "execution not found")
    if isinstance(command, c.NodeCommand):
        return _decide_node(state, graph, command, now)
    verdict = ask_phase(command, state.phase)
    if isinstance(verdict, Rejected):
        return verdict
    if isinstance(command, c.SendMessage):
        return receive(state, graph, command, allowance)
    return [] if verdict is Verdict.SAME else _decide_execution(state, graph, command)


def _create(graph: Graph, command: c.CreateExecution) -> list[e.Payload]:
    created = e.ExecutionCreated(
        graph_id=graph.id,
        graph_version=command.graph_version,
        input=command.input,
        tenant_id=command.tenant_id,
        api_key_id=command.api_key_id,
        rerun_of=command.rerun_of,
        given_id=command.given_id,
        parent_execution_id=command.parent_execution_id,
        parent_node_id=command.parent_node_id,
        graph_versions=command.graph_versions,
        trace=command.trace,
        values=command.values,
    )
    children = command.children_to_rerun
    nodes = [
        e.NodeCreated(node_id=node.id, node_type=node.type.value, rerun_of=children.get(node.id))
        for node in graph.nodes.values()
    ]
    return [created, *nodes]


def _decide_execution(state: Execution, graph: Graph, command: c.Command) -> list[e.Payload]:
    match command:
        case c.StartExecution():
            return [e.ExecutionStarted()]
        case c.CancelExecution():
            return _cancel(state, graph, command)
        case c.ArchiveExecution():
            return [] if state.archived_at is not None else [e.ExecutionArchived(reason=command.reason)]
    raise TypeError(f"{type(command).__name__} is not an execution command")


def _cancel(state: Execution, graph: Graph, command: c.CancelExecution) -> list[e.Payload]:
    """One commit: the request, the end of all inactive nodes, the interrupt of all running nodes.

    Undo nodes are left to the orchestrator, which ends the execution after the last one.
    """
    reason = e.shortened(command.reason or CANCELED, e.MAX_REASON)
    events: list[e.Payload] = [
        e.ExecutionCancelRequested(
            requested_by=command.requested_by or command.actor.name, reason=command.reason
        )
    ]
    nodes = {node_id: node for node_id, node in state.nodes.items() if node_id not in graph.undoes}
    for node_id, node in nodes.items():
        if node.status is NodeStatus.RUNNING:
            events.append(interrupt(node_id, node, reason))
        elif not node.status.is_terminal:
            events.append(e.NodeCanceled(node_id=node_id, reason=reason))
    is_running = any(node.status is NodeStatus.RUNNING for node in nodes.values())
    if not is_running and not (state.nodes and pending_undos(state, graph)):
        events.append(e.ExecutionCanceled(reason=command.reason))
    return events


def interrupt(node_id: str, node: NodeState, reason: str) -> e.NodeInterruptRequested:
    return e.NodeInterruptRequested(
        node_id=node_id, worker_id=node.worker_id, run_id=node.run_id, reason=reason
    )


# Messages.


def receive(state: Execution, graph: Graph, command: c.SendMessage, allowance: Allowance | None) -> Decision:
    """Conditions are evaluated here, once; the event has the nodes that may take the message."""
    nodes = [node for node in graph.nodes.values() if node.message == command.name]
    waiting = [node for node in nodes if not state.nodes[node.id].status.is_terminal]
    if not waiting:
        return _not_expected(graph, command.name, is_known=bool(nodes))
    values, takers, problems = DataValues(command.data, allowance), [], []
    for node in waiting:
        try:
            if node.when is None or values.holds(node.when):
                takers.append(node.id)
        except (ConditionFailed, ConditionError) as error:
            problems.append(f"node {node.id}: when: {error}")
    if problems and not takers:
        return Rejected(Code.MESSAGE_CONDITION_FAILED, "; ".join(problems))
    return _kept(state, e.MessageReceived(name=command.name, data=command.data, node_ids=tuple(takers)))


def _not_expected(graph: Graph, name: str, *, is_known: bool) -> Rejected:
    if is_known:
        problem = f"every node that waits for message {name!r} has ended"
    else:
        names = [node.message for node in graph.nodes.values() if node.message is not None]
        problem = f"no node of graph {graph.id} waits for message {name[:64]!r}{nearest(name, names)}"
    return Rejected(Code.MESSAGE_NOT_EXPECTED, problem)


def _kept(state: Execution, message: e.MessageReceived) -> Decision:
    """One that no node can take is only recorded."""
    if not message.node_ids:
        return [message]
    if len(state.messages) >= MAX_MESSAGES:
        problem = f"{MAX_MESSAGES} messages are kept already; they are taken as their nodes begin to wait"
        return Rejected(Code.TOO_MANY_MESSAGES, problem)
    if state.held_bytes + json_size(message.data) > MAX_HELD_BYTES:
        return Rejected(Code.EXECUTION_TOO_LARGE, too_large(state))
    return [message]


def _decide_node(state: Execution, graph: Graph, command: c.NodeCommand, now: float) -> Decision:
    node = state.nodes.get(command.node_id)
    if node is None:
        return Rejected(Code.NODE_NOT_FOUND, f"the execution has no node {command.node_id!r}")
    refusal = _refuse_by_hand(graph, command) or _refusal(state.phase, node, command, now)
    if refusal is not None:
        return refusal
    if ask_node(command, node.status) is Verdict.SAME or _is_asked_already(node, command):
        return []
    is_over = state.phase is Phase.FAILING and node.undoes is None
    if isinstance(command, c.FailNode) and is_over:  # nothing becomes READY any more
        spec = graph.nodes[command.node_id]
        return fail(command.node_id, node, spec, command.error, now, is_final=True)
    events = marked(graph, _node_events(node, graph.nodes[command.node_id], command, now))
    return events if _has_room(state, node, events) else Rejected(Code.EXECUTION_TOO_LARGE, too_large(state))


def marked(graph: Graph, events: Iterable[e.Payload]) -> list[e.Payload]:
    """The events of an undo node name the node that it undoes."""
    if not graph.undoes:
        return list(events)
    return [
        replace(event, undoes=graph.undoes[_node_id(event)])
        if isinstance(event, e.WorkOfNode) and _node_id(event) in graph.undoes
        else event
        for event in events
    ]


def _node_id(event: e.WorkOfNode) -> str:
    return cast("e.NodeReady", event).node_id  # each of them has one


def _refuse_by_hand(graph: Graph, command: c.NodeCommand) -> Rejected | None:
    if isinstance(command, c.PutNodeWaiting) and graph.nodes[command.node_id].type is NodeType.MAP:
        return Rejected(Code.NODE_STATUS, f"node {command.node_id!r} is a map, which cannot wait")
    undone = graph.undoes.get(command.node_id)
    if undone is None or not isinstance(command, c.MarkNodeReady):
        return None
    problem = f"node {command.node_id!r} starts by itself, if {undone!r} has to be undone"
    return Rejected(Code.NODE_STATUS, problem)


def _has_room(state: Execution, node: NodeState, events: list[e.Payload]) -> bool:
    """Whether the values of the events fit; new metrics replace the old ones."""
    added = sum(json_size(e.value_in(event)) for event in events)
    if any(isinstance(event, e.NodeProgressReported) for event in events):
        added -= json_size(node.metrics)
    return added <= 0 or state.held_bytes + added <= MAX_HELD_BYTES


def _is_asked_already(node: NodeState, command: c.NodeCommand) -> bool:
    asked = node.resume_request
    if asked is None or not isinstance(command, c.RequestResumeNode):
        return False
    is_same_data = _json(asked.data) == _json(command.data)
    return is_same_data and asked.requested_by == _asked_by(command)


def _json(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _asked_by(command: c.RequestResumeNode) -> str:
    return command.requested_by or command.actor.name


def _refusal(phase: Phase, node: NodeState, command: c.NodeCommand, now: float) -> Rejected | None:
    is_undoing = node.undoes is not None and phase in (Phase.FAILING, Phase.CANCELLING)
    for verdict in (
        Verdict.ALLOW if is_undoing else ask_phase(command, phase),
        ask_node(command, node.status),
    ):
        if isinstance(verdict, Rejected):
            return verdict
    is_kept = phase is Phase.FAILING and isinstance(command, REPORTS)
    if node.stop_requested_at is not None and not is_kept:
        return Rejected(
            Code.NODE_CANCEL_REQUESTED, f"node {command.node_id!r} is being stopped: {node.stop_reason}"
        )
    match command:
        case c.StartNode():
            return _refuse_start(node, command, now)
        case c.HeldNodeCommand():
            return _refuse_holder(node, command)
        case c.RequestResumeNode() | c.ResumeNode():
            return _refuse_key(node, command)
    return None


def _refuse_start(node: NodeState, command: c.StartNode, now: float) -> Rejected | None:
    if node.status is NodeStatus.RUNNING:
        return _refuse_holder(node, command, must_name=True)
    wanted = node.attempt + 1
    if command.attempt not in (None, wanted):
        return Rejected(
            Code.WRONG_ATTEMPT,
            f"the next attempt of node {command.node_id!r} is {wanted}, not {command.attempt}",
        )
    if node.retry_at is not None and now < node.retry_at:
        return Rejected(
            Code.RETRY_NOT_DUE,
            f"attempt {wanted} of node {command.node_id!r} is due in {node.retry_at - now:.1f} s",
        )
    return None


def _refuse_holder(
    node: NodeState, command: c.StartNode | c.HeldNodeCommand, *, must_name: bool = False
) -> Rejected | None:
    """A worker that lost the node (e.g. after a timeout) must not report for its current worker."""
    if command.attempt not in (None, node.attempt):
        return Rejected(
            Code.WRONG_ATTEMPT,
            f"node {command.node_id!r} is in attempt {node.attempt}, not {command.attempt}",
        )
    if command.worker_id != node.worker_id and (must_name or command.worker_id is not None):
        return Rejected(
            Code.NODE_HELD_BY_ANOTHER, f"node {command.node_id!r} is held by worker {node.worker_id!r}"
        )
    return None


def _refuse_key(node: NodeState, command: c.RequestResumeNode | c.ResumeNode) -> Rejected | None:
    if node.wait_key is None or command.resume_key == node.wait_key:
        return None
    return Rejected(
        Code.RESUME_KEY_MISMATCH,
        f"node {command.node_id!r} waits with a wait_key; resume_key must match it",
    )


def _node_events(  # noqa: PLR0911 - one return per command
    node: NodeState, spec: GraphNode, command: c.NodeCommand, now: float
) -> list[e.Payload]:
    node_id = command.node_id
    match command:
        case c.MarkNodeReady():
            return [e.NodeReady(node_id=node_id)]
        case c.StartNode():
            return [
                e.NodeStarted(
                    node_id=node_id,
                    attempt=node.attempt + 1,
                    worker_id=command.worker_id,
                    run_id=command.run_id,
                )
            ]
        case c.ReportNodeProgress():
            return [
                e.NodeProgressReported(
                    node_id=node_id,
                    progress=command.progress,
                    message=command.message,
                    metrics=command.metrics,
                )
            ]
        case c.PutNodeWaiting():
            return [
                e.NodeWaiting(
                    node_id=node_id,
                    wait_key=command.wait_key,
                    prompt=command.prompt,
                    deadline=command.deadline,
                )
            ]
        case c.RequestResumeNode():
            return [
                e.NodeResumeRequested(
                    node_id=node_id,
                    resume_key=command.resume_key,
                    data=command.data,
                    requested_by=_asked_by(command),
                )
            ]
        case c.ResumeNode() if spec.type is NodeType.REPEAT and node.wake_at is not None:
            return [e.NodeReady(node_id=node_id, iteration=(node.iteration or 1) + 1)]
        case c.ResumeNode():
            return resume(node_id, spec, command.data, command.resume_key)
        case c.SucceedNode():
            return [e.NodeSucceeded(node_id=node_id, output=command.output)]
        case c.FailNode():
            return fail(node_id, node, spec, command.error, now)
    raise TypeError(f"{type(command).__name__} is not a node command")


def resume(node_id: str, spec: GraphNode, data: object, resume_key: str | None = None) -> list[e.Payload]:
    """For a node that does nothing but wait, the resume data is the output."""
    events: list[e.Payload] = [e.NodeResumed(node_id=node_id, resume_key=resume_key, data=data)]
    if spec.type in (NodeType.WAIT, NodeType.SLEEP):
        events.append(e.NodeSucceeded(node_id=node_id, output=data))
    return events


def fail(
    node_id: str, node: NodeState, spec: GraphNode, error: e.Failure, now: float, *, is_final: bool = False
) -> list[e.Payload]:
    """The end of an attempt: READY again while attempts are left, else the end of the node."""
    attempt = node.attempt
    if attempt < spec.max_attempts and not is_final:
        return [
            e.NodeFailReported(
                node_id=node_id, attempt=attempt, error=error, retry_at=now + backoff(spec, attempt)
            )
        ]
    return [
        e.NodeFailReported(node_id=node_id, attempt=attempt, error=error),
        e.NodeFailed(node_id=node_id, error=error),
    ]


def backoff(spec: GraphNode, attempt: int) -> float:
    """`backoff_sec` after the first attempt, doubled after each further one, at most an hour."""
    backoff_sec = spec.work.retry.backoff_sec
    return min(backoff_sec * 2.0 ** min(attempt - 1, 30), max(MAX_BACKOFF_SEC, backoff_sec))
