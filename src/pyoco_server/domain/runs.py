"""A run: one life of a flow, as the snapshot that everybody reads."""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

__all__ = ["TERMINAL", "CodeWheel", "Owner", "RunSnapshot", "RunStatus", "TaskRecord", "TaskState", "replace"]


class RunStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


class TaskState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Owner(Struct, frozen=True):
    """Who may write a running snapshot: this instance of this worker, for this delivery of the job."""

    worker_id: str
    instance_id: str
    attempt: int


class CodeWheel(Struct, frozen=True):
    """A wheel that a run's executor had: which code ran."""

    name: str
    version: str
    sha256: str | None


class TaskRecord(Struct, frozen=True, kw_only=True):
    state: TaskState = TaskState.PENDING
    started_at: float | None = None
    ended_at: float | None = None
    duration_ms: float | None = None
    error: str | None = None
    traceback: str | None = None
    inputs: dict[str, Any] | None = None
    output: Any = None
    artifacts: dict[str, Any] | None = None


class RunSnapshot(Struct, frozen=True, kw_only=True):
    """The latest state of a run, as it stands in the bucket. Times are unix seconds."""

    run_id: str
    flow_name: str
    status: RunStatus
    params: dict[str, Any]
    tasks: dict[str, TaskState]
    heartbeat_at: float
    updated_at: float

    tag: str | None = None
    tags: tuple[str, ...] | None = None
    worker_id: str | None = None
    instance_id: str | None = None
    attempt: int | None = None
    job_seq: int | None = None
    """The queue's number of the job that the owner holds; a worker of another make leaves none."""
    task_records: dict[str, TaskRecord] | None = field(default_factory=dict)
    task_records_truncated: bool = False
    task_dependencies: dict[str, tuple[str, ...]] | None = None
    """Which task waits for which, as far as the flow tells; a worker of another make does not say."""
    submitted_at: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    result: Any = None
    result_truncated: bool = False
    """The run returned a result that is too large to be kept."""
    warnings: tuple[str, ...] = ()
    """What a person should know of a run that went well: what became null, what was not kept."""
    error: str | None = None
    cancel_requested_at: float | None = None
    cancel_requested_by: str | None = None
    cancel_reason: str | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    execution_id: str | None = None
    node_id: str | None = None
    wheels: tuple[CodeWheel, ...] | None = None
    retention_sec: float | None = None
    """How long it is kept after its end; None: as long as whoever ends it says."""

    @property
    def owner(self) -> Owner | None:
        """The worker that holds the run; a worker of another make leaves no instance or attempt."""
        if self.worker_id is None:
            return None
        return Owner(self.worker_id, self.instance_id or "", self.attempt or 0)
