"""Receive an event: admit its sender, read it, then start a template or resume a waiting node.

One request is one `Attempt`, and `audited` wraps its work:

    attempt = receive.begin(origin)
    answer = await receive.audited(attempt, work)

where `work` admits the sender (`admit`), reads the body, and passes the whole `Arrival` on.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server import tracing
from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.events import audit as records
from pyoco_server.domain.events.audit import (
    DUPLICATE,
    MAX_USER_AGENT,
    AuditActor,
    AuditRecord,
    EventStatus,
    Reason,
    StoredEvent,
    may_be_queued,
    new_record,
    reason_of,
    status_of,
)
from pyoco_server.domain.events.requests import EventRequest, ResumeTarget, read_request, with_source
from pyoco_server.domain.events.retry import Failure, RetryJob
from pyoco_server.domain.events.sources import SIGNATURE_TEXT, Source, is_ping, read_signed, verify
from pyoco_server.domain.events.templates import Template
from pyoco_server.domain.traces import present
from pyoco_server.errors import (
    EventFailed,
    InvalidEventToken,
    MissingScope,
    NatsUnavailable,
    PyocoServerError,
    WorkflowConflict,
    WorkflowNotFound,
)
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import off_loop
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.definitions import ManageSources, ManageTemplates
from pyoco_server.usecases.events.resume import ACTION as RESUME_ACTION, Resumed, ResumeWaits
from pyoco_server.usecases.events.retry import RetryQueue
from pyoco_server.usecases.events.start import Started, StartOrder, StartTemplate
from pyoco_server.usecases.ports.gateway import AuditStream
from pyoco_server.usecases.ports.stores import Clock

log = get_logger(__name__)
T = TypeVar("T")

IN_FLIGHT = 50
"""Concurrency limit: a burst queues here instead of overloading the store."""
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


class Credentials(Struct, frozen=True, kw_only=True):
    """What a request presents before its body is read."""

    token: str = ""
    """The first non-empty of query, header and bearer."""
    signature_source: str = ""
    """The source that signed the event. It must be registered."""
    source: str = ""
    """From the query: the source that signed the event if one with this id is registered, else a label."""
    tenant: str = ""
    """Tenant of the source; empty: the tenant for events."""
    caller: Caller | PyocoServerError
    """The holder of the API key, or why the key was refused."""


class Arrival(Struct, frozen=True, kw_only=True):
    """A whole request of an admitted sender."""

    sender: Caller | Source
    """A source is admitted by name; its signature is over the body and not verified yet."""
    headers: Mapping[str, str]
    body: bytes
    source: str = ""
    """From the query."""


class Parts(Protocol):
    """Available once NATS is connected."""

    @property
    def templates(self) -> ManageTemplates: ...
    @property
    def sources(self) -> ManageSources: ...
    @property
    def start_template(self) -> StartTemplate: ...
    @property
    def resume_waits(self) -> ResumeWaits: ...
    @property
    def retry_queue(self) -> RetryQueue: ...
    @property
    def audit_stream(self) -> AuditStream: ...


class ReceiveEvent:
    def __init__(
        self,
        *,
        parts: Callable[[], Parts],
        audit: Audit,
        clock: Clock,
        new_id: Callable[[], str],
        token: str,
        token_tenant: str | None,
    ) -> None:
        """`parts` may raise NatsUnavailable."""
        self._parts = parts
        self._audit = audit
        self._clock = clock
        self._new_id = new_id
        self._token = token
        self._token_caller = Caller(tenant_id=token_tenant)
        self._turns = asyncio.Semaphore(IN_FLIGHT)

    def begin(self, origin: Origin) -> Attempt:
        return self._attempt(records.WORKFLOW_EVENT, self._token_caller, origin)

    async def audited(self, attempt: Attempt, work: Awaitable[Outcome]) -> Answer:
        """Carry out `work`. However it ends, there is one answer and one audit record."""
        with tracing.span("pyoco.event", {"pyoco.event_id": attempt.event_id}) as span:
            answer = await self._audited(attempt, work)
            span.attributes.update(_traced(attempt, answer))
            return answer

    async def _audited(self, attempt: Attempt, work: Awaitable[Outcome]) -> Answer:
        answer = _answer(attempt, await settled(attempt.event_id, work))
        stored = StoredEvent(record=_record(attempt, answer, self._clock()), request=attempt.request)
        if await self._audit.record(stored) and answer.error is not None:
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

    async def admit(self, attempt: Attempt, credentials: Credentials) -> Caller | Source:
        """A signing source, or a caller with a token or an API key. Raises a PyocoServerError."""
        source = await self._source_of(credentials)
        if source is not None:
            return source
        attempt.caller = self._caller_of(credentials)
        return attempt.caller

    async def __call__(self, attempt: Attempt, arrival: Arrival) -> Outcome:
        """Raises a PyocoServerError."""
        if isinstance(arrival.sender, Source):
            return await self._receive_signed(attempt, arrival, arrival.sender)
        request = await off_loop(len(arrival.body), read_request, arrival.body, arrival.headers)
        attempt.request = with_source(request, arrival.source)
        return await self._start_or_resume(attempt, attempt.request)

    async def start_by_hand(
        self, template_id: str, request: EventRequest, caller: Caller, origin: Origin
    ) -> Answer:
        attempt = self._attempt(records.START, caller, origin)
        attempt.request = request

        async def start() -> Started:
            async with self._turns:
                attempt.template = await self._parts().templates.find(caller.tenant_id, template_id)
                return await self._start(_order(attempt, attempt.template, request))

        return await self.audited(attempt, start())

    async def replay(self, event_id: str, caller: Caller, origin: Origin) -> Answer:
        """An event that succeeded is started again; for any other, its key is retried."""
        stored = await self._parts().audit_stream.find(event_id)
        if stored is None or stored.record.actor.tenant_id != caller.tenant_id:
            raise WorkflowNotFound("Workflow event not found.")
        if stored.request is None:
            raise WorkflowConflict("the event was unreadable when it arrived; nothing to replay")
        attempt = self._attempt(records.WORKFLOW_EVENT, caller, origin)
        attempt.replay_of = event_id
        attempt.request = _for_replay(stored, stored.request)
        answer = await self.audited(attempt, self._start_or_resume(attempt, attempt.request))
        if answer.error is None and not answer.is_duplicate:
            target, after = ChangeTarget("event", event_id), {"event_id": answer.event_id}
            await self._parts().retry_queue.trail.record(caller, "event.replay", target, None, after)
        return answer

    def _attempt(self, event_type: str, caller: Caller, origin: Origin) -> Attempt:
        return Attempt(self._new_id(), event_type, caller, origin)

    # Admission

    async def _source_of(self, credentials: Credentials) -> Source | None:
        """None: the event need not be signed."""
        named = credentials.signature_source or credentials.source
        if not named:
            return None
        default_tenant = self._token_caller.tenant_id
        async with self._turns:
            source = await self._parts().sources.known(named, credentials.tenant, default_tenant)
        if source is None and credentials.signature_source:
            raise InvalidEventToken(SIGNATURE_TEXT)
        return source

    def _caller_of(self, credentials: Credentials) -> Caller:
        """If a token is configured, either it or an API key is needed."""
        if not self._token:
            return _caller_by_key(credentials.caller)
        if hmac.compare_digest(credentials.token.encode(), self._token.encode()):
            return self._token_caller
        if credentials.token or self._token_caller.tenant_id is None:
            raise InvalidEventToken
        if isinstance(credentials.caller, NatsUnavailable | MissingScope):
            raise credentials.caller
        if isinstance(credentials.caller, PyocoServerError):
            raise InvalidEventToken
        return credentials.caller

    # Reading

    async def _receive_signed(self, attempt: Attempt, arrival: Arrival, source: Source) -> Outcome:
        verify(source, arrival.body, arrival.headers, self._clock())
        attempt.caller = Caller(tenant_id=source.tenant_id)
        request = await off_loop(len(arrival.body), read_signed, source, arrival.body, arrival.headers)
        attempt.request = request
        if not is_ping(source, request):
            return await self._start_or_resume(attempt, request)
        # A template named `ping` is wanted; the template for all events of a source is not for its ping.
        if source.template_id is not None:
            return Pinged()
        try:
            return await self._start_or_resume(attempt, request)
        except WorkflowNotFound:
            return Pinged()

    # Starting and resuming

    async def _start_or_resume(self, attempt: Attempt, request: EventRequest) -> Outcome:
        """Takes its turn only now: a sender with a slow body blocks nobody."""
        async with self._turns:
            try:
                attempt.template = await self._template_for(attempt, request)
            except WorkflowNotFound:
                attempt.target = request.target
                if attempt.target is None:
                    raise
                return await self._parts().resume_waits(
                    attempt.event_id, request, attempt.target, attempt.caller
                )
            return await self._start_or_queue(attempt.event_id, _order(attempt, attempt.template, request))

    async def _template_for(self, attempt: Attempt, request: EventRequest) -> Template:
        """Raises WorkflowNotFound. A template takes precedence over a node that the event also names."""
        if request.target is not None and request.event_name is None:
            raise WorkflowNotFound  # nothing in the event means the only template there is
        return await self._parts().templates.resolve(
            attempt.caller.tenant_id, request.template_id, request.event_name
        )

    async def _start_or_queue(self, event_id: str, order: StartOrder) -> Started | Refused:
        outcome = await settled(event_id, self._start(order))
        if isinstance(outcome, Started) or order.request.key is None or not may_be_queued(outcome.error):
            return outcome
        failure = Failure(outcome.error.detail, reason_of(outcome.error))
        try:
            job = await self._parts().retry_queue.add(
                order.template, order.request, failure, order.api_key_id
            )
        except NatsUnavailable as error:
            return Refused(error)
        return Refused(outcome.error, job)

    async def _start(self, order: StartOrder) -> Started:
        parts = self._parts()
        started = await parts.start_template(order)
        if started.was_queued and order.receipt_key is not None:
            await parts.retry_queue.succeeded(order.tenant_id, order.receipt_key, started.run_id)
        return started


def _order(attempt: Attempt, template: Template, request: EventRequest) -> StartOrder:
    return StartOrder(template=template, request=request, api_key_id=attempt.caller.api_key_id)


def _caller_by_key(found: Caller | PyocoServerError) -> Caller:
    if isinstance(found, PyocoServerError):
        raise found
    return found


def _for_replay(stored: StoredEvent, request: EventRequest) -> EventRequest:
    is_done = stored.record.status in (EventStatus.SUCCESS, EventStatus.SKIPPED)
    return replace(request, key=None if is_done else request.key, is_key_ignored=False)


# Outcome, answer and audit record


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


def _answer(attempt: Attempt, outcome: Outcome) -> Answer:
    request = attempt.request
    error = outcome.error if isinstance(outcome, Refused) else None
    reason = None if error is None else reason_of(error)
    if isinstance(outcome, Started | Resumed) and outcome.is_duplicate:
        reason = DUPLICATE
    return Answer(
        event_id=attempt.event_id,
        template=attempt.template,
        request=request,
        started=outcome if isinstance(outcome, Started) else None,
        resumed=outcome if isinstance(outcome, Resumed) else None,
        is_ping=isinstance(outcome, Pinged),
        is_resume_ignored=isinstance(outcome, Started) and request is not None and request.target is not None,
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


def _traced(attempt: Attempt, answer: Answer) -> dict[str, Any]:
    return present(
        template=attempt.template.id if attempt.template else None,
        status=_status(answer).value,
        run_id=answer.started.run_id if answer.started else None,
        execution_id=_execution_id(attempt, answer),
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
