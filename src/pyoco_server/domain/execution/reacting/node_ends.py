"""Nodes that end: by their run, by their time, or because they were told to stop."""

from typing import Final

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution.decide import fail, interrupt, resume
from pyoco_server.domain.execution.graphs import GraphNode, NodeType, OnTimeout
from pyoco_server.domain.execution.node_runs import RunFact
from pyoco_server.domain.execution.reacting.draft import Draft
from pyoco_server.domain.execution.state import NodeState, NodeStatus, Phase
from pyoco_server.domain.runs import RunStatus

NOT_NEEDED: Final = "the join has passed without this branch"


def end_nodes(draft: Draft) -> None:
    for node_id, node in draft.nodes(NodeStatus.RUNNING, NodeStatus.WAITING):
        if node.stop_requested_at is None:
            _end_node(draft, node_id, node, draft.graph.nodes[node_id])


def _end_node(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    _, fact = draft.fact(node_id, node)
    if fact is not None and _tells_the_end(fact, node):
        _end_by_run(draft, node_id, node, spec, fact)
    elif spec.type is NodeType.TASK and draft.is_due(_time_limit(node, spec)):
        _time_out(draft, node_id, node, spec)
    elif node.status is NodeStatus.WAITING and draft.is_due(node.deadline):
        _end_wait(draft, node_id, node, spec)


def _tells_the_end(fact: RunFact, node: NodeState) -> bool:
    """A node that was put to wait is not done with its run: somebody has to resume it first."""
    is_held_back = node.status is NodeStatus.WAITING and fact.status is RunStatus.COMPLETED
    return fact.status.is_terminal and not is_held_back


def _end_by_run(draft: Draft, node_id: str, node: NodeState, spec: GraphNode, fact: RunFact) -> None:
    if fact.status is not RunStatus.COMPLETED:
        draft.emit(*fail(node_id, node, spec, _failure(fact), draft.now))
    else:
        draft.emit(e.NodeSucceeded(node_id=node_id, output=fact.result))


def _failure(fact: RunFact) -> e.Failure:
    if fact.status is RunStatus.CANCELLED:
        return e.Failure("its run was cancelled", "RUN_CANCELLED")
    return e.Failure(e.shortened(fact.error or "its run failed", e.MAX_ERROR), fact.code)


def _time_limit(node: NodeState, spec: GraphNode) -> float | None:
    if node.started_at is None or spec.timeout_sec is None:
        return None
    return node.started_at + spec.timeout_sec


def _time_out(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    error = e.Failure(f"it had not ended {spec.timeout_sec:g} s after its start", "TIMEOUT")
    draft.emit(*fail(node_id, node, spec, error, draft.now))
    draft.abandon(node_id, node, error.message)


def _end_wait(draft: Draft, node_id: str, node: NodeState, spec: GraphNode) -> None:
    if spec.type is NodeType.WAIT and spec.on_timeout is OnTimeout.SUCCEED:
        draft.emit(*resume(node_id, spec, None))
        return
    error = e.Failure("nobody resumed it before its deadline", "TIMEOUT")
    draft.emit(*fail(node_id, node, spec, error, draft.now, is_final=spec.type is NodeType.WAIT))
    draft.abandon(node_id, node, error.message)


def stop(draft: Draft, node_id: str, reason: str) -> None:
    """What runs is told to stop; anything else is cancelled at once."""
    node = draft.state.nodes[node_id]
    if not node.status.is_live or node.stop_requested_at is not None:
        return
    draft.emit(e.NodeCancelRequested(node_id=node_id, reason=reason))
    if node.status is NodeStatus.RUNNING:
        draft.emit(interrupt(node_id, node, reason))
    else:
        draft.emit(e.NodeCanceled(node_id=node_id, reason=reason))
        draft.abandon(node_id, node, reason)


def end_stopped(draft: Draft) -> None:
    """What was told to stop is cancelled when its run has ended or never was, or when its time is up."""
    for node_id, node in draft.nodes(NodeStatus.RUNNING):
        if node.stop_requested_at is not None:
            is_known, fact = draft.fact(node_id, node)
            has_ended = is_known and (fact is None or fact.status.is_terminal)
            never_was = node.run_id in draft.started
            if fact is not None and _is_kept(draft, fact):
                _end_for_good(draft, node_id, node, fact)
            elif has_ended or never_was or draft.is_due(node.stop_requested_at + draft.grace_sec):
                draft.emit(e.NodeCanceled(node_id=node_id, reason=node.stop_reason or NOT_NEEDED))


def _is_kept(draft: Draft, fact: RunFact) -> bool:
    """While the execution fails, a run that ended by itself still counts: a re-run carries it over."""
    return draft.state.phase is Phase.FAILING and fact.status in (RunStatus.COMPLETED, RunStatus.FAILED)


def _end_for_good(draft: Draft, node_id: str, node: NodeState, fact: RunFact) -> None:
    if fact.status is RunStatus.COMPLETED:
        draft.emit(e.NodeSucceeded(node_id=node_id, output=fact.result))
        return
    spec = draft.graph.nodes[node_id]
    draft.emit(*fail(node_id, node, spec, _failure(fact), draft.now, is_final=True))
