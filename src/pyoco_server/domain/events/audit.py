"""Audit records of events: reasons, the record itself, the limit for refusals, and monthly summaries."""

from bisect import insort
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct, field

from pyoco_server.domain.events.requests import EventRequest, event_period
from pyoco_server.domain.events.templates import Template
from pyoco_server.errors import (
    ApiKeyRequired,
    EventFailed,
    InvalidApiKey,
    InvalidEventToken,
    InvalidYearMonth,
    LimitReached,
    NatsUnavailable,
    OutcomeUnknown,
    PyocoServerError,
    RetryQueueFull,
    RunConflict,
    StillStarting,
    UnsupportedAction,
    WorkflowConflict,
    WorkflowNotFound,
)

MAX_RECENT = 200
MAX_USER_AGENT = 300
MAX_REASON = 500
MAX_TEMPLATE_ID = 64


# Reasons


class ReasonClass(StrEnum):
    AUTH = "auth"
    VALIDATION = "validation"
    TEMPLATE_NOT_FOUND = "template_not_found"
    TEMPLATE_CONFLICT = "template_conflict"
    RUN_CONFLICT = "run_conflict"
    UNSUPPORTED_ACTION = "unsupported_action"
    INFRA = "infra"
    DUPLICATE = "duplicate"
    FILTERED = "filtered"
    PING = "ping"


class RetryAdvice(StrEnum):
    DO_NOT_RETRY = "do_not_retry"
    RETRY_AFTER_FIX = "retry_after_fix"
    RETRY_WITH_BACKOFF = "retry_with_backoff"


class Reason(Struct, frozen=True):
    """Why an event started nothing, in a form that code can evaluate."""

    reason_class: ReasonClass
    reason_code: str
    retry_advice: RetryAdvice


DISCARDED_BY_HAND = Reason(ReasonClass.VALIDATION, "discarded_by_hand", RetryAdvice.DO_NOT_RETRY)
RESUME_EXPIRED = Reason(ReasonClass.VALIDATION, "resume_expired", RetryAdvice.RETRY_AFTER_FIX)
DUPLICATE = Reason(ReasonClass.DUPLICATE, "duplicate_idempotency_key", RetryAdvice.DO_NOT_RETRY)
FILTERED = Reason(ReasonClass.FILTERED, "filtered", RetryAdvice.DO_NOT_RETRY)
PING = Reason(ReasonClass.PING, "ping", RetryAdvice.DO_NOT_RETRY)
EMPTY_BATCH = Reason(ReasonClass.FILTERED, "empty_batch", RetryAdvice.DO_NOT_RETRY)

_CLASSES: list[tuple[type[PyocoServerError], ReasonClass, RetryAdvice]] = [
    (InvalidEventToken, ReasonClass.AUTH, RetryAdvice.RETRY_AFTER_FIX),
    (ApiKeyRequired, ReasonClass.AUTH, RetryAdvice.RETRY_AFTER_FIX),
    (InvalidApiKey, ReasonClass.AUTH, RetryAdvice.RETRY_AFTER_FIX),
    (WorkflowNotFound, ReasonClass.TEMPLATE_NOT_FOUND, RetryAdvice.RETRY_AFTER_FIX),
    (UnsupportedAction, ReasonClass.UNSUPPORTED_ACTION, RetryAdvice.RETRY_AFTER_FIX),
    (RunConflict, ReasonClass.RUN_CONFLICT, RetryAdvice.RETRY_WITH_BACKOFF),
    (LimitReached, ReasonClass.RUN_CONFLICT, RetryAdvice.RETRY_WITH_BACKOFF),
    (StillStarting, ReasonClass.DUPLICATE, RetryAdvice.RETRY_WITH_BACKOFF),
    (OutcomeUnknown, ReasonClass.DUPLICATE, RetryAdvice.DO_NOT_RETRY),
    (WorkflowConflict, ReasonClass.TEMPLATE_CONFLICT, RetryAdvice.RETRY_AFTER_FIX),
]
"""The first match counts."""


def reason_of(error: PyocoServerError) -> Reason:
    for kind, reason_class, advice in _CLASSES:
        if isinstance(error, kind):
            return Reason(reason_class, _code(error), advice)
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Reason(ReasonClass.INFRA, _code(error), RetryAdvice.RETRY_WITH_BACKOFF)
    return Reason(ReasonClass.VALIDATION, _code(error), RetryAdvice.RETRY_AFTER_FIX)


def _code(error: PyocoServerError) -> str:
    if isinstance(error, InvalidYearMonth):
        return "invalid_year_month"
    if isinstance(error, UnsupportedAction):
        return "unsupported_action"
    if isinstance(error, OutcomeUnknown):
        return "outcome_unknown"
    if isinstance(error, EventFailed):
        return "exception"
    return f"http_{int(error.status)}"


def may_be_queued(error: PyocoServerError) -> bool:
    """Not if NATS failed, because the queue is stored there; nor while the event is being started."""
    if isinstance(error, (NatsUnavailable, StillStarting, RetryQueueFull)):
        return False
    return reason_of(error).retry_advice is RetryAdvice.RETRY_WITH_BACKOFF


# Records


WORKFLOW_EVENT = "workflow_event"
NOTIFICATION = "workflow_event_notification"
RETRY = "workflow_event_retry"
RESUME = "workflow_event_resume"
"""Outcome of a kept event."""
START = "workflow_template_start"


class EventStatus(StrEnum):
    SUCCESS = "success"
    SKIPPED = "skipped"
    REJECTED = "rejected"
    FAILED = "failed"


def status_of(error: PyocoServerError) -> EventStatus:
    is_ours = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return EventStatus.FAILED if is_ours else EventStatus.REJECTED


class AuditActor(Struct, frozen=True, kw_only=True):
    tenant_id: str | None = None
    api_key_id: str | None = None
    ip: str | None = None
    user_agent: str | None = None


class AuditDetails(Struct, frozen=True, kw_only=True):
    template_id: str | None = None
    template_name: str | None = None
    event_name: str | None = None
    source: str | None = None
    idempotency_key: str | None = None
    reason: str | None = None
    reason_class: str | None = None
    reason_code: str | None = None
    retry_advice: str | None = None
    duplicate: bool | None = None
    replay_of: str | None = None
    node_id: str | None = None
    wait_key: str | None = None
    kept: bool | None = None
    kept_event_id: str | None = None
    count: int | None = None
    """Number of requests in this record, if it is a summary."""


class AuditRecord(Struct, frozen=True, kw_only=True):
    at: str
    event_id: str
    ym: str
    event_type: str
    action: str | None
    status: str
    run_id: str | None = None
    execution_id: str | None = None
    actor: AuditActor = field(default_factory=AuditActor)
    details: AuditDetails = field(default_factory=AuditDetails)


class StoredEvent(Struct, frozen=True, kw_only=True):
    """A record as stored, with the request for a replay."""

    record: AuditRecord
    request: EventRequest | None = None


def new_record(  # noqa: PLR0913 - the one builder: every field of a record is named here
    event_type: str,
    status: str,
    *,
    event_id: str,
    now: float,
    actor: AuditActor,
    action: str | None = None,
    run_id: str | None = None,
    execution_id: str | None = None,
    request: EventRequest | None = None,
    template: Template | None = None,
    reason: Reason | None = None,
    reason_text: str | None = None,
    **details: Any,
) -> AuditRecord:
    """`details`: further fields of AuditDetails; they win over those of the request."""
    about = event_period(request, template) if request else None
    return AuditRecord(
        at=iso(now),
        event_id=event_id,
        ym=about.ym if about else _month(now),
        event_type=event_type,
        action=action,
        status=status,
        run_id=run_id,
        execution_id=execution_id,
        actor=actor,
        details=AuditDetails(
            **{
                **_request_details(request or EventRequest(), template),
                **_reason_details(reason, reason_text),
                **details,
            }
        ),
    )


def _request_details(request: EventRequest, template: Template | None) -> dict[str, Any]:
    named = (request.template_id or "")[:MAX_TEMPLATE_ID] or None
    return {
        "template_id": template.id if template else named,
        "template_name": template.name if template else None,
        "event_name": request.event_name,
        "source": request.source,
        "idempotency_key": request.key,
    }


def _reason_details(reason: Reason | None, text: str | None) -> dict[str, Any]:
    shown = {"reason": None if text is None else text[:MAX_REASON]}
    return shown if reason is None else {**shown, **msgspec.structs.asdict(reason)}


def iso(unix_seconds: float) -> str:
    text = datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _month(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m")


# Refusals without credentials
#
# Anybody can send them. Without a limit they would evict other records from the audit stream. So the first
# ones of a minute are recorded one by one, and the rest are counted in one record.

WINDOW_SEC = 60.0
MAX_RECORDED = 60
"""Per window and gateway."""
MAX_OF_ADDRESS = 20
"""So that one address cannot use up the records of all."""


class CountedRefusals(Struct, frozen=True):
    count: int
    since: float
    tenant_id: str | None


class RefusalWindow:
    def __init__(self) -> None:
        self._began = float("-inf")
        self._recorded: Counter[str | None] = Counter()
        self._counted = 0
        self._tenant_id: str | None = None

    def admits(self, address: str | None, tenant_id: str | None, now: float) -> bool:
        """Whether to record this one; otherwise it is counted. Call `rest` first: it closes a window."""
        if not 0 <= now - self._began < WINDOW_SEC and not self._counted:
            self._began = now
            self._recorded.clear()
        is_admitted = self._recorded.total() < MAX_RECORDED and self._recorded[address] < MAX_OF_ADDRESS
        if is_admitted:
            self._recorded[address] += 1
        else:
            self._counted += 1
            self._tenant_id = tenant_id
        return is_admitted

    def rest(self, now: float, *, is_stopping: bool = False) -> CountedRefusals | None:
        """The count of a closed window."""
        if not self._counted or (0 <= now - self._began < WINDOW_SEC and not is_stopping):
            return None
        found = CountedRefusals(self._counted, self._began, self._tenant_id)
        self._counted = 0
        return found


def is_unauthenticated(record: AuditRecord) -> bool:
    return record.event_type == WORKFLOW_EVENT and record.details.reason_class == ReasonClass.AUTH


def record_of_rest(rest: CountedRefusals, event_id: str, now: float) -> AuditRecord:
    text = f"{rest.count} more events were refused without valid credentials since {iso(rest.since)}"
    return new_record(
        WORKFLOW_EVENT,
        EventStatus.REJECTED,
        event_id=event_id,
        now=now,
        actor=AuditActor(tenant_id=rest.tenant_id),
        reason=reason_of(InvalidEventToken()),
        reason_text=text,
        duplicate=False,
        count=rest.count,
    )


# Summaries


class Summary:
    """Counts and latest events of a month. Its size does not depend on their number."""

    def __init__(self) -> None:
        self.total = 0
        self._by_status: Counter[str] = Counter()
        self._by_reason_class: Counter[str] = Counter()
        self._by_reason_code: Counter[str] = Counter()
        self._by_retry_advice: Counter[str] = Counter()
        self._duplicate: Counter[str] = Counter()
        self._recent: list[tuple[str, int, dict[str, Any]]] = []

    def add(self, record: AuditRecord) -> None:
        details = record.details
        number = details.count or 1
        self.total += number
        self._by_status[record.status if record.status in _STATUSES else "unknown"] += number
        _count(self._by_reason_class, details.reason_class, number)
        _count(self._by_reason_code, details.reason_code, number)
        _count(self._by_retry_advice, details.retry_advice, number)
        self._duplicate["unknown" if details.duplicate is None else str(details.duplicate).lower()] += number
        insort(self._recent, (record.at, self.total, _shown(record)))
        del self._recent[:-MAX_RECENT]

    def shown(self, ym: str, recent_limit: int) -> dict[str, Any]:
        return {
            "status": "ok",
            "ym": ym,
            "event_type": WORKFLOW_EVENT,
            "total": self.total,
            "by_status": {name: self._by_status[name] for name in (*_STATUSES, "unknown")},
            "by_reason_class": dict(self._by_reason_class.most_common()),
            "by_reason_code": dict(self._by_reason_code.most_common()),
            "by_retry_advice": dict(self._by_retry_advice.most_common()),
            "duplicate": {name: self._duplicate[name] for name in ("true", "false", "unknown")},
            "recent": [shown for _, _, shown in reversed(self._recent[-recent_limit:])],
        }


_STATUSES = tuple(map(str, EventStatus))
_NOT_IN_SUMMARIES = frozenset({"replay_of", "node_id", "wait_key", "kept", "kept_event_id"})
_RECENT_DETAILS = tuple(name for name in AuditDetails.__struct_fields__ if name not in _NOT_IN_SUMMARIES)


def _count(counter: Counter[str], name: str | None, number: int) -> None:
    if name is not None:
        counter[name] += number


def _shown(record: AuditRecord) -> dict[str, Any]:
    details: Mapping[str, Any] = msgspec.structs.asdict(record.details)
    return {
        "at": record.at,
        "event_id": record.event_id,
        "status": record.status,
        "action": record.action,
        "run_id": record.run_id,
        **{name: details[name] for name in _RECENT_DETAILS},
    }
