"""What the world has to do: runs to dispatch and to cancel."""

from pyoco_server.domain.execution.decide import CANCELED
from pyoco_server.domain.execution.node_runs import CancelRun, DispatchRun
from pyoco_server.domain.execution.reacting.draft import Draft
from pyoco_server.domain.execution.state import NodeState, NodeStatus


def dispatches(draft: Draft) -> list[DispatchRun]:
    """Runs of nodes that have begun and do not exist yet."""
    found = []
    for node_id, node in draft.nodes(NodeStatus.RUNNING):
        if node.stop_requested_at is not None or not draft.is_run(node_id, node):
            continue
        is_known, fact = draft.fact(node_id, node)
        is_missing = node.run_id in draft.started or (is_known and fact is None)
        if is_missing and node.run_id in draft.rendered:
            found.append(_dispatch(draft, node_id, node))
    return found


def _dispatch(draft: Draft, node_id: str, node: NodeState) -> DispatchRun:
    spec = draft.graph.nodes[node_id]
    assert node.run_id is not None and spec.flow is not None  # noqa: S101, PT018
    return DispatchRun(
        run_id=node.run_id,
        node_id=node_id,
        flow=spec.flow,
        tag=spec.tag,
        params=draft.render(spec.params),
    )


def cancels(draft: Draft) -> list[CancelRun]:
    """Runs that nobody waits for any more: their node is to stop, has ended, or is in another attempt."""
    reasons = dict(draft.abandoned)
    needed = set()
    for node_id, node in draft.nodes(NodeStatus.RUNNING, NodeStatus.WAITING):
        if node.run_id is not None and draft.is_run(node_id, node):
            if node.stop_requested_at is None and not draft.state.is_terminal:
                needed.add(node.run_id)
            else:
                reasons[node.run_id] = node.stop_reason or CANCELED
    for run_id in draft.runs:
        if run_id not in needed:
            reasons.setdefault(run_id, "nothing waits for it any more")
    return [
        CancelRun(run_id=run_id, reason=reason)
        for run_id, reason in reasons.items()
        if _may_go_on(draft, run_id)
    ]


def _may_go_on(draft: Draft, run_id: str) -> bool:
    """Whether a run is worth a cancel: one of which nothing is known is.

    So is one that is CANCELLING: who asked for it may have died before it ended a run without a worker.
    """
    if run_id not in draft.runs:
        return True
    fact = draft.runs[run_id]
    return fact is not None and not fact.status.is_terminal
