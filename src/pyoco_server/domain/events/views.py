"""What is shown of events: templates, actions, sources, deliveries, the retry queue, notifications."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from pyoco_server.domain.derived import without
from pyoco_server.domain.events.audit import AuditDetails
from pyoco_server.domain.events.retry import QueueCounts, RetryJob, RetryPolicy
from pyoco_server.domain.events.sources import KeyOf, SourceKind
from pyoco_server.domain.events.templates import Action, Template

WorkflowTemplate = without(("tenant_id",), Template, "WorkflowTemplate")
WorkflowAction = without(("tenant_id",), Action, "WorkflowAction")


class WorkflowSource(Struct):
    """`secrets` is the number of secrets; `events_path` is where its events are sent to."""

    id: str
    kind: SourceKind
    secrets: int
    updated_at: str
    template_id: str | None
    signature_header: str
    timestamp_header: str | None
    key_of: KeyOf
    events_path: str


class WorkflowTemplates(Struct):
    status: str
    items: list[WorkflowTemplate]  # type: ignore[valid-type]


class WorkflowActions(Struct):
    status: str
    items: list[WorkflowAction]  # type: ignore[valid-type]


class WorkflowSources(Struct):
    status: str
    items: list[WorkflowSource]


class _EventAccepted(Struct, kw_only=True):
    status: str
    duplicate: bool
    triggered: bool
    event_id: str
    idempotency_key: str | UnsetType = UNSET
    payload_mismatch: bool | UnsetType = UNSET
    idempotency_key_ignored: bool | UnsetType = UNSET


class EventStarted(_EventAccepted, kw_only=True):
    """An event that started a run or an execution, or repeats one that did."""

    template_id: str
    template_name: str
    action_key: str
    run_id: str
    execution_id: str | UnsetType = UNSET
    resume_ignored: bool | UnsetType = UNSET


class EventIgnored(_EventAccepted, kw_only=True):
    """A valid event that starts nothing, with the reason: `filtered` or `ping`."""

    reason_code: str
    message: str
    template_id: str | UnsetType = UNSET
    template_name: str | UnsetType = UNSET
    ping: bool | UnsetType = UNSET


class EventBatch(Struct):
    """One result per event, in order: what the event alone would be answered with, and its HTTP `status`."""

    results: list[dict[str, Any]]


class EventResumed(_EventAccepted, kw_only=True):
    """An event for a waiting node. `kept`: the node does not wait yet."""

    kept: bool
    execution_id: str | None
    node_id: str | None
    wait_key: str | UnsetType = UNSET


WorkflowRetryJob = without(
    ("tenant_id", "api_key_id", "is_told", "told_tries", "is_data_null", "is_period_in_data", "trace"),
    RetryJob,
    "WorkflowRetryJob",
    next_retry_at=str,
    created_at=str,
    updated_at=str,
)


class RetryQueueState(Struct):
    total: int
    due: int
    by_status: dict[str, int]
    jobs: list[WorkflowRetryJob]  # type: ignore[valid-type]
    data_omitted: int
    """How many of `jobs` are shown without their data, because it is too much."""
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
    """A received event and its outcome."""

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


EVENT_ANSWERS: tuple[Any, ...] = (
    WorkflowTemplate,
    WorkflowAction,
    WorkflowSource,
    WorkflowTemplates,
    WorkflowActions,
    WorkflowSources,
    EventStarted,
    EventIgnored,
    EventBatch,
    EventResumed,
    WorkflowRetryJob,
    RetryQueueState,
    RetryJobs,
    RetryJobChanged,
    RetryJobsDrained,
    Delivery,
    ReceiptRetention,
    EventSummary,
    NotificationSettingsState,
    NotificationTested,
)
