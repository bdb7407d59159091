"""Reactions on nodes: starting, ending and stopping them, and joins."""

from typing import Final

from pyoco_server.domain.cel.expressions import ConditionError
from pyoco_server.domain.cel.values import ConditionFailed
from pyoco_server.domain.executions import events as e
from pyoco_server.domain.executions.branches import Branches, between
from pyoco_server.domain.executions.decide import fail, interrupt
from pyoco_server.domain.executions.graphs import Graph, JoinPolicy, NodeType
from pyoco_server.domain.executions.model import NodeState, NodeStatus, Phase, pending_undos
from pyoco_server.domain.executions.orchestration_draft import Draft, fail_at_start, failure_of, succeed_by
from pyoco_server.domain.executions.orchestration_kinds import KINDS, is_last_run
from pyoco_server.domain.executions.orchestration_map import stop_map
from pyoco_server.domain.executions.records import RunFact
from pyoco_server.domain.runs.model import RunStatus


def make_ready(draft: Draft, branches: Branches) -> None:
    for arrival in branches.arrivals:
        draft.emit(e.NodeReady(node_id=arrival.node_id))
        if arrival.error is not None:
            fail_at_start(draft, arrival.node_id, arrival.error)


def carry_on(draft: Draft) -> None:
    for node_id, node in draft.nodes(NodeStatus.READY, NodeStatus.RUNNING):
        spec = draft.graph.nodes[node_id]
        KINDS[spec.type].carry_on(draft, node_id, node, spec)


# Nodes that end, by themselves or by a stop request.

NOT_NEEDED: Final = "the join has passed without this branch"


def end_nodes(draft: Draft) -> None:
    for node_id, node in draft.nodes(NodeStatus.RUNNING, NodeStatus.WAITING):
        if node.stop_requested_at is None:
            spec = draft.graph.nodes[node_id]
            KINDS[spec.type].end(draft, node_id, node, spec)


def undo_next(draft: Draft) -> bool:
    """Carry on with the last success that is not undone. False if nothing is left to undo."""
    pending = pending_undos(draft.state, draft.graph)
    if not pending:
        return False
    undo_id, _ = pending[0]
    spec = draft.graph.nodes[undo_id]
    if draft.state.nodes[undo_id].status is NodeStatus.IDLE:
        draft.emit(e.NodeReady(node_id=undo_id))
    if draft.state.nodes[undo_id].status in (NodeStatus.RUNNING, NodeStatus.WAITING):
        KINDS[spec.type].end(draft, undo_id, draft.state.nodes[undo_id], spec)
    if draft.state.nodes[undo_id].status in (NodeStatus.READY, NodeStatus.RUNNING):
        KINDS[spec.type].carry_on(draft, undo_id, draft.state.nodes[undo_id], spec)
    return True


def stop(draft: Draft, node_id: str, reason: str) -> None:
    """Interrupt a running node; cancel any other immediately."""
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
    """Cancel a stopping node when its run has ended or never existed, or after the grace period."""
    for node_id, node in draft.nodes(NodeStatus.RUNNING):
        if node.stop_requested_at is None:
            continue
        if draft.graph.nodes[node_id].type is NodeType.MAP:
            _end_stopped_map(draft, node_id, node, node.stop_requested_at)
        else:
            is_known, fact = draft.fact(node_id, node)
            has_ended = is_known and (fact is None or fact.status.is_terminal)
            never_was = node.work_id in draft.started
            if fact is not None and _is_kept(draft, node_id, fact):
                _end_for_good(draft, node_id, node, fact)
            elif has_ended or never_was or draft.is_due(node.stop_requested_at + draft.grace_sec):
                draft.emit(e.NodeCanceled(node_id=node_id, reason=node.stop_reason or NOT_NEEDED))


def _end_stopped_map(draft: Draft, node_id: str, node: NodeState, since: float) -> None:
    is_idle = stop_map(draft, node_id, node, draft.graph.nodes[node_id])
    is_live = draft.state.nodes[node_id].status.is_live
    if is_live and (is_idle or draft.is_due(since + draft.grace_sec)):
        draft.emit(e.NodeCanceled(node_id=node_id, reason=node.stop_reason or NOT_NEEDED))


def _is_kept(draft: Draft, node_id: str, fact: RunFact) -> bool:
    """A run that ended by itself still counts: for a rerun, or because it has to be undone."""
    spec, phase = draft.graph.nodes[node_id], draft.state.phase
    if phase is not Phase.FAILING and (phase is not Phase.CANCELLING or spec.undo is None):
        return False
    if fact.status is not RunStatus.COMPLETED:
        return phase is Phase.FAILING and fact.status is RunStatus.FAILED
    try:
        return is_last_run(draft, spec, fact)
    except (ConditionFailed, ConditionError):
        return False


def _end_for_good(draft: Draft, node_id: str, node: NodeState, fact: RunFact) -> None:
    spec = draft.graph.nodes[node_id]
    if fact.status is RunStatus.COMPLETED:
        succeed_by(draft, node_id, node, spec, fact)
        return
    draft.emit(*fail(node_id, node, spec, failure_of(fact), draft.now, is_final=True))


# Joins: arrived and obsolete branches.


def stop_unneeded(draft: Draft) -> None:
    """Cancel the remaining branches of a join that has passed."""
    nodes = draft.state.nodes
    passed = [
        join_id for join_id in _early_joins(draft.graph) if nodes[join_id].status is NodeStatus.SUCCEEDED
    ]
    if not passed:
        return
    unneeded = between(draft.graph, passed)
    for node_id, _ in draft.nodes(NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING):
        if node_id in unneeded:
            stop(draft, node_id, NOT_NEEDED)


def _early_joins(graph: Graph) -> list[str]:
    """Joins that may pass before all branches have ended, and then cancel the rest."""
    return [
        join_id
        for join_id in graph.forks
        if (spec := graph.nodes[join_id]).cancel_rest
        and spec.policy in (JoinPolicy.ANY_SUCCESS, JoinPolicy.CUSTOM)
    ]


def update_gates(draft: Draft, branches: Branches) -> None:
    for join_id, gate in branches.gates.items():
        known = draft.state.nodes[join_id].gate
        has_news = gate.completed_branches or gate.failed_branches or gate.canceled_branches
        if known != gate and (known is not None or has_news):
            draft.emit(
                e.JoinGateUpdated(
                    node_id=join_id,
                    policy=gate.policy,
                    expected_branches=gate.expected_branches,
                    completed_branches=gate.completed_branches,
                    failed_branches=gate.failed_branches,
                    canceled_branches=gate.canceled_branches,
                    is_passable=gate.is_passable,
                )
            )
