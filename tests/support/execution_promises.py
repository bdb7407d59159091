"""What must be true of executions once all is over, looked up in their logs."""

from collections import Counter
from collections.abc import Iterator, Mapping

from pyoco_server.domain.executions.events import Event, NodeStarted
from pyoco_server.domain.executions.evolve import fold
from pyoco_server.domain.executions.model import Execution, NodeStatus
from pyoco_server.domain.executions.records import ExecutionRecord
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus

Logs = Mapping[str, list[Event]]
"""By execution, everything that its log says."""
ENDS = ("EXECUTION_COMPLETED", "EXECUTION_FAILED", "EXECUTION_CANCELED")


def folded(logs: Logs) -> dict[str, Execution]:
    states = {execution_id: fold(events) for execution_id, events in logs.items()}
    return {execution_id: state for execution_id, state in states.items() if state is not None}


def kept_badly(
    logs: Logs, cached: Mapping[str, ExecutionRecord], runs: Mapping[str, RunSnapshot]
) -> Iterator[str]:
    """Every promise that was not kept, once all is over."""
    states = folded(logs)
    yield from (f"{found.execution_id}: still active" for found in states.values() if not found.is_terminal)
    yield from _reversals(logs)
    yield from _gaps(logs)
    yield from _wrongly_cached(logs, cached)
    yield from _wrong_runs(logs, states, runs)


def _reversals(logs: Logs) -> Iterator[str]:
    """An end is final, and from the request of a cancel on there is but one."""
    for execution_id, events in logs.items():
        types = [event.type for event in events]
        ends = [name for name in types if name in ENDS]
        if len(ends) > 1:
            yield f"{execution_id}: it ended {ends}"
        if "EXECUTION_CANCEL_REQUESTED" in types and ends not in ([], ["EXECUTION_CANCELED"]):
            yield f"{execution_id}: its cancel was accepted, and it ended {ends}"


def _gaps(logs: Logs) -> Iterator[str]:
    for execution_id, events in logs.items():
        found = [event.sequence for event in events]
        if found != list(range(1, len(found) + 1)):
            yield f"{execution_id}: the sequences of its log are {found}"


def _wrongly_cached(logs: Logs, cached: Mapping[str, ExecutionRecord]) -> Iterator[str]:
    """A cache may be behind its log; what it has is the fold of what it has seen."""
    for execution_id, record in cached.items():
        seen = [event for event in logs.get(execution_id, []) if event.sequence <= record.state.version]
        if fold(seen) != record.state:
            yield f"{execution_id}: its cached state is not the fold of its log"


def _wrong_runs(
    logs: Logs, states: Mapping[str, Execution], runs: Mapping[str, RunSnapshot]
) -> Iterator[str]:
    """An attempt is begun once; a run is that of an attempt; what succeeded did so by its run."""
    begun: dict[str, tuple[str, str]] = {}
    for execution_id, events in logs.items():
        started = [event.payload for event in events if isinstance(event.payload, NodeStarted)]
        turns = Counter((one.node_id, one.iteration, one.attempt) for one in started)
        for (node_id, _, attempt), times in turns.items():
            if times > 1:
                yield f"{execution_id}: attempt {attempt} of {node_id} was begun {times} times"
        begun |= {one.run_id: (execution_id, one.node_id) for one in started if one.run_id is not None}
    for run_id, run in runs.items():
        if run.execution_id is not None and begun.get(run_id) != (run.execution_id, run.node_id):
            yield f"{run_id}: a run of no attempt of {run.execution_id}/{run.node_id}"
    for execution_id, state in states.items():
        for node_id, node in state.nodes.items():
            if node.run_id is None or node.status is not NodeStatus.SUCCEEDED:
                continue
            found = runs.get(node.run_id)
            if found is None or (found.status, found.result) != (RunStatus.COMPLETED, node.output):
                yield f"{execution_id}: {node_id} succeeded without its run"


def cancelled_though_needed(
    timed: Mapping[str, list[tuple[Event, float]]], runs: Mapping[str, list[tuple[RunSnapshot, float]]]
) -> Iterator[str]:
    """An execution cancels a run after its log says that nothing waits for it, not before."""
    for run_id, writes in runs.items():
        asked = next(((run, at) for run, at in writes if run.status is RunStatus.CANCELLING), None)
        if asked is None or not (asked[0].cancel_requested_by or "").startswith("execution:"):
            continue
        events = timed.get(asked[0].execution_id or "", [])
        state = fold([event for event, stored_at in events if stored_at <= asked[1]])
        if state is not None and not state.is_terminal and _waits_for(state, run_id):
            yield f"{run_id}: its execution cancelled it, and waits for it"


def _waits_for(state: Execution, run_id: str) -> bool:
    return any(
        node.run_id == run_id and node.status is NodeStatus.RUNNING and node.stop_requested_at is None
        for node in state.nodes.values()
    )
