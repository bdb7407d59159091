"""Read the files of an earlier workflow server, and those of `events export`, into records."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from pyoco_server.domain.events import retry
from pyoco_server.domain.events.receipts import (
    RESUMES,
    UNKNOWN_CONTENT,
    Receipt,
    ReceiptState,
    is_expired,
    receipt_key,
)
from pyoco_server.domain.events.requests import choose_key
from pyoco_server.domain.events.retry import (
    JobStatus,
    NotificationSettings,
    QueuedEvent,
    RetryJob,
    RetryPolicy,
    is_webhook_url,
    job_id,
)
from pyoco_server.domain.events.templates import is_id
from pyoco_server.errors import InvalidRequest

T = TypeVar("T")
Time = str | float | None

RECEIPTS = "receipts.json"
RETRY_JOBS = "retry_jobs.json"
NOTIFICATION_SETTINGS = "notification_settings.json"


class ImportMark(Struct, frozen=True, kw_only=True):
    """Marks a file as imported, or as being imported."""

    is_done: bool
    count: int
    at: str


class Found(Struct, Generic[T]):
    """Content of a file. `problems`: unusable entries, by name."""

    values: list[T] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    expired: int = 0


class _OldReceipt(Struct, kw_only=True):
    template_id: str
    idempotency_key: str
    run_id: str
    created_at: str | float


class _OldJob(QueuedEvent, frozen=True, kw_only=True):
    template_name: str | None = None
    action: str | None = None
    action_key: str | None = None
    max_attempts: int | None = None
    next_retry_at: Time = None
    last_run_id: str | None = None
    created_at: Time = None
    updated_at: Time = None


class _OldSettings(Struct):
    webhook_url: str | None = None
    updated_at: str | None = None


def read_receipts(
    data: bytes, tenant_id: str | None, now: float, ttl_days: float, max_receipts: int
) -> Found[Receipt]:
    """The newest unexpired receipts, oldest first. Raises InvalidRequest."""
    found: Found[Receipt] = Found()
    for receipt in _each(_entries(data, "receipts"), found.problems, lambda one: _receipt(one, tenant_id)):
        if is_expired(receipt, now, ttl_days):
            found.expired += 1
        else:
            found.values.append(receipt)
    found.values = sorted(found.values, key=lambda one: one.claimed_at)[-max_receipts:]
    return found


def read_retry_jobs(data: bytes, tenant_id: str | None, now: float, policy: RetryPolicy) -> Found[RetryJob]:
    """Raises InvalidRequest."""
    found: Found[RetryJob] = Found()
    for job in _each(
        _entries(data, "jobs"), found.problems, lambda one: _retry_job(one, tenant_id, now, policy)
    ):
        if retry.is_expired(job, now, policy.terminal_ttl_days):
            found.expired += 1
        else:
            found.values.append(job)
    return found


def read_settings(data: bytes, now_text: str) -> Found[NotificationSettings]:
    """Raises InvalidRequest, without the URL."""
    found: Found[NotificationSettings] = Found()
    content = _parsed(data)
    if isinstance(content, list):
        if content:
            found.problems.append("webhook_url: masked in an export; set it again")
        return found
    try:
        settings = msgspec.convert(content, _OldSettings)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from error
    if settings.webhook_url and is_webhook_url(settings.webhook_url):
        updated_at = settings.updated_at or now_text
        found.values.append(NotificationSettings(webhook_url=settings.webhook_url, updated_at=updated_at))
    elif settings.webhook_url:
        found.problems.append("webhook_url: not a Google Chat webhook URL")
    return found


def _entries(data: bytes, name: str) -> list[tuple[str, Any]]:
    """`{"<name>": {"<template_id>:<key>": {…}}}`, or the list written by `events export`."""
    content = _parsed(data)
    if isinstance(content, list):
        return [(f"number {number}", entry) for number, entry in enumerate(content, 1)]
    entries = content.get(name) if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise InvalidRequest(f'must be {{"{name}": {{…}}}}, or a list as written by `events export`')
    return list(entries.items())


def _parsed(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}") from error


def _each(entries: Iterable[tuple[str, Any]], problems: list[str], read: Callable[[Any], T]) -> list[T]:
    values = []
    for name, entry in entries:
        try:
            values.append(read(entry))
        except (ValueError, OverflowError, InvalidRequest) as error:  # msgspec's errors are ValueErrors
            problems.append(f"{name}: {error}")
    return values


def _receipt(entry: Any, tenant_id: str | None) -> Receipt:
    if isinstance(entry, dict) and "claimed_at" in entry:
        ours = msgspec.convert(entry, Receipt)
        _check_names(ours.template_id, ours.idempotency_key)
        return ours
    old = msgspec.convert(entry, _OldReceipt)
    _check_names(old.template_id, old.idempotency_key)
    at = _unix(old.created_at)
    return Receipt(
        template_id=old.template_id,
        idempotency_key=old.idempotency_key,
        run_id=old.run_id,
        content=UNKNOWN_CONTENT,
        claimed_at=at,
        starting_since=at,
        state=ReceiptState.ACCEPTED,
        tenant_id=tenant_id,
    )


def _retry_job(entry: Any, tenant_id: str | None, now: float, policy: RetryPolicy) -> RetryJob:
    if isinstance(entry, dict) and isinstance(entry.get("id"), str) and "is_told" in entry:
        ours = msgspec.convert(entry, RetryJob)
        _check_names(ours.template_id, ours.idempotency_key)
        return ours
    old = msgspec.convert(entry, _OldJob)
    _check_names(old.template_id, old.idempotency_key)
    action = old.action or old.action_key
    if action is None:
        raise InvalidRequest("action: missing")
    created_at = now if old.created_at is None else _unix(old.created_at)
    return RetryJob(
        **{name: getattr(old, name) for name in QueuedEvent.__struct_fields__},
        id=job_id(receipt_key(tenant_id, old.template_id, old.idempotency_key)),
        template_name=old.template_name or old.template_id,
        action=action,
        max_attempts=old.max_attempts or policy.max_attempts,
        next_retry_at=created_at if old.next_retry_at is None else _unix(old.next_retry_at),
        created_at=created_at,
        updated_at=created_at if old.updated_at is None else _unix(old.updated_at),
        last_run_id=old.last_run_id,
        tenant_id=tenant_id,
        is_told=old.status is JobStatus.ESCALATED,  # by the server that escalated it
    )


def _check_names(template_id: str, key: str) -> None:
    if template_id != RESUMES and not is_id(template_id):
        raise InvalidRequest(f"template_id: invalid: {template_id!r}")
    if choose_key([key]).key is None:
        raise InvalidRequest(f"idempotency_key: invalid: {key!r}")


def _unix(at: str | float) -> float:
    """A time without a zone is local time."""
    return at if isinstance(at, (int, float)) else datetime.fromisoformat(at).timestamp()
