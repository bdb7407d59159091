"""The end of a whole execution: completed, failed, cancelled."""

from typing import Any, Final

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution.branches import Branches
from pyoco_server.domain.execution.decide import CANCELED, interrupt
from pyoco_server.domain.execution.graphs import EdgeOn
from pyoco_server.domain.execution.reacting.draft import Draft
from pyoco_server.domain.execution.reacting.node_ends import end_stopped, stop
from pyoco_server.domain.execution.state import NodeState, NodeStatus

SIBLING_FAILED: Final = "another node failed"


def fail_if_lost(draft: Draft, branches: Branches) -> bool:
    lost = [
        (node_id, node)
        for node_id, node in draft.nodes(NodeStatus.FAILED)
        if not branches.is_handled(node_id) and not branches.is_saved(node_id)
    ]
    if not lost:
        return False
    _request_failure(draft, lost)
    _stop_all(draft)
    return True


def _request_failure(draft: Draft, failed: list[tuple[str, NodeState]]) -> None:
    """The first one that failed names the reason."""
    node_id, node = min(failed, key=lambda found: found[1].ended_at or 0.0)
    error = node.error or e.Failure("the node failed")
    draft.emit(e.ExecutionFailRequested(failed_node_id=node_id, error=error))


def finish_failing(draft: Draft) -> None:
    _stop_all(draft)
    end_stopped(draft)
    if not draft.has_live_nodes:
        state = draft.state
        assert state.failed_node_id is not None and state.error is not None  # noqa: S101, PT018
        draft.emit(e.ExecutionFailed(failed_node_id=state.failed_node_id, error=state.error))


def _stop_all(draft: Draft) -> None:
    for node_id, _ in draft.nodes(NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING):
        stop(draft, node_id, SIBLING_FAILED)


def complete_if_over(draft: Draft) -> None:
    branches = draft.branches()
    if draft.has_live_nodes or branches.arrivals:
        return
    failed = draft.nodes(NodeStatus.FAILED)
    fatal = [found for found in failed if branches.is_fatal(found[0])]
    if fatal:
        _request_failure(draft, fatal)
        return
    draft.emit(e.ExecutionCompleted(result=_results(draft, is_handled=bool(failed))))


def _results(draft: Draft, *, is_handled: bool) -> dict[str, Any]:
    """Outputs of the nodes without outgoing edges; where failures are handled, of the last nodes that ran."""
    return {
        node_id: node.output
        for node_id, node in draft.nodes(NodeStatus.SUCCEEDED)
        if _is_last(draft, node_id, is_handled=is_handled)
    }


def _is_last(draft: Draft, node_id: str, *, is_handled: bool) -> bool:
    edges, nodes = draft.graph.outgoing[node_id], draft.state.nodes
    handles = is_handled or any(edge.on is EdgeOn.FAILURE for edge in edges)
    return not edges or (handles and all(nodes[edge.target].status is NodeStatus.IDLE for edge in edges))


def finish_cancel(draft: Draft) -> None:
    reason = draft.state.cancel_reason
    of_nodes = e.shortened(reason or CANCELED, e.MAX_REASON)
    for node_id, node in draft.nodes(NodeStatus.IDLE, NodeStatus.READY, NodeStatus.WAITING):
        draft.emit(e.NodeCanceled(node_id=node_id, reason=node.stop_reason or of_nodes))
    for node_id, node in draft.nodes(NodeStatus.RUNNING):
        if node.stop_requested_at is None:
            draft.emit(interrupt(node_id, node, of_nodes))
    end_stopped(draft)
    if not draft.nodes(NodeStatus.RUNNING):
        draft.emit(e.ExecutionCanceled(reason=reason))
