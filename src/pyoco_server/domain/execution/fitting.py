"""What to append instead of events that no message can hold. Pure.

Any number of them is a sound log, because whoever looks next goes on from there; only the events of one
node in a row belong together. What does not fit even alone is a failure with a clear text.
"""

from collections.abc import Sequence

import msgspec

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution.state import Execution


def smaller(state: Execution, payloads: Sequence[e.Payload]) -> tuple[e.Payload, ...] | None:
    """About half of them, or, of what cannot be divided, its failure. None: there is no way."""
    groups = _groups(payloads)
    if len(groups) > 1:
        half = groups[: len(groups) // 2]
        return tuple(payload for group in half for payload in group)
    return _failed(state, payloads[-1]) if payloads else None


def _groups(payloads: Sequence[e.Payload]) -> list[list[e.Payload]]:
    groups: list[list[e.Payload]] = []
    for payload in payloads:
        node_id = getattr(payload, "node_id", None)
        if groups and node_id is not None and getattr(groups[-1][-1], "node_id", None) == node_id:
            groups[-1].append(payload)
        else:
            groups.append([payload])
    return groups


def _failed(state: Execution, payload: e.Payload) -> tuple[e.Payload, ...] | None:
    match payload:
        case e.NodeSucceeded(node_id=node_id):
            error = e.Failure(_too_large("the output", payload.output), "OUTPUT_TOO_LARGE")
            attempt = state.nodes[node_id].attempt
            return (
                e.NodeFailReported(node_id=node_id, attempt=attempt, error=error),
                e.NodeFailed(node_id=node_id, error=error),
            )
        case e.ExecutionCompleted(result=dict(result)) if result:
            error = e.Failure(_too_large("the result of the execution", result), "RESULT_TOO_LARGE")
            largest = max(result, key=lambda node_id: len(msgspec.json.encode(result[node_id])))
            return (
                e.ExecutionFailRequested(failed_node_id=largest, error=error),
                e.ExecutionFailed(failed_node_id=largest, error=error),
            )
    return None


def _too_large(what: str, value: object) -> str:
    size = len(msgspec.json.encode(value))
    return f"{what} has {size} bytes of JSON, more than NATS takes in one message (max_payload)"
