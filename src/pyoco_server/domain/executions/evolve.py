"""The reducer: tables of the events' effects. An event that is not in a table has no effect.

This is the last line of defence for *cancel wins*: whatever any version appended, a cancelled execution ends
CANCELED, and an ended execution never changes.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, Final, cast

from pyoco_server.domain.executions import events as e
from pyoco_server.domain.executions.evolve_map import items_ended, map_opened, output_moved
from pyoco_server.domain.executions.model import (
    Execution,
    ExecutionStatus,
    Gate,
    Message,
    NodeState,
    NodeStatus,
    Phase,
    ResumeRequest,
    held_by,
    json_size,
    replace,
)

IDLE, READY, RUNNING, WAITING = NodeStatus.IDLE, NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING
UNFINISHED = frozenset({IDLE, READY, RUNNING, WAITING})


def evolve(state: Execution | None, event: e.Event) -> Execution | None:
    """The state after `event`. The version always advances, because the log has no gaps."""
    if state is None:
        return _created(event)
    is_known = event.schema_version == e.SCHEMA_VERSION and state.phase in _phases_of(event.payload)
    after = _apply(state, event) if is_known else state
    if after is state:
        return replace(state, version=event.sequence)
    return replace(after, version=event.sequence, updated_at=event.occurred_at)


def fold(events: Iterable[e.Event], state: Execution | None = None) -> Execution | None:
    return reduce(evolve, events, state)


def _created(event: e.Event) -> Execution | None:
    payload = event.payload
    if not isinstance(payload, e.ExecutionCreated) or event.schema_version != e.SCHEMA_VERSION:
        return None
    return Execution(
        execution_id=event.execution_id,
        graph_id=payload.graph_id,
        graph_version=payload.graph_version,
        created_at=event.occurred_at,
        updated_at=event.occurred_at,
        version=event.sequence,
        tenant_id=payload.tenant_id,
        api_key_id=payload.api_key_id,
        input=payload.input,
        rerun_of=payload.rerun_of,
        given_id=payload.given_id,
        parent_execution_id=payload.parent_execution_id,
        parent_node_id=payload.parent_node_id,
        graph_versions=payload.graph_versions,
        held_bytes=json_size(payload.input),
        trace=payload.trace,
        values=payload.values,
    )


# Phases in which an execution event has an effect.

_WORK = frozenset({Phase.STARTED, Phase.FAILING})
_ENDING_NODES = frozenset({Phase.STARTED, Phase.FAILING, Phase.CANCELLING})
_UNDOING = frozenset({Phase.FAILING, Phase.CANCELLING})
_ONLY_STARTED = frozenset({Phase.STARTED})
_ACTIVE = frozenset({Phase.CREATED, Phase.STARTED, Phase.FAILING, Phase.CANCELLING})

_PHASES: Final[dict[type[e.Payload], frozenset[Phase]]] = {
    e.NodeCreated: frozenset({Phase.CREATED}),
    e.ExecutionStarted: frozenset({Phase.CREATED}),
    e.ExecutionCancelRequested: frozenset({Phase.CREATED, Phase.STARTED, Phase.FAILING}),
    e.ExecutionCanceled: frozenset({Phase.CANCELLING}),
    e.ExecutionArchived: frozenset({Phase.COMPLETED, Phase.FAILED, Phase.CANCELED}),
    e.ExecutionFailRequested: frozenset({Phase.STARTED}),
    e.ExecutionFailed: frozenset({Phase.FAILING}),
    e.ExecutionCompleted: frozenset({Phase.STARTED}),
    e.NodeReady: _WORK,
    e.NodeStarted: _WORK,
    e.NodeProgressReported: _WORK,
    e.NodeWaiting: _WORK,
    e.NodeResumeRequested: _WORK,
    e.NodeResumed: _WORK,
    e.NodeFailReported: _WORK,
    e.NodeSucceeded: _ENDING_NODES,
    e.NodeFailed: _ENDING_NODES,
    e.NodeCancelRequested: _ENDING_NODES,
    e.NodeInterruptRequested: _ENDING_NODES,
    e.NodeCanceled: _ACTIVE,
    e.MessageReceived: frozenset({Phase.CREATED, Phase.STARTED}),
    e.MapOpened: _WORK,
    e.MapItemsEnded: _ENDING_NODES,  # as facts of a node that ran already
    e.ForkOpened: _WORK,
    e.JoinGateUpdated: _WORK,
    e.JoinPassed: _WORK,
}


def _phases_of(payload: e.Payload) -> frozenset[Phase]:
    if _is_carried(payload):
        return _ONLY_STARTED
    return _UNDOING if _undoes(payload) is not None else _PHASES.get(type(payload), frozenset())


def _undoes(payload: e.Payload) -> str | None:
    return payload.undoes if isinstance(payload, e.WorkOfNode) else None


def _is_carried(payload: e.Payload) -> bool:
    """A rerun keeps outputs of an earlier execution, of nodes or items that do not start."""
    return isinstance(payload, e.NodeSucceeded | e.MapItemsEnded) and payload.carried_from is not None


# Statuses from which a node event has an effect, and the effect.

NodeChange = Callable[[NodeState, Any, float], NodeState]


def _ready(node: NodeState, payload: e.NodeReady, at: float) -> NodeState:
    if payload.iteration is None:
        return replace(node, status=READY, ready_at=at, undoes=payload.undoes)
    return replace(node, status=READY, ready_at=at, iteration=payload.iteration, attempt=0, wake_at=None)


def _started(node: NodeState, payload: e.NodeStarted, at: float) -> NodeState:
    return replace(
        node,
        status=RUNNING,
        attempt=payload.attempt,
        iteration=payload.iteration or node.iteration,
        worker_id=payload.worker_id,
        run_id=payload.run_id,
        child_execution_id=payload.child_execution_id,
        started_at=at,
        retry_at=None,
        error=None,
        progress=None,
        progress_message=None,
        metrics=None,
    )


def _progress(node: NodeState, payload: e.NodeProgressReported, _: float) -> NodeState:
    return replace(
        node,
        progress=node.progress if payload.progress is None else payload.progress,
        progress_message=payload.message or node.progress_message,
        metrics=payload.metrics or node.metrics,
    )


def _waiting(node: NodeState, payload: e.NodeWaiting, at: float) -> NodeState:
    return replace(
        node,
        status=WAITING,
        wait_key=payload.wait_key,
        prompt=payload.prompt,
        deadline=payload.deadline,
        wake_at=payload.wake_at,
        message=payload.message,
        resume_request=None,
        waiting_at=at,
    )


def _resume_requested(node: NodeState, payload: e.NodeResumeRequested, at: float) -> NodeState:
    request = ResumeRequest(requested_at=at, requested_by=payload.requested_by, data=payload.data)
    return replace(node, resume_request=request)


def _resumed(node: NodeState, payload: e.NodeResumed, at: float) -> NodeState:
    return replace(node, status=RUNNING, deadline=None, wake_at=None, resume_data=payload.data, resumed_at=at)


def _succeeded(node: NodeState, payload: e.NodeSucceeded, at: float) -> NodeState:
    return replace(
        output_moved(node, payload),
        status=NodeStatus.SUCCEEDED,
        carried_from=payload.carried_from,
        ended_at=at,
    )


def _fail_reported(node: NodeState, payload: e.NodeFailReported, at: float) -> NodeState:
    if payload.retry_at is None:  # the last attempt: NODE_FAILED follows
        return replace(node, error=payload.error)
    return replace(
        node,
        status=READY,
        error=payload.error,
        retry_at=payload.retry_at,
        deadline=None,
        wake_at=None,
        ready_at=at,
    )


def _failed(node: NodeState, payload: e.NodeFailed, at: float) -> NodeState:
    return replace(
        node, status=NodeStatus.FAILED, error=payload.error, deadline=None, wake_at=None, ended_at=at
    )


def _stop_requested(
    node: NodeState, payload: e.NodeCancelRequested | e.NodeInterruptRequested, at: float
) -> NodeState:
    if node.stop_requested_at is not None:
        return node
    return replace(node, stop_requested_at=at, stop_reason=payload.reason)


def _canceled(node: NodeState, payload: e.NodeCanceled, at: float) -> NodeState:
    return replace(
        node,
        status=NodeStatus.CANCELED,
        stop_reason=payload.reason,
        deadline=None,
        wake_at=None,
        retry_at=None,
        ended_at=at,
    )


def _fork_opened(node: NodeState, payload: e.ForkOpened, _: float) -> NodeState:
    return replace(node, branch_ids=payload.branch_ids)


def _gate_updated(node: NodeState, payload: e.JoinGateUpdated, _: float) -> NodeState:
    gate = Gate(
        policy=payload.policy,
        expected_branches=payload.expected_branches,
        completed_branches=payload.completed_branches,
        failed_branches=payload.failed_branches,
        canceled_branches=payload.canceled_branches,
        is_passable=payload.is_passable,
    )
    return replace(node, gate=gate)


NODE_TRANSITIONS: Final[dict[type[e.Payload], tuple[frozenset[NodeStatus], NodeChange]]] = {
    e.NodeReady: (frozenset({IDLE}), _ready),
    e.NodeStarted: (frozenset({READY}), _started),
    e.NodeProgressReported: (frozenset({RUNNING}), _progress),
    e.NodeWaiting: (frozenset({RUNNING}), _waiting),
    e.NodeResumeRequested: (frozenset({WAITING}), _resume_requested),
    e.NodeResumed: (frozenset({WAITING}), _resumed),
    e.NodeSucceeded: (frozenset({RUNNING}), _succeeded),
    e.NodeFailReported: (frozenset({RUNNING, WAITING}), _fail_reported),
    e.NodeFailed: (frozenset({RUNNING, WAITING}), _failed),
    e.NodeCancelRequested: (frozenset({READY, RUNNING, WAITING}), _stop_requested),
    e.NodeInterruptRequested: (frozenset({RUNNING}), _stop_requested),
    e.NodeCanceled: (UNFINISHED, _canceled),
    e.MapOpened: (frozenset({RUNNING}), map_opened),
    e.MapItemsEnded: (frozenset({RUNNING}), items_ended),
    e.ForkOpened: (frozenset({RUNNING}), _fork_opened),
    e.JoinGateUpdated: (UNFINISHED, _gate_updated),
    e.JoinPassed: (frozenset({RUNNING}), lambda node, _, __: node),
}


def _statuses_of(payload: e.Payload) -> frozenset[NodeStatus]:
    if _is_carried(payload):
        return frozenset({IDLE})
    if isinstance(payload, e.NodeReady) and payload.iteration is not None:
        return frozenset({WAITING})
    return NODE_TRANSITIONS[type(payload)][0]


def _apply(state: Execution, event: e.Event) -> Execution:
    payload, at = event.payload, event.occurred_at
    if isinstance(payload, e.NodeCreated):
        return _create_node(state, payload, at)
    if isinstance(payload, e.MessageReceived):
        return _message_received(state, event, payload)
    if type(payload) in NODE_TRANSITIONS:
        return _change_node(state, payload, at)
    return _EXECUTION_CHANGES[type(payload)](state, payload, at)


def _create_node(state: Execution, payload: e.NodeCreated, at: float) -> Execution:
    if payload.node_id in state.nodes:
        return state
    node = NodeState(node_type=payload.node_type, rerun_of=payload.rerun_of, updated_at=at)
    return _with_node(state, payload.node_id, node)


def _change_node(state: Execution, payload: e.Payload, at: float) -> Execution:
    _, change = NODE_TRANSITIONS[type(payload)]
    node_id = cast("e.NodeReady", payload).node_id  # every node event has one
    node = state.nodes.get(node_id)
    if node is None or node.status not in _statuses_of(payload):
        return state
    if _is_late(state, node, payload) or _is_out_of_turn(state, node, payload):
        return state
    changed = replace(change(node, payload, at), updated_at=at)
    if isinstance(payload, e.NodeCanceled) and state.cancel_requested_at is not None:
        changed = replace(changed, canceled_by_execution=True)
    after = _with_node(state, node_id, changed)
    if type(payload) in _CHANGE_VALUES:
        after = replace(after, held_bytes=max(0, state.held_bytes + held_by(changed) - held_by(node)))
    return _forget_messages(after, payload) if after.messages else after


def _forget_messages(state: Execution, payload: e.Payload) -> Execution:
    """One that was taken, and those that no node can take any more."""
    taken = payload.message_sequence if isinstance(payload, e.NodeResumed) else None
    kept = tuple(
        message
        for message in state.messages
        if message.sequence != taken
        and any(state.nodes[node_id].status in UNFINISHED for node_id in message.node_ids)
    )
    if len(kept) == len(state.messages):
        return state
    freed = sum(json_size(message.data) for message in state.messages if message not in kept)
    return replace(state, messages=kept, held_bytes=max(0, state.held_bytes - freed))


def _message_received(state: Execution, event: e.Event, payload: e.MessageReceived) -> Execution:
    node_ids = tuple(name for name in payload.node_ids if name in state.nodes)
    if not any(state.nodes[name].status in UNFINISHED for name in node_ids):
        return state
    message = Message(
        sequence=event.sequence,
        name=payload.name,
        received_at=event.occurred_at,
        node_ids=node_ids,
        data=payload.data,
    )
    held_bytes = state.held_bytes + json_size(payload.data)
    return replace(state, messages=(*state.messages, message), held_bytes=held_bytes)


_CHANGE_VALUES: Final = frozenset(
    {
        e.NodeStarted,
        e.NodeProgressReported,
        e.NodeWaiting,
        e.NodeResumeRequested,
        e.NodeResumed,
        e.NodeSucceeded,
        e.MapOpened,
        e.MapItemsEnded,
    }
)


def _is_late(state: Execution, node: NodeState, payload: e.Payload) -> bool:
    """After an accepted cancel, only a node that ran can still fail."""
    is_cancelling = state.cancel_requested_at is not None and _undoes(payload) is None
    return is_cancelling and isinstance(payload, e.NodeFailed) and node.status is not RUNNING


def _is_out_of_turn(state: Execution, node: NodeState, payload: e.Payload) -> bool:
    """Iterations follow one another, each after the pause of the one before; only a success is undone."""
    if (undone := _undoes(payload)) is not None:
        return undone not in state.nodes or state.nodes[undone].status is not NodeStatus.SUCCEEDED
    if not isinstance(payload, e.NodeReady) or payload.iteration is None:
        return False
    return node.wake_at is None or payload.iteration != (node.iteration or 1) + 1


def _with_node(state: Execution, node_id: str, node: NodeState) -> Execution:
    return replace(state, nodes={**state.nodes, node_id: node})


def _execution_started(state: Execution, _: e.ExecutionStarted, at: float) -> Execution:
    return replace(state, started_at=at)


def _cancel_requested(state: Execution, payload: e.ExecutionCancelRequested, at: float) -> Execution:
    return replace(
        state,
        cancel_requested_at=at,
        cancel_requested_by=payload.requested_by,
        cancel_reason=payload.reason,
    )


def _execution_canceled(state: Execution, _: e.ExecutionCanceled, at: float) -> Execution:
    """No node of a cancelled execution is left unfinished."""
    nodes = {
        node_id: replace(
            node,
            status=NodeStatus.CANCELED,
            canceled_by_execution=True,
            deadline=None,
            wake_at=None,
            retry_at=None,
            ended_at=at,
            updated_at=at,
        )
        if node.status in UNFINISHED
        else node
        for node_id, node in state.nodes.items()
    }
    return replace(state, status=ExecutionStatus.CANCELED, canceled_at=at, nodes=nodes)


def _fail_requested(state: Execution, payload: e.ExecutionFailRequested, at: float) -> Execution:
    return replace(state, fail_requested_at=at, failed_node_id=payload.failed_node_id, error=payload.error)


def _execution_failed(state: Execution, payload: e.ExecutionFailed, at: float) -> Execution:
    return replace(
        state,
        status=ExecutionStatus.FAILED,
        failed_at=at,
        failed_node_id=payload.failed_node_id,
        error=payload.error,
    )


def _execution_completed(state: Execution, payload: e.ExecutionCompleted, at: float) -> Execution:
    return replace(
        state,
        status=ExecutionStatus.COMPLETED,
        completed_at=at,
        result=payload.result,
        values=(*state.values, *payload.values),
        held_bytes=state.held_bytes + json_size(payload.result),
    )


def _execution_archived(state: Execution, _: e.ExecutionArchived, at: float) -> Execution:
    return state if state.archived_at is not None else replace(state, archived_at=at)


_EXECUTION_CHANGES: Final[dict[type[e.Payload], Callable[[Execution, Any, float], Execution]]] = {
    e.ExecutionStarted: _execution_started,
    e.ExecutionCancelRequested: _cancel_requested,
    e.ExecutionCanceled: _execution_canceled,
    e.ExecutionFailRequested: _fail_requested,
    e.ExecutionFailed: _execution_failed,
    e.ExecutionCompleted: _execution_completed,
    e.ExecutionArchived: _execution_archived,
}
