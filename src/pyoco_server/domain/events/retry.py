"""Retry jobs: failed events, retried with exponential backoff, then escalated with a notification."""

import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from pyoco_server.domain.events.audit import Reason
from pyoco_server.domain.events.receipts import DAY_SEC
from pyoco_server.domain.events.requests import EventRequest
from pyoco_server.domain.events.templates import Template
from pyoco_server.domain.traces import Trace
from pyoco_server.errors import InvalidRequest

MAX_DELAY_SEC = DAY_SEC
JITTER = 0.1
MAX_ERROR = 500
ID_LENGTH = 32


class JobStatus(StrEnum):
    PENDING = "pending"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    DISCARDED = "discarded"
    ESCALATED = "escalated"

    @property
    def is_active(self) -> bool:
        return self in (JobStatus.PENDING, JobStatus.RETRYING)


class RetryPolicy(Struct, frozen=True, kw_only=True):
    max_attempts: int
    base_delay_seconds: float
    terminal_ttl_days: float
    max_jobs: int


class QueuedEvent(Struct, frozen=True, kw_only=True):
    """What a job keeps of its event, and how its attempts went."""

    template_id: str
    idempotency_key: str
    event_name: str | None = None
    source: str | None = None
    year: int | None = None
    month: int | None = None
    mfcloud_url: str | None = None
    notes: str | None = None
    data: Any = None
    status: JobStatus = JobStatus.PENDING
    attempts: int = 0
    last_error: str | None = None
    last_reason_class: str | None = None
    last_reason_code: str | None = None


class RetryJob(QueuedEvent, frozen=True, kw_only=True):
    id: str
    template_name: str
    action: str
    max_attempts: int
    next_retry_at: float
    created_at: float
    updated_at: float
    last_run_id: str | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    is_told: bool = False
    """The escalation notification was sent, given up or not wanted."""
    told_tries: int = 0
    """Attempts to send it."""
    is_data_null: bool | UnsetType = UNSET
    is_period_in_data: bool | UnsetType = UNSET
    trace: Trace | None = None
    """The span of the event."""

    @property
    def request(self) -> EventRequest:
        return EventRequest(
            template_id=self.template_id,
            event_name=self.event_name,
            source=self.source,
            key=self.idempotency_key,
            year=self.year,
            month=self.month,
            mfcloud_url=self.mfcloud_url,
            notes=self.notes,
            data=self.data,
            is_data_null=self.is_data_null,
            is_period_in_data=self.is_period_in_data,
        )


class Failure(Struct, frozen=True):
    text: str
    reason: Reason


def job_id(receipt_key: str) -> str:
    """One job per idempotency key: queueing is idempotent."""
    return receipt_key[:ID_LENGTH]


def new_job(  # noqa: PLR0913
    receipt_key: str,
    *,
    template: Template,
    request: EventRequest,
    failure: Failure,
    policy: RetryPolicy,
    now: float,
    jitter: float,
    api_key_id: str | None = None,
    trace: Trace | None = None,
) -> RetryJob:
    assert request.key is not None  # noqa: S101 - events without a key are not queued
    return RetryJob(
        id=job_id(receipt_key),
        template_id=template.id,
        template_name=template.name,
        action=template.first.action,
        idempotency_key=request.key,
        max_attempts=policy.max_attempts,
        next_retry_at=now + delay(1, policy.base_delay_seconds, jitter),
        created_at=now,
        updated_at=now,
        event_name=request.event_name,
        source=request.source,
        year=request.year,
        month=request.month,
        mfcloud_url=request.mfcloud_url,
        notes=request.notes,
        data=request.data,
        is_data_null=request.is_data_null,
        is_period_in_data=request.is_period_in_data,
        tenant_id=template.tenant_id,
        api_key_id=api_key_id,
        trace=trace,
        **_last(failure),
    )


def _last(failure: Failure) -> dict[str, Any]:
    return {
        "last_error": failure.text[:MAX_ERROR],
        "last_reason_class": failure.reason.reason_class,
        "last_reason_code": failure.reason.reason_code,
    }


def delay(attempt: int, base: float, jitter: float) -> float:
    """Delay before the attempt, counted from 1. `jitter`: 0 to 1, adds at most 10 %."""
    doubled = base * 2.0 ** min(attempt - 1, 64)
    return min(doubled * (1 + JITTER * jitter), MAX_DELAY_SEC)


def is_due(job: RetryJob, now: float) -> bool:
    return job.status.is_active and job.next_retry_at <= now


def due_first(jobs: Iterable[RetryJob], now: float, *, force: bool) -> list[RetryJob]:
    """The jobs of a drain, in order."""
    wanted = [job for job in jobs if job.status.is_active and (force or is_due(job, now))]
    return sorted(wanted, key=lambda job: (job.next_retry_at, job.created_at, job.id))


def in_turn(jobs: Iterable[RetryJob]) -> list[RetryJob]:
    """Round robin over tenants: the jobs of one tenant do not delay another's."""
    turns: Counter[str | None] = Counter()
    ranked = []
    for position, job in enumerate(jobs):
        ranked.append((turns[job.tenant_id], position, job))
        turns[job.tenant_id] += 1
    return [job for _, _, job in sorted(ranked, key=lambda one: one[:2])]


def succeeded(job: RetryJob, run_id: str, now: float) -> RetryJob:
    return replace(job, status=JobStatus.SUCCEEDED, last_run_id=run_id, updated_at=now)


def discarded(job: RetryJob, failure: Failure, now: float) -> RetryJob:
    return replace(job, status=JobStatus.DISCARDED, updated_at=now, **_last(failure))


def failed_again(job: RetryJob, failure: Failure, base: float, now: float, jitter: float) -> RetryJob:
    """After a failed attempt: the next one, or the escalation."""
    attempts = job.attempts + 1
    changed = replace(job, attempts=attempts, updated_at=now, **_last(failure))
    if attempts >= job.max_attempts:
        return replace(changed, status=JobStatus.ESCALATED)
    return replace(changed, status=JobStatus.RETRYING, next_retry_at=now + delay(attempts + 1, base, jitter))


def restarted(job: RetryJob, now: float) -> RetryJob:
    """By hand: due now, with all attempts."""
    return replace(
        job,
        status=JobStatus.PENDING,
        attempts=0,
        next_retry_at=now,
        updated_at=now,
        is_told=False,
        told_tries=0,
    )


def is_expired(job: RetryJob, now: float, ttl_days: float) -> bool:
    return not job.status.is_active and now - job.updated_at > ttl_days * DAY_SEC


def to_evict(jobs: Iterable[RetryJob], max_jobs: int) -> list[RetryJob] | None:
    """Ended jobs to remove so that one more fits; None: too many are active."""
    known = list(jobs)
    surplus = len(known) + 1 - max_jobs
    if surplus <= 0:
        return []
    ended = sorted((job for job in known if not job.status.is_active), key=lambda job: job.updated_at)
    return ended[:surplus] if len(ended) >= surplus else None


class QueueCounts(Struct, frozen=True):
    total: int
    due: int
    by_status: dict[str, int]


def counts(jobs: Iterable[RetryJob], now: float) -> QueueCounts:
    known = list(jobs)
    by_status = dict.fromkeys(map(str, JobStatus), 0)
    for job in known:
        by_status[job.status] += 1
    return QueueCounts(len(known), sum(is_due(job, now) for job in known), by_status)


# Notifications of escalations, by Google Chat: allowed webhook URLs, their masked form, and the texts

CHAT_HOST = "https://chat.googleapis.com"
WEBHOOK_FORM = f"{CHAT_HOST}/v1/spaces/.../messages?key=...&token=..."
MAX_URL = 2000
_URL = re.compile(
    r"https://chat\.googleapis\.com(/v1/spaces/([A-Za-z0-9_-]{1,100})/messages\?([A-Za-z0-9_%&=.~+-]{1,1500}))"
)
"""The whole URL, so that a client has no host, port, user info or escape to interpret."""
_SHOWN_CHARACTERS = 4


class NotificationSettings(Struct, frozen=True, kw_only=True):
    webhook_url: str
    updated_at: str

    def __repr__(self) -> str:
        return "NotificationSettings(***)"


class Delivered(Struct, frozen=True):
    """Result of sending a message."""

    is_sent: bool
    http_status: int | None
    message: str


def check_webhook_url(text: str) -> str:
    """Raises InvalidRequest, without the URL: it is a secret."""
    if not is_webhook_url(text):
        raise InvalidRequest(f"webhook_url: must have the form {WEBHOOK_FORM}")
    return text


def is_webhook_url(text: str) -> bool:
    match = _URL.fullmatch(text) if len(text) <= MAX_URL else None
    if match is None:
        return False
    names = [name for name, value in parse_qsl(match[3], keep_blank_values=True) if value]
    return names.count("key") == 1 and names.count("token") == 1


def path_and_query(url: str) -> str:
    match = _URL.fullmatch(url)
    if match is None:
        raise InvalidRequest(f"webhook_url: must have the form {WEBHOOK_FORM}")
    return match[1]


def masked(url: str | None) -> str:
    match = _URL.fullmatch(url or "")
    if match is None or not is_webhook_url(match[0]):
        return ""
    return f"{CHAT_HOST}/v1/spaces/{match[2][:_SHOWN_CHARACTERS]}***/messages?key=***&token=***"


TEST_TEXT = "pyoco-server: test of the notification settings."


def escalation_text(job: RetryJob) -> str:
    lines = [
        "pyoco-server: a workflow event needs manual action",
        f"template: {_line(job.template_name)} ({job.template_id})",
        f"action: {job.action}",
        f"event: {_line(job.event_name or '-')}   source: {_line(job.source or '-')}",
        f"idempotency_key: {job.idempotency_key}",
        f"attempts: {job.attempts} of {job.max_attempts}",
        f"reason: {job.last_reason_class}/{job.last_reason_code}: {_line(job.last_error or '-')}",
        f"job: {job.id}",
    ]
    return "\n".join(lines)


def _line(text: str) -> str:
    """Names come from outside: no links, mentions or extra lines."""
    return "".join(c if c.isprintable() and c not in "<>*_`~" else " " for c in text)[:200]
