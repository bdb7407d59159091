"""One request to start or resume something: what is known of it, its outcome, and its audit record."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import UNSET, Struct

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.events.audit import (
    DUPLICATE,
    MAX_USER_AGENT,
    AuditActor,
    AuditRecord,
    EventStatus,
    Reason,
    StoredEvent,
    new_record,
    reason_of,
    status_of,
)
from pyoco_server.domain.events.requests import EventRequest, ResumeTarget
from pyoco_server.domain.events.retry import RetryJob
from pyoco_server.domain.events.templates import Template
from pyoco_server.errors import EventFailed, NatsUnavailable, PyocoServerError
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.resume import ACTION as RESUME_ACTION
from pyoco_server.usecases.events.resume import Resumed
from pyoco_server.usecases.events.start import Started
from pyoco_server.usecases.ports.stores import Clock

log = get_logger(__name__)
T = TypeVar("T")

PONG = "webhook ping; starts nothing"


class Origin(Struct, frozen=True):
    """Where a request came from."""

    ip: str | None = None
    user_agent: str | None = None


@dataclass
class Attempt:
    """Filled in while the request is handled: whatever the outcome, the record has what was known."""

    event_id: str
    event_type: str
    caller: Caller
    origin: Origin
    request: EventRequest | None = None
    template: Template | None = None
    target: ResumeTarget | None = None
    """The node to resume."""
    replay_of: str | None = None

    @property
    def actor(self) -> AuditActor:
        return AuditActor(
            tenant_id=self.caller.tenant_id,
            api_key_id=self.caller.api_key_id,
            ip=self.origin.ip,
            user_agent=self.origin.user_agent and self.origin.user_agent[:MAX_USER_AGENT],
        )


class Pinged(Struct, frozen=True):
    """GitHub tested a new webhook."""


class Refused(Struct, frozen=True):
    error: PyocoServerError
    job: RetryJob | None = None
    """The retry job, if the event was queued."""


Outcome = Started | Resumed | Pinged | Refused


class Answer(Struct, frozen=True, kw_only=True):
    """Response to the sender. One of `started`, `resumed`, `is_ping` and `error` is set."""

    event_id: str
    template: Template | None = None
    request: EventRequest | None = None
    started: Started | None = None
    resumed: Resumed | None = None
    is_ping: bool = False
    is_resume_ignored: bool = False
    """The event also names a waiting node, but it started a template."""
    error: PyocoServerError | None = None
    reason: Reason | None = None
    job: RetryJob | None = None
    """The retry job, if the event was queued."""

    @property
    def is_duplicate(self) -> bool:
        done = self.started or self.resumed
        return done is not None and done.is_duplicate


async def audited(attempt: Attempt, work: Awaitable[Outcome], audit: Audit, clock: Clock) -> Answer:
    """Carry out `work`. However it ends, there is one answer and one audit record."""
    answer = _answer(attempt, await settled(attempt.event_id, work))
    stored = StoredEvent(record=_record(attempt, answer, clock()), request=attempt.request)
    if await audit.record(stored) and answer.error is not None:
        log.info(
            "event refused",
            action="event.refused",
            event_id=attempt.event_id,
            status=int(answer.error.status),
            reason_code=reason_of(answer.error).reason_code,
            is_queued=answer.job is not None,
            **answer.error.ids,
        )
    return answer


async def settled(event_id: str, work: Awaitable[T]) -> T | Refused:
    """The result of `work`, with an error as a value."""
    try:
        return await work
    except PyocoServerError as error:
        return Refused(error)
    except Unreadable as error:
        return Refused(NatsUnavailable(f"stored data is unreadable: {error}"))
    except Exception:
        log.exception("unexpected error while handling an event", action="event.failed", event_id=event_id)
        return Refused(EventFailed())


def target_of(request: EventRequest | None) -> ResumeTarget | None:
    """The waiting node named by the event, unless the event or its source names a template."""
    if request is None or request.template_id is not None or request.resume is UNSET:
        return None
    return request.resume


def _answer(attempt: Attempt, outcome: Outcome) -> Answer:
    error = outcome.error if isinstance(outcome, Refused) else None
    reason = None if error is None else reason_of(error)
    if isinstance(outcome, Started | Resumed) and outcome.is_duplicate:
        reason = DUPLICATE
    return Answer(
        event_id=attempt.event_id,
        template=attempt.template,
        request=attempt.request,
        started=outcome if isinstance(outcome, Started) else None,
        resumed=outcome if isinstance(outcome, Resumed) else None,
        is_ping=isinstance(outcome, Pinged),
        is_resume_ignored=isinstance(outcome, Started) and target_of(attempt.request) is not None,
        error=error,
        reason=reason,
        job=outcome.job if isinstance(outcome, Refused) else None,
    )


def _record(attempt: Attempt, answer: Answer, now: float) -> AuditRecord:
    return new_record(
        attempt.event_type,
        _status(answer),
        event_id=attempt.event_id,
        now=now,
        actor=attempt.actor,
        action=_action(attempt),
        run_id=answer.started.run_id if answer.started else None,
        execution_id=_execution_id(attempt, answer),
        request=attempt.request,
        template=attempt.template,
        reason=answer.reason,
        reason_text=PONG if answer.is_ping else answer.error.detail if answer.error else None,
        duplicate=answer.is_duplicate,
        replay_of=attempt.replay_of,
        **_resume_details(attempt, answer),
    )


def _status(answer: Answer) -> EventStatus:
    if answer.error is not None:
        return status_of(answer.error)
    return EventStatus.SKIPPED if answer.is_duplicate or answer.is_ping else EventStatus.SUCCESS


def _action(attempt: Attempt) -> str | None:
    if attempt.template is not None:
        return attempt.template.first.action
    return None if attempt.target is None else RESUME_ACTION


def _execution_id(attempt: Attempt, answer: Answer) -> str | None:
    if answer.started is not None:
        return answer.started.execution_id
    if answer.resumed is not None and answer.resumed.place is not None:
        return answer.resumed.place.execution_id
    return None if attempt.target is None else attempt.target.execution_id


def _resume_details(attempt: Attempt, answer: Answer) -> dict[str, Any]:
    target = attempt.target
    if target is None:
        return {}
    resumed = answer.resumed
    return {
        "node_id": resumed.place.node_id if resumed and resumed.place else target.node_id,
        "wait_key": target.wait_key,
        "kept": resumed is not None and resumed.is_kept,
    }
