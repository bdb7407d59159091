"""Joins: how many of their branches have come, and which are not needed any more."""

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution.branches import Branches, between
from pyoco_server.domain.execution.graphs import Graph, JoinPolicy
from pyoco_server.domain.execution.reacting.draft import Draft
from pyoco_server.domain.execution.reacting.node_ends import NOT_NEEDED, stop
from pyoco_server.domain.execution.state import NodeStatus


def stop_unneeded(draft: Draft) -> None:
    """After a join that needed only some of its branches, the others are cancelled."""
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
    """Joins that may pass before all of their branches have ended, and cancel the rest then."""
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
