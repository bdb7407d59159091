"""The decisions of the orchestrator. Level-triggered and pure.

From the state, the graph and the known runs, `react` derives the events to append and the runs to dispatch or
cancel. Calling it twice, late, or on two machines at once does no harm: the log refuses the events of the
loser, and run ids are derived from (execution, node, attempt).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from pyoco_server.domain.cel.values import Allowance, TooHeavy
from pyoco_server.domain.executions import events as e, orchestration_nodes
from pyoco_server.domain.executions.branches import Branches
from pyoco_server.domain.executions.decide import CANCELED, interrupt
from pyoco_server.domain.executions.graphs import EdgeOn, Graph, NodeType
from pyoco_server.domain.executions.model import (
    MAX_TOTAL_BYTES,
    Execution,
    NodeState,
    NodeStatus,
    Phase,
    json_size,
)
from pyoco_server.domain.executions.orchestration_draft import ASKED, Draft
from pyoco_server.domain.executions.orchestration_map import (
    cancels_of_items,
    dispatch_of,
    kept_facts,
    needed_items,
    starts_of_items,
)
from pyoco_server.domain.executions.orchestration_nodes import end_stopped, stop, undo_next
from pyoco_server.domain.executions.records import CancelRun, DispatchRun, RunFact, StartChild
from pyoco_server.domain.executions.stored import Opened
from pyoco_server.domain.large_values import moved, under

# The end of an execution: completed, failed, cancelled.

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
    """The first failed node gives the reason."""
    node_id, node = min(failed, key=lambda found: found[1].ended_at or 0.0)
    error = node.error or e.Failure("the node failed")
    draft.emit(e.ExecutionFailRequested(failed_node_id=node_id, error=error))


def finish_failing(draft: Draft) -> None:
    _stop_all(draft)
    end_stopped(draft)
    if not draft.has_live_nodes and not undo_next(draft):
        state = draft.state
        assert state.failed_node_id is not None and state.error is not None  # noqa: S101, PT018
        draft.emit(e.ExecutionFailed(failed_node_id=state.failed_node_id, error=state.error))


def _stop_all(draft: Draft) -> None:
    for node_id, _ in draft.plain_nodes(NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING):
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
    result = _results(draft, is_handled=bool(failed))
    if draft.state.held_bytes + json_size(result) <= MAX_TOTAL_BYTES:
        nodes = draft.state.nodes
        values = tuple(
            place for node_id in result for place in moved(nodes[node_id].values, "result", node_id)
        )
        draft.emit(e.ExecutionCompleted(result=result, values=values))
    else:
        draft.emit(_too_large(result))


def _too_large(result: dict[str, Any]) -> e.ExecutionFailRequested:
    largest = max(result, key=lambda node_id: json_size(result[node_id]))
    problem = (
        f"with its result of {json_size(result):,} bytes of JSON the execution would hold more than "
        f"{MAX_TOTAL_BYTES:,}"
    )
    return e.ExecutionFailRequested(failed_node_id=largest, error=e.Failure(problem, "RESULT_TOO_LARGE"))


def _results(draft: Draft, *, is_handled: bool) -> dict[str, Any]:
    """Outputs of the nodes without outgoing edges; with handled failures, of the last nodes that ran."""
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
    for node_id, node in draft.plain_nodes(NodeStatus.IDLE, NodeStatus.READY, NodeStatus.WAITING):
        draft.emit(e.NodeCanceled(node_id=node_id, reason=node.stop_reason or of_nodes))
    for node_id, node in draft.plain_nodes(NodeStatus.RUNNING):
        if node.stop_requested_at is None:
            draft.emit(interrupt(node_id, node, of_nodes))
    end_stopped(draft)
    if not draft.plain_nodes(NodeStatus.RUNNING) and not undo_next(draft):
        draft.emit(e.ExecutionCanceled(reason=reason))


# Effects: runs and child executions to start and to cancel.

Start = DispatchRun | StartChild


def dispatches(draft: Draft) -> list[Start]:
    """Work of started nodes that does not exist yet."""
    found = []
    for node_id, node in draft.nodes(NodeStatus.RUNNING):
        if node.stop_requested_at is not None or draft.work(node_id, node) is None:
            continue
        is_known, fact = draft.fact(node_id, node)
        is_missing = node.work_id in draft.started or (is_known and fact is None)
        if is_missing and node.work_id in draft.rendered:
            found.append(_dispatch(draft, node_id, node))
    return [*found, *starts_of_items(draft)]


def _dispatch(draft: Draft, node_id: str, node: NodeState) -> Start:
    if draft.graph.nodes[node_id].type is NodeType.EXECUTION:
        return _start_child(draft, node_id, node)
    assert node.run_id is not None  # noqa: S101 - it has started
    return dispatch_of(draft.graph.nodes[node_id], node.run_id, draft.render_work(node_id))


def _start_child(draft: Draft, node_id: str, node: NodeState) -> StartChild:
    graph_id = draft.graph.nodes[node_id].graph
    assert node.child_execution_id is not None and graph_id is not None  # noqa: S101, PT018
    given = draft.render_work(node_id)
    return StartChild(
        execution_id=node.child_execution_id,
        node_id=node_id,
        graph_id=graph_id,
        input=given.value,
        values=under(given.values, "input"),
        rerun_of=node.rerun_of,
    )


def cancels(draft: Draft) -> list[CancelRun]:
    """Obsolete work: its node is stopping, has ended, or is in another attempt."""
    unwanted = {found.run_id: found for found in (*draft.abandoned, *cancels_of_items(draft))}
    needed = needed_items(draft)
    for node_id, node in draft.nodes(NodeStatus.RUNNING, NodeStatus.WAITING):
        if (work := draft.work(node_id, node)) is None:
            continue
        if node.stop_requested_at is None and not draft.state.is_terminal:
            needed.add(work.id)
        else:
            reason = node.stop_reason or CANCELED
            unwanted[work.id] = CancelRun(run_id=work.id, reason=reason, is_execution=work.is_execution)
    for work_id, fact in draft.runs.items():
        if fact is not None and work_id not in needed and work_id not in unwanted:
            reason = "no longer needed by its execution"
            unwanted[work_id] = CancelRun(run_id=work_id, reason=reason, is_execution=fact.is_execution)
    return [found for found in unwanted.values() if _may_go_on(draft, found.run_id)]


def _may_go_on(draft: Draft, run_id: str) -> bool:
    """Whether work may still be active, so that a cancel makes sense; True if unknown.

    Also for CANCELLING, because the requester may have crashed before it ended a run without a worker.
    """
    if run_id not in draft.runs:
        return True
    fact = draft.runs[run_id]
    return fact is not None and not fact.status.is_terminal and fact.code != ASKED


__all__ = ["Allowance", "CancelRun", "DispatchRun", "Reaction", "RunFact", "TooHeavy", "react"]


class Reaction(Struct, frozen=True, kw_only=True):
    events: tuple[e.Payload, ...] = ()
    """Events of one commit; may be empty."""
    state: Execution
    """The state after these events."""
    dispatches: tuple[Start, ...] = ()
    cancels: tuple[CancelRun, ...] = ()
    wake_at: float | None = None
    """The next time at which the result changes without an event."""
    has_more: bool = False
    """Incomplete; react again."""
    kept: dict[str, RunFact | None] = {}
    """Facts about items of maps that the next reaction has to know, because they are not in the log."""


def react(
    state: Execution,
    graph: Graph,
    runs: Mapping[str, RunFact | None],
    now: float,
    grace_sec: float,
    allowance: Allowance | None = None,
    *,
    opened: Opened | None = None,
) -> Reaction:
    """`runs`: facts by the id of a run or child execution, None for one that does not exist.

    Those without an entry are unknown.
    With an `allowance`, TooHeavy is raised once the work exceeds it. The result never depends on it.
    Lacking is raised for a stored value that is needed and not `opened`.
    """
    draft = Draft(state, graph, runs, now, grace_sec, allowance, opened=opened)
    while (step := _STEPS.get(draft.state.phase)) is not None:
        known = len(draft.events)
        draft.timers.clear()
        step(draft)
        if len(draft.events) == known:
            break
    starts, unwanted = dispatches(draft), cancels(draft)
    return Reaction(
        events=tuple(draft.events),
        state=draft.state,
        dispatches=tuple(starts),
        cancels=tuple(unwanted),
        kept=kept_facts(draft, {one.work_id for one in starts}, {one.run_id for one in unwanted}),
        wake_at=min(draft.timers, default=None) if not draft.state.is_terminal else None,
        has_more=draft.has_more,
    )


def _go_on(draft: Draft) -> None:
    known = len(draft.events)
    orchestration_nodes.end_nodes(draft)
    orchestration_nodes.stop_unneeded(draft)
    orchestration_nodes.end_stopped(draft)
    branches = draft.branches()
    orchestration_nodes.update_gates(draft, branches)
    if fail_if_lost(draft, branches):
        return
    orchestration_nodes.make_ready(draft, branches)
    orchestration_nodes.carry_on(draft)
    if len(draft.events) == known:
        complete_if_over(draft)


_STEPS: Final[Mapping[Phase, Callable[[Draft], None]]] = {
    Phase.STARTED: _go_on,
    Phase.FAILING: finish_failing,
    Phase.CANCELLING: finish_cancel,
}
"""Steps that are repeated until they add nothing."""
