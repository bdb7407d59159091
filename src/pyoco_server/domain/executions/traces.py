"""The span of an execution, emitted by the process that appends its end."""

from pyoco_server.domain.executions.model import Execution
from pyoco_server.domain.traces import Place, Span, derived_place, nanoseconds, present, tracestate_of

EXECUTION = "pyoco.execution"


def place_of_execution(state: Execution) -> Place:
    key = f"execution:{state.execution_id}"
    return derived_place(state.trace, key, key)


def span_of_execution(state: Execution) -> Span:
    place = place_of_execution(state)
    ended_at = state.completed_at or state.failed_at or state.canceled_at or state.updated_at
    return Span(
        name=EXECUTION,
        trace_id=place.trace_id,
        span_id=place.span_id,
        parent=place.parent,
        is_sampled=False if place.is_dropped else None,
        tracestate=tracestate_of(state.trace),
        start_ns=nanoseconds(state.created_at),
        end_ns=nanoseconds(ended_at),
        attributes=present(
            execution_id=state.shown_id,
            graph_id=state.graph_id,
            graph_version=state.graph_version,
            status=state.status.value,
            failed_node_id=state.failed_node_id,
        ),
        status="UNSET" if state.error is None else "ERROR",
        description=None if state.error is None else state.error.message,
    )
