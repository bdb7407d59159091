"""The state of an execution: what the fold of its events gives."""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from pyoco_server.domain.execution.events import Failure

__all__ = [
    "Execution",
    "ExecutionStatus",
    "Gate",
    "NodeState",
    "NodeStatus",
    "Phase",
    "ResumeRequest",
    "replace",
]


class ExecutionStatus(StrEnum):
    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class NodeStatus(StrEnum):
    IDLE = "IDLE"
    READY = "READY"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL

    @property
    def is_live(self) -> bool:
        """Something is still to come from this node itself."""
        return self in _LIVE


_TERMINAL = frozenset({NodeStatus.SUCCEEDED, NodeStatus.FAILED, NodeStatus.CANCELED})
_LIVE = frozenset({NodeStatus.READY, NodeStatus.RUNNING, NodeStatus.WAITING})


class Phase(StrEnum):
    """Where an execution is in its life: what the guards ask."""

    CREATED = "CREATED"
    STARTED = "STARTED"
    FAILING = "FAILING"
    """A node failed for good and its siblings are being stopped."""
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class Gate(Struct, frozen=True, kw_only=True):
    """What a join knows of its branches, by the node each of them ends with."""

    policy: str
    expected_branches: tuple[str, ...] = ()
    completed_branches: tuple[str, ...] = ()
    failed_branches: tuple[str, ...] = ()
    canceled_branches: tuple[str, ...] = ()
    is_passable: bool = False


class ResumeRequest(Struct, frozen=True, kw_only=True):
    requested_at: float
    requested_by: str
    data: Any = None


class NodeState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    node_type: str
    status: NodeStatus = NodeStatus.IDLE
    attempt: int = 0
    worker_id: str | None = None
    run_id: str | None = None
    wait_key: str | None = None
    prompt: str | None = None
    deadline: float | None = None
    progress: float | None = None
    progress_message: str | None = None
    metrics: dict[str, Any] | None = None
    resume_request: ResumeRequest | None = None
    resume_data: Any = None
    output: Any = None
    error: Failure | None = None
    retry_at: float | None = None
    gate: Gate | None = None
    branch_ids: tuple[str, ...] | None = None
    ready_at: float | None = None
    started_at: float | None = None
    waiting_at: float | None = None
    resumed_at: float | None = None
    ended_at: float | None = None
    updated_at: float | None = None
    stop_requested_at: float | None = None
    """Since when it is to stop: an interrupt or a cancel of this node was asked for."""
    stop_reason: str | None = None
    canceled_by_execution: bool = False


class Execution(Struct, frozen=True, kw_only=True, omit_defaults=True):
    execution_id: str
    graph_id: str
    graph_version: int
    created_at: float
    updated_at: float
    version: int
    """The sequence of the last event that is in this state."""
    status: ExecutionStatus = ExecutionStatus.ACTIVE
    tenant_id: str | None = None
    api_key_id: str | None = None
    input: Any = None
    rerun_of: str | None = None
    given_id: str | None = None
    started_at: float | None = None
    cancel_requested_at: float | None = None
    cancel_requested_by: str | None = None
    cancel_reason: str | None = None
    fail_requested_at: float | None = None
    failed_node_id: str | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    canceled_at: float | None = None
    archived_at: float | None = None
    result: Any = None
    error: Failure | None = None
    nodes: dict[str, NodeState] = field(default_factory=dict)

    @property
    def is_terminal(self) -> bool:
        return self.status is not ExecutionStatus.ACTIVE

    @property
    def shown_id(self) -> str:
        """What its tenant calls it."""
        return self.given_id or self.execution_id

    @property
    def handled_failures(self) -> tuple[str, ...]:
        """The nodes that failed in an execution that completed all the same."""
        if self.status is not ExecutionStatus.COMPLETED:
            return ()
        return tuple(name for name, node in self.nodes.items() if node.status is NodeStatus.FAILED)

    @property
    def phase(self) -> Phase:
        if self.is_terminal:
            return Phase(self.status.value)
        if self.cancel_requested_at is not None:
            return Phase.CANCELLING
        if self.fail_requested_at is not None:
            return Phase.FAILING
        return Phase.CREATED if self.started_at is None else Phase.STARTED
