"""A run: one life of a flow, as the snapshot that everybody reads."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from pyoco_server.domain.values import bounded_warnings

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


# Keeping a snapshot under its byte limit: what is dropped, and in which order.
#
# What people need last goes first: inputs and outputs of tasks, then tracebacks, then the records
# themselves,
# then the picture of the flow, then the result, then the tail of the error. `params` and `tasks` are
# promised
# and always stay.

SHORT_ERROR = 2_000
"""Characters of an error's text that are kept when nothing else helped."""


class TrimmedSnapshot(Struct, frozen=True):
    snapshot: RunSnapshot
    data: bytes
    within_limit: bool


def trim_snapshot(
    snapshot: RunSnapshot, limit: int, encode: Callable[[RunSnapshot], bytes]
) -> TrimmedSnapshot:
    """The largest reduction of `snapshot` that fits, with its bytes.

    When even the smallest is over the limit it is returned all the same: a run whose end cannot be written
    would stay RUNNING for ever, so the caller writes it and tells the operator (ERR-PYOCO-0010).
    """
    data = encode(snapshot)
    if len(data) <= limit:
        return TrimmedSnapshot(snapshot, data, within_limit=True)
    for reduced in _reductions(snapshot):
        snapshot, data = reduced, encode(reduced)
        if len(data) <= limit:
            return TrimmedSnapshot(snapshot, data, within_limit=True)
    return TrimmedSnapshot(snapshot, data, within_limit=False)


def _reductions(snapshot: RunSnapshot) -> Iterator[RunSnapshot]:
    for shrink in (_without_values, _without_tracebacks):
        records = {name: shrink(record) for name, record in (snapshot.task_records or {}).items()}
        snapshot = replace(snapshot, task_records=records, task_records_truncated=True)
        yield snapshot
    snapshot = replace(snapshot, task_records={})
    yield snapshot
    snapshot = replace(snapshot, task_dependencies=None)
    yield snapshot
    snapshot = _without_result(snapshot)
    yield snapshot
    yield replace(snapshot, error=_shortened(snapshot.error))


def _without_result(snapshot: RunSnapshot) -> RunSnapshot:
    if snapshot.result is None:
        return snapshot
    size = len(msgspec.json.encode(snapshot.result))
    text = (
        f"the result has {size:,} bytes as JSON; with the rest of its snapshot that is too large to be kept"
    )
    return replace(
        snapshot, result=None, result_truncated=True, warnings=bounded_warnings([text, *snapshot.warnings])
    )


def _without_values(record: TaskRecord) -> TaskRecord:
    return replace(record, inputs=None, output=None, artifacts=None)


def _without_tracebacks(record: TaskRecord) -> TaskRecord:
    return replace(record, traceback=None, error=_shortened(record.error))


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= SHORT_ERROR:
        return text
    return text[:SHORT_ERROR] + " … (shortened)"
