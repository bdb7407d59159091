"""For OpenAPI: the shapes of answers, from the types that are encoded."""

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from pyoco_server.domain.events.audit import AuditDetails
from pyoco_server.domain.events.retry import JobStatus, QueueCounts, RetryJob, RetryPolicy
from pyoco_server.domain.events.sources import KeyOf, SourceKind
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.executions.branches import EdgeState
from pyoco_server.domain.executions.events import Actor
from pyoco_server.domain.executions.graph_registry import GraphRecord, GraphSummary
from pyoco_server.domain.executions.model import Execution, NodeState, Phase
from pyoco_server.domain.executions.records import ExecutionSummary, Wait
from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.runs.listing import RunSummary
from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus, TaskRecord, TaskState
from pyoco_server.domain.wheels import WheelEvent
from pyoco_server.usecases.executions.graphs import GraphPage


class Run(RunSnapshot, frozen=True, kw_only=True):
    """A snapshot; `GET /runs/{run_id}` adds what is known of the worker that holds it."""

    worker_alive: bool | None = None
    worker_heartbeat_at: float | None = None
    worker_tags: tuple[str, ...] | None = None


class Submitted(Struct):
    """`warning`: why the run may wait for long."""

    run_id: str
    status: RunStatus
    warning: str | msgspec.UnsetType = msgspec.UNSET


class BatchResult(Struct):
    accepted: int
    refused: int
    results: list[dict[str, Any]]


class RunTasks(Struct):
    run_id: str
    flow_name: str
    status: RunStatus
    tasks: dict[str, TaskState]
    task_records: dict[str, TaskRecord] | None
    task_records_truncated: bool
    task_dependencies: dict[str, tuple[str, ...]] | None


class RunLogs(Struct):
    run_id: str
    lines: list[LogLine]
    next_cursor: str
    has_earlier: bool
    has_more: bool


class WorkerPatched(Struct):
    worker_id: str
    hidden: bool
    updated_at: float


class WheelFile(Struct):
    name: str
    size_bytes: int
    bucket: str
    nuid: str
    modified: float
    sha256_hex: str | None
    tags: tuple[str, ...]
    sha256_b64: str | None
    digest: str | None
    mtime: str


class WheelDeleted(Struct):
    name: str
    deleted: bool


class Health(Struct):
    status: str
    nats: str


def _like(shape: type[Struct], name: str, *, hidden: tuple[str, ...], **changed: Any) -> type[Struct]:
    """A shape that is stored, as it is answered."""
    told = [field for field in fields(shape) if field.name not in hidden]
    parts: list[Any] = [
        (field.name, changed.get(field.name, field.type))
        if field.required
        else (field.name, field.type, msgspec.field(default_factory=field.default_factory))
        if field.default is msgspec.NODEFAULT
        else (field.name, field.type, field.default)
        for field in told
    ]
    return msgspec.defstruct(name, parts, kw_only=True)


class ExecutionNode(NodeState, frozen=True, kw_only=True):
    """A node; `run_status` is that of its run, while that has not ended."""

    run_status: RunStatus | None


_Execution = _like(Execution, "_Execution", hidden=("given_id", "nodes"))
ExecutionRow = _like(ExecutionSummary, "ExecutionSummary", hidden=("given_id",))


class ExecutionState(_Execution, kw_only=True):  # type: ignore[misc, valid-type, call-arg]
    """Where an execution stands; `edges` only where they were asked for."""

    phase: Phase
    handled_failures: tuple[str, ...]
    nodes: dict[str, ExecutionNode]
    edges: list[EdgeState] | msgspec.UnsetType = msgspec.UNSET


class ExecutionPage(Struct):
    items: list[ExecutionRow]  # type: ignore[valid-type]
    next_cursor: str | None
    counts: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


class WaitPage(Struct):
    items: list[Wait]
    next_cursor: str | None


class ExecutionEvent(Struct):
    event_id: str
    execution_id: str
    sequence: int
    type: str
    occurred_at: float
    actor: Actor
    correlation_id: str | None
    causation_id: str | None
    schema_version: int
    payload: dict[str, Any]


class EventPage(Struct):
    items: list[ExecutionEvent]
    next_cursor: str | None


Worker = _like(WorkerRecord, "WorkerRecord", hidden=("hidden_for",))
WorkflowTemplate = _like(Template, "WorkflowTemplate", hidden=("tenant_id",))
WorkflowAction = _like(Action, "WorkflowAction", hidden=("tenant_id",))


class WorkflowSource(Struct):
    """`secrets` is how many there are."""

    id: str
    kind: SourceKind
    secrets: int
    updated_at: str
    template_id: str | None
    signature_header: str
    timestamp_header: str | None
    key_of: KeyOf
    events_path: str
    """Where its events are sent to."""


class WorkflowTemplates(Struct):
    status: str
    items: list[WorkflowTemplate]  # type: ignore[valid-type]


class WorkflowActions(Struct):
    status: str
    items: list[WorkflowAction]  # type: ignore[valid-type]


class WorkflowSources(Struct):
    status: str
    items: list[WorkflowSource]


class DeletedId(Struct):
    id: str
    deleted: bool


class DeletedKey(Struct):
    key: str
    deleted: bool


class EventStarted(Struct):
    status: str
    duplicate: bool
    triggered: bool
    event_id: str
    template_id: str
    template_name: str
    action_key: str
    run_id: str
    idempotency_key: str | msgspec.UnsetType = msgspec.UNSET
    execution_id: str | msgspec.UnsetType = msgspec.UNSET
    payload_mismatch: bool | msgspec.UnsetType = msgspec.UNSET
    idempotency_key_ignored: bool | msgspec.UnsetType = msgspec.UNSET
    resume_ignored: bool | msgspec.UnsetType = msgspec.UNSET


class EventPinged(Struct):
    """GitHub's ping of a new webhook: signed correctly, and it starts nothing."""

    status: str
    duplicate: bool
    triggered: bool
    ping: bool
    event_id: str
    message: str


class EventResumed(Struct):
    """An event that was for a wait; `kept`: for one that has not begun yet."""

    status: str
    duplicate: bool
    triggered: bool
    kept: bool
    event_id: str
    execution_id: str | None
    node_id: str | None
    wait_key: str | msgspec.UnsetType = msgspec.UNSET
    idempotency_key: str | msgspec.UnsetType = msgspec.UNSET
    payload_mismatch: bool | msgspec.UnsetType = msgspec.UNSET


WorkflowRetryJob = _like(
    RetryJob,
    "WorkflowRetryJob",
    hidden=("tenant_id", "api_key_id", "is_told", "told_tries"),
    next_retry_at=str,
    created_at=str,
    updated_at=str,
)


class RetryQueueState(Struct):
    total: int
    due: int
    by_status: dict[str, int]
    jobs: list[WorkflowRetryJob]  # type: ignore[valid-type]
    policy: RetryPolicy


class RetryJobs(RetryQueueState):
    status: str


class RetryJobChanged(Struct):
    status: str
    job: WorkflowRetryJob  # type: ignore[valid-type]


class RetryJobsDrained(Struct):
    status: str
    processed: int
    succeeded: int
    retrying: int
    escalated: int
    discarded: int
    remaining_due: int
    queue: RetryQueueState


class Delivery(AuditDetails, frozen=True, kw_only=True):
    """An event from outside, and what became of it."""

    at: str
    event_id: str
    status: str
    action: str | None
    run_id: str | None


class ReceiptRetention(Struct):
    ttl_days: float
    max_receipts: int


class EventSummary(Struct):
    status: str
    ym: str
    event_type: str
    total: int
    by_status: dict[str, int]
    by_reason_class: dict[str, int]
    by_reason_code: dict[str, int]
    by_retry_advice: dict[str, int]
    duplicate: dict[str, int]
    recent: list[Delivery]
    retry_queue: QueueCounts
    receipt_retention: ReceiptRetention


class NotificationSettingsState(Struct):
    status: str
    configured: bool
    webhook_url_masked: str | None
    source: str
    updated_at: str | None


class NotificationTested(Struct):
    status: str
    sent: bool
    http_status: int | None
    message: str


_TYPES = (
    *(GraphRecord, GraphSummary, GraphPage),
    *(ExecutionState, ExecutionPage, WaitPage, EventPage),
    *(WorkflowTemplates, WorkflowActions, WorkflowSources, DeletedId, DeletedKey),
    *(EventStarted, EventResumed, EventPinged),
    *(JobStatus, RetryJobs, RetryJobChanged, RetryJobsDrained),
    *(EventSummary, NotificationSettingsState, NotificationTested),
    *(Run, RunSummary, Submitted, BatchResult, RunTasks, RunLogs),
    *(Worker, WorkerPatched, WheelFile, WheelDeleted, WheelEvent, Health),
)
_, COMPONENTS = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")


def of(shape: type[Struct]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


def any_of(*shapes: type[Struct]) -> dict[str, Any]:
    return {"anyOf": [of(shape) for shape in shapes]}


def list_of(shape: type[Struct]) -> dict[str, Any]:
    return {"type": "array", "items": of(shape)}


_RUNS = {"anyOf": [list_of(RunSummary), list_of(Run)]}
COMPONENTS["RunPage"] = {
    "type": "object",
    "required": ["items", "next_cursor"],
    "properties": {"items": _RUNS, "next_cursor": {"type": ["string", "null"]}},
}
RUN_LIST = {"anyOf": [*_RUNS["anyOf"], {"$ref": "#/components/schemas/RunPage"}]}
"""Summaries, or whole runs with `include=full`; in an object with `next_cursor` where there are pages."""
