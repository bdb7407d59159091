"""What executions take in memory: mostly what others put into them. Pure."""

from typing import Any

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution.events import Commit, Payload
from pyoco_server.domain.execution.state import Execution
from pyoco_server.domain.value_sizes import memory_of

_NODE = 1_000
_EVENT = 200


def memory_of_state(state: Execution) -> int:
    """In bytes, about."""
    values: list[Any] = [state.input, state.result]
    for node in state.nodes.values():
        asked = node.resume_request
        values += (node.output, node.resume_data, None if asked is None else asked.data)
    return _NODE * (1 + len(state.nodes)) + memory_of(values)


def memory_of_commit(commit: Commit) -> int:
    """What a state grows by, at most about."""
    return sum(_EVENT + memory_of(_value_in(payload)) for payload in commit.payloads)


def _value_in(payload: Payload) -> Any:
    match payload:
        case e.ExecutionCreated():
            return payload.input
        case e.NodeSucceeded():
            return payload.output
        case e.NodeResumed() | e.NodeResumeRequested():
            return payload.data
        case e.ExecutionCompleted():
            return payload.result
    return None
