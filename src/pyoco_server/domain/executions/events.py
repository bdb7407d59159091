"""The events of an execution, and commits. 24 are of the contract, the others are its extensions.

A commit holds the events of one command in one message of the log, with common envelope fields. `Event` is
the form for readers, with one envelope per event.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final
from uuid import NAMESPACE_URL, UUID, uuid5

from msgspec import Struct

from pyoco_server.domain.large_values import Place
from pyoco_server.domain.traces import Trace

SCHEMA_VERSION: Final = 1


class ActorKind(StrEnum):
    SYSTEM = "system"
    USER = "user"
    SCHEDULER = "scheduler"
    EXTERNAL = "external"


class Actor(Struct, frozen=True, omit_defaults=True):
    """The sender: `kind` and `id` are its claims, the other fields are authenticated."""

    kind: ActorKind
    id: str | None = None
    api_key_id: str | None = None
    tenant_id: str | None = None

    @property
    def name(self) -> str:
        return self.id or self.kind.value


MAX_REASON: Final = 100
"""Characters of a reason, which every node repeats, so that a thousand nodes fit into one commit."""
MAX_ERROR: Final = 4_000


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


ORCHESTRATOR = Actor(ActorKind.SYSTEM, "orchestrator")


class Failure(Struct, frozen=True):
    """The failure of a node or an execution."""

    message: str
    code: str = "FAILED"
    details: Any = None


class Payload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of an event. The class is the event type."""


class WorkOfNode(Payload, frozen=True, kw_only=True):
    """What a node does, with `undoes` also while the execution fails or is cancelled."""

    undoes: str | None = None
    """The node that this one undoes."""


class ExecutionCreated(Payload, frozen=True, kw_only=True):
    graph_id: str
    graph_version: int
    input: Any = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    rerun_of: str | None = None
    given_id: str | None = None
    """The tenant's id of the execution, if it differs from the stored id."""
    parent_execution_id: str | None = None
    """The execution whose node it carries out, by its shown id."""
    parent_node_id: str | None = None
    graph_versions: dict[str, int] = {}
    """Of all graphs below its own, as they were when the outermost execution was created."""
    trace: Trace | None = None
    """The span that created it."""
    values: tuple[Place, ...] = ()
    """Where references to stored values stand in `input`."""


class NodeCreated(Payload, frozen=True, kw_only=True):
    node_id: str
    node_type: str
    rerun_of: str | None = None
    """The child execution that its own child reruns from its failure."""


class ExecutionStarted(Payload, frozen=True, kw_only=True):
    pass


class ExecutionCancelRequested(Payload, frozen=True, kw_only=True):
    requested_by: str
    reason: str | None = None


class ExecutionCanceled(Payload, frozen=True, kw_only=True):
    reason: str | None = None


class ExecutionArchived(Payload, frozen=True, kw_only=True):
    reason: str | None = None


class ExecutionFailRequested(Payload, frozen=True, kw_only=True):
    failed_node_id: str
    error: Failure


class ExecutionFailed(Payload, frozen=True, kw_only=True):
    failed_node_id: str
    error: Failure


class ExecutionCompleted(Payload, frozen=True, kw_only=True):
    result: Any = None
    values: tuple[Place, ...] = ()


class NodeReady(WorkOfNode, frozen=True, kw_only=True):
    node_id: str
    iteration: int | None = None
    """The next iteration of a repeat, after its pause."""


class NodeStarted(WorkOfNode, frozen=True, kw_only=True):
    node_id: str
    attempt: int
    worker_id: str | None = None
    run_id: str | None = None
    child_execution_id: str | None = None
    iteration: int | None = None
    """Of a repeat, from 1. Attempts are counted in each iteration."""


class NodeProgressReported(WorkOfNode, frozen=True, kw_only=True):
    node_id: str
    progress: float | None = None
    message: str | None = None
    metrics: dict[str, Any] | None = None


class NodeWaiting(WorkOfNode, frozen=True, kw_only=True):
    node_id: str
    wait_key: str | None = None
    prompt: str | None = None
    deadline: float | None = None
    wake_at: float | None = None
    """It goes on by itself then; nobody has to resume it."""
    message: str | None = None
    """The name of the message that it waits for."""
    iteration: int | None = None
    """Of a repeat: the one that has just ended."""


class NodeResumeRequested(WorkOfNode, frozen=True, kw_only=True):
    node_id: str
    requested_by: str
    resume_key: str | None = None
    data: Any = None


class NodeResumed(WorkOfNode, frozen=True, kw_only=True):
    node_id: str
    resume_key: str | None = None
    data: Any = None
    message_sequence: int | None = None
    """The MESSAGE_RECEIVED whose data it has."""


class MessageReceived(Payload, frozen=True, kw_only=True):
    """`node_ids`: the unfinished nodes whose condition it meets. It is kept until one of them has it."""

    name: str
    data: Any = None
    node_ids: tuple[str, ...] = ()


class NodeSucceeded(WorkOfNode, frozen=True, kw_only=True):
    node_id: str
    output: Any = None
    carried_from: str | None = None
    """The execution whose output a rerun keeps; the node has not been started in this one."""
    values: tuple[Place, ...] = ()
    """Where references to stored values stand in `output`."""


class NodeFailReported(WorkOfNode, frozen=True, kw_only=True):
    node_id: str
    attempt: int
    error: Failure
    retry_at: float | None = None


class NodeFailed(WorkOfNode, frozen=True, kw_only=True):
    node_id: str
    error: Failure


class NodeCancelRequested(Payload, frozen=True, kw_only=True):
    node_id: str
    reason: str


class NodeInterruptRequested(Payload, frozen=True, kw_only=True):
    node_id: str
    reason: str
    worker_id: str | None = None
    run_id: str | None = None


class NodeCanceled(Payload, frozen=True, kw_only=True):
    node_id: str
    reason: str


class ForkOpened(Payload, frozen=True, kw_only=True):
    node_id: str
    branch_ids: tuple[str, ...]


class JoinGateUpdated(Payload, frozen=True, kw_only=True, omit_defaults=False):
    node_id: str
    policy: str
    expected_branches: tuple[str, ...]
    completed_branches: tuple[str, ...]
    failed_branches: tuple[str, ...]
    canceled_branches: tuple[str, ...]
    is_passable: bool


class JoinPassed(Payload, frozen=True, kw_only=True):
    node_id: str


class MapOpened(Payload, frozen=True, kw_only=True):
    node_id: str
    elements: int
    """Of the list."""
    items: int
    """Runs or executions: fewer than elements with a batch."""


class ItemEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of an attempt of an item."""

    index: int
    attempt: int = 1
    output: Any = None
    error: Failure | None = None
    """It failed."""
    retry_at: float | None = None
    """Time of its next attempt; None: it was the last."""
    values: tuple[Place, ...] = ()
    """Where references to stored values stand in `output`."""


class MapItemsEnded(Payload, frozen=True, kw_only=True):
    """What has ended since the last such event."""

    node_id: str
    ended: tuple[ItemEnd, ...]
    items: int | None = None
    """With `carried_from`: of the map."""
    carried_from: str | None = None
    """The execution whose outputs a rerun keeps; this comes before the node starts."""


def value_in(payload: Payload) -> Any:  # noqa: PLR0911 - one return per type
    """What a caller or a run has put into an event."""
    match payload:
        case ExecutionCreated():
            return payload.input
        case NodeProgressReported():
            return payload.metrics
        case NodeResumed() | NodeResumeRequested() | MessageReceived():
            return payload.data
        case NodeSucceeded():
            return payload.output
        case MapItemsEnded():
            return [item.output for item in payload.ended]
        case ExecutionCompleted():
            return payload.result
    return None


def values_in(payload: Payload) -> Iterator[tuple[dict[str, Any], tuple[Place, ...]]]:
    """Values that refer to stored values, by their first step, and the places."""
    match payload:
        case MapItemsEnded():
            yield from (({"output": item.output}, item.values) for item in payload.ended if item.values)
        case ExecutionCreated(values=values) if values:
            yield {"input": payload.input}, values
        case NodeSucceeded(values=values) if values:
            yield {"output": payload.output}, values
        case ExecutionCompleted(values=values) if values:
            yield {"result": payload.result}, values


EXTENSIONS: Final[dict[str, type[Payload]]] = {
    "MAP_OPENED": MapOpened,
    "MAP_ITEMS_ENDED": MapItemsEnded,
    "MESSAGE_RECEIVED": MessageReceived,
}
"""Event types beyond the 24 of the contract."""

PAYLOADS: Final[dict[str, type[Payload]]] = {
    "EXECUTION_CREATED": ExecutionCreated,
    "NODE_CREATED": NodeCreated,
    "EXECUTION_STARTED": ExecutionStarted,
    "EXECUTION_CANCEL_REQUESTED": ExecutionCancelRequested,
    "EXECUTION_CANCELED": ExecutionCanceled,
    "EXECUTION_ARCHIVED": ExecutionArchived,
    "EXECUTION_FAIL_REQUESTED": ExecutionFailRequested,
    "EXECUTION_FAILED": ExecutionFailed,
    "EXECUTION_COMPLETED": ExecutionCompleted,
    "NODE_READY": NodeReady,
    "NODE_STARTED": NodeStarted,
    "NODE_PROGRESS_REPORTED": NodeProgressReported,
    "NODE_WAITING": NodeWaiting,
    "NODE_RESUME_REQUESTED": NodeResumeRequested,
    "NODE_RESUMED": NodeResumed,
    "NODE_SUCCEEDED": NodeSucceeded,
    "NODE_FAIL_REPORTED": NodeFailReported,
    "NODE_FAILED": NodeFailed,
    "NODE_CANCEL_REQUESTED": NodeCancelRequested,
    "NODE_INTERRUPT_REQUESTED": NodeInterruptRequested,
    "NODE_CANCELED": NodeCanceled,
    "FORK_OPENED": ForkOpened,
    "JOIN_GATE_UPDATED": JoinGateUpdated,
    "JOIN_PASSED": JoinPassed,
    **EXTENSIONS,
}
TYPE_OF: Final = {payload: name for name, payload in PAYLOADS.items()}


class Unknown(Payload, frozen=True, kw_only=True):
    """An event of a newer version: kept and shown unchanged, without effect on the state."""

    type: str
    fields: Any


class Event(Struct, frozen=True, kw_only=True):
    sequence: int
    execution_id: str
    occurred_at: float
    actor: Actor
    payload: Payload
    correlation_id: str | None = None
    causation_id: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def type(self) -> str:
        return self.payload.type if isinstance(self.payload, Unknown) else TYPE_OF[type(self.payload)]

    @property
    def event_id(self) -> UUID:
        """Derived from the event, not stored."""
        return uuid5(NAMESPACE_URL, f"pyoco:execution:{self.execution_id}:{self.sequence}")


class Commit(Struct, frozen=True, kw_only=True):
    """The events of one command, stored atomically."""

    execution_id: str
    command_id: str
    first_sequence: int
    at: float
    actor: Actor
    payloads: tuple[Payload, ...]
    correlation_id: str | None = None
    request_digest: str | None = None
    """Digest of a command sent with an `Idempotency-Key`."""
    schema_version: int = SCHEMA_VERSION

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + len(self.payloads) - 1

    def events(self) -> Iterator[Event]:
        for index, payload in enumerate(self.payloads):
            yield Event(
                sequence=self.first_sequence + index,
                execution_id=self.execution_id,
                occurred_at=self.at,
                actor=self.actor,
                payload=payload,
                correlation_id=self.correlation_id,
                causation_id=self.command_id,
                schema_version=self.schema_version,
            )
