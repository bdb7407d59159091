"""One event as it is handled: what is known of it, its outcome, the answer and the audit record."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import Struct

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.events.audit import (
    DUPLICATE,
    EMPTY_BATCH,
    FILTERED,
    MAX_USER_AGENT,
    PING,
    AuditActor,
    AuditRecord,
    EventStatus,
    Reason,
    new_record,
    reason_of,
    status_of,
)
from pyoco_server.domain.events.requests import EventRequest, ResumeTarget
from pyoco_server.domain.events.retry import RetryJob
from pyoco_server.domain.events.templates import Template
from pyoco_server.domain.traces import present
from pyoco_server.errors import EventFailed, NatsUnavailable, PyocoServerError
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.events.resume import ACTION as RESUME_ACTION, Resumed
from pyoco_server.usecases.events.start import Started

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


class Ignored(Struct, frozen=True):
    """The event is valid and starts nothing: a ping, or a filter does not let it pass."""

    reason: Reason
    text: str


class Refused(Struct, frozen=True):
    error: PyocoServerError
    job: RetryJob | None = None
    """The retry job, if the event was queued."""


class Batched(Struct, frozen=True):
    """Each event of a batch has an answer and a record of its own."""

    answers: "tuple[Answer, ...]"


Outcome = Started | Resumed | Ignored | Refused | Batched


class Answer(Struct, frozen=True, kw_only=True):
    """Response to the sender. One of `started`, `resumed`, `ignored`, `batch` and `error` is set."""

    event_id: str
    template: Template | None = None
    request: EventRequest | None = None
    started: Started | None = None
    resumed: Resumed | None = None
    ignored: Ignored | None = None
    batch: "tuple[Answer, ...] | None" = None
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

    @property
    def kind(self) -> str:
        """For metrics."""
        if self.error is not None:
            return str(status_of(self.error))
        if self.ignored is not None:
            return self.ignored.reason.reason_code
        if self.is_duplicate:
            return "duplicate"
        if self.resumed is not None:
            return "kept" if self.resumed.is_kept else "resumed"
        return "started"


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


def filtered(problems: tuple[str, ...]) -> Ignored:
    return Ignored(FILTERED, "; ".join(problems[:MAX_PROBLEMS]))


MAX_PROBLEMS = 3
PINGED = Ignored(PING, PONG)
NO_EVENTS = Ignored(EMPTY_BATCH, "a batch without events")


def answer_to(attempt: Attempt, outcome: Outcome) -> Answer:
    request = attempt.request
    return Answer(
        event_id=attempt.event_id,
        template=attempt.template,
        request=request,
        started=outcome if isinstance(outcome, Started) else None,
        resumed=outcome if isinstance(outcome, Resumed) else None,
        ignored=outcome if isinstance(outcome, Ignored) else None,
        batch=outcome.answers if isinstance(outcome, Batched) else None,
        is_resume_ignored=isinstance(outcome, Started) and request is not None and request.target is not None,
        error=outcome.error if isinstance(outcome, Refused) else None,
        reason=_reason(outcome),
        job=outcome.job if isinstance(outcome, Refused) else None,
    )


def _reason(outcome: Outcome) -> Reason | None:
    match outcome:
        case Refused(error):
            return reason_of(error)
        case Ignored(reason):
            return reason
        case Started() | Resumed():
            return DUPLICATE if outcome.is_duplicate else None
    return None


def record_of(attempt: Attempt, answer: Answer, now: float) -> AuditRecord:
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
        reason_text=_reason_text(answer),
        duplicate=answer.is_duplicate,
        replay_of=attempt.replay_of,
        **_resume_details(attempt, answer),
    )


def _reason_text(answer: Answer) -> str | None:
    if answer.ignored is not None:
        return answer.ignored.text
    return answer.error.detail if answer.error else None


def traced(attempt: Attempt, answer: Answer) -> dict[str, Any]:
    """Attributes of the event's span."""
    return present(
        template=attempt.template.id if attempt.template else None,
        status=_status(answer).value,
        run_id=answer.started.run_id if answer.started else None,
        execution_id=_execution_id(attempt, answer),
    )


def _status(answer: Answer) -> EventStatus:
    if answer.error is not None:
        return status_of(answer.error)
    return EventStatus.SKIPPED if answer.is_duplicate or answer.ignored is not None else EventStatus.SUCCESS


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
