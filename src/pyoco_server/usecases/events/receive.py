"""An event arrives: who sent it, what it means, what it starts, what is remembered of it."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import UNSET, Struct

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.events import audit as records
from pyoco_server.domain.events.audit import (
    DUPLICATE,
    AuditActor,
    AuditDetails,
    AuditRecord,
    EventStatus,
    Reason,
    StoredEvent,
    clock_ym,
    iso,
    may_be_queued,
    reason_of,
    status_of,
)
from pyoco_server.domain.events.requests import (
    EventRequest,
    ResumeTarget,
    event_period,
    read_request,
    with_source,
)
from pyoco_server.domain.events.retry import Failure, RetryJob
from pyoco_server.domain.events.sources import SIGNATURE_TEXT, Source, is_ping, read_signed, verify
from pyoco_server.domain.events.templates import Template
from pyoco_server.errors import (
    EventFailed,
    InvalidEventToken,
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
from pyoco_server.usecases.events.resume import ACTION as RESUME_ACTION
from pyoco_server.usecases.events.resume import Resumed, ResumeWaits
from pyoco_server.usecases.events.retry import RetryQueue
from pyoco_server.usecases.events.start import Started, StartOrder, StartTemplate
from pyoco_server.usecases.ports.events import AuditStream
from pyoco_server.usecases.ports.stores import Clock

log = get_logger(__name__)

PONG = "a ping of the webhook; it starts nothing"
IN_FLIGHT = 50
"""At once: a burst waits here, where it costs nothing, and not for answers of a store that it overloads."""


class Arrival(Struct, frozen=True, kw_only=True):
    """A request, before anybody has looked at it."""

    token: str
    """The first non-empty of query, header and bearer."""
    signature_source: str
    """Who signed it, if it says so."""
    source: str
    """Of the query: who signed it, if a source of this id is registered; else a field like any other."""
    tenant: str
    """Whose source it is; empty: the tenant's of events."""
    headers: Mapping[str, str]
    read_body: Callable[[], Awaitable[bytes]]
    ask_caller: Callable[[], Awaitable[Caller]]
    ip: str | None
    user_agent: str | None


class Pinged(Struct, frozen=True):
    """GitHub tries a webhook that was just made."""

    is_duplicate: bool = False


Done = Started | Resumed | Pinged


class Answer(Struct, frozen=True, kw_only=True):
    """What the sender is told. One of `started`, `resumed`, `is_ping` and `error` is there."""

    event_id: str
    template: Template | None = None
    request: EventRequest | None = None
    started: Started | None = None
    resumed: Resumed | None = None
    is_ping: bool = False
    is_resume_ignored: bool = False
    """The event names a waiting node, too; it has started a template."""
    error: PyocoServerError | None = None
    reason: Reason | None = None
    job: RetryJob | None = None
    """It waits for another try."""

    @property
    def is_duplicate(self) -> bool:
        done = self.started or self.resumed
        return done is not None and done.is_duplicate


class Parts(Protocol):
    """What there is once NATS is there."""

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


@dataclass
class _Course:
    """What is known of a request so far: all of it is recorded, however it ends."""

    event_id: str
    event_type: str
    caller: Caller
    ip: str | None
    user_agent: str | None
    request: EventRequest | None = None
    template: Template | None = None
    target: ResumeTarget | None = None
    """What it resumes."""
    replay_of: str | None = None
    queue: bool = field(default=True)

    @property
    def order(self) -> StartOrder | None:
        if self.template is None or self.request is None:
            return None
        return StartOrder(template=self.template, request=self.request, api_key_id=self.caller.api_key_id)


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

    async def __call__(self, arrival: Arrival) -> Answer:
        course = self._course(records.WORKFLOW_EVENT, self._token_caller, arrival.ip, arrival.user_agent)
        return await self._carried_out(course, lambda: self._receive(arrival, course))

    async def start_by_hand(
        self, template_id: str, request: EventRequest, caller: Caller, ip: str | None, user_agent: str | None
    ) -> Answer:
        course = self._course(records.START, caller, ip, user_agent)
        course.request, course.queue = request, False

        async def start() -> Started:
            async with self._turns:
                course.template = await self._parts().templates.find(caller.tenant_id, template_id)
                return await self._start(course)

        return await self._carried_out(course, start)

    async def replay(self, event_id: str, caller: Caller, ip: str | None, user_agent: str | None) -> Answer:
        """An event that started something is started again; one that did not has its key tried again."""
        stored = await self._parts().audit_stream.find(event_id)
        if stored is None or stored.record.actor.tenant_id != caller.tenant_id:
            raise WorkflowNotFound("Workflow event not found.")
        if stored.request is None:
            raise WorkflowConflict(
                "the event could not be read when it arrived, so there is nothing to replay"
            )
        course = self._course(records.WORKFLOW_EVENT, caller, ip, user_agent)
        course.replay_of = event_id
        course.request = _for_replay(stored)
        return await self._carried_out(course, lambda: self._resolve_and_start(course))

    def _course(self, event_type: str, caller: Caller, ip: str | None, user_agent: str | None) -> _Course:
        return _Course(
            self._new_id(), event_type, caller, ip, user_agent and user_agent[: records.MAX_USER_AGENT]
        )

    async def _carried_out(self, course: _Course, work: Callable[[], Awaitable[Done]]) -> Answer:
        """Every request ends here: with an answer, and one record."""
        try:
            answer = _answer(course, done=await work())
        except PyocoServerError as error:
            answer = await self._refused(course, error)
        except Unreadable as error:
            answer = await self._refused(course, NatsUnavailable(f"stored data is unreadable: {error}"))
        except Exception:
            log.exception("an event could not be handled", action="event.failed", event_id=course.event_id)
            answer = await self._refused(course, EventFailed())
        is_recorded = await self._audit.record(self._stored(course, answer))
        if answer.error is not None and is_recorded:
            _log_refusal(course, answer.error, is_queued=answer.job is not None)
        return answer

    # In

    async def _receive(self, arrival: Arrival, course: _Course) -> Done:
        source = await self._source_of(arrival)
        if source is None:
            course.caller = await self._let_in(arrival)
            body = await arrival.read_body()
            request = await off_loop(len(body), read_request, body, arrival.headers)
            course.request = with_source(request, arrival.source)
            return await self._resolve_and_start(course)
        course.request = request = await self._read_signed(source, arrival, course)
        if not is_ping(source, request):
            return await self._resolve_and_start(course)
        # A template for pings is somebody's wish; one for all events of a source is not for its ping.
        if source.template_id is not None:
            return Pinged()
        try:
            return await self._resolve_and_start(course)
        except WorkflowNotFound:
            return Pinged()

    async def _source_of(self, arrival: Arrival) -> Source | None:
        """Who signed the event; None: nobody has to."""
        named = arrival.signature_source or arrival.source
        if not named:
            return None
        default_tenant = self._token_caller.tenant_id
        async with self._turns:
            source = await self._parts().sources.known(named, arrival.tenant, default_tenant)
        if source is None and arrival.signature_source:
            raise InvalidEventToken(SIGNATURE_TEXT)
        return source

    async def _let_in(self, arrival: Arrival) -> Caller:
        """With a token set it is needed, or an API key instead of it."""
        if not self._token:
            return await arrival.ask_caller()
        if hmac.compare_digest(arrival.token.encode(), self._token.encode()):
            return self._token_caller
        if not arrival.token and self._token_caller.tenant_id is not None:
            return await self._let_in_by_key(arrival)
        raise InvalidEventToken

    async def _let_in_by_key(self, arrival: Arrival) -> Caller:
        try:
            return await arrival.ask_caller()
        except NatsUnavailable:
            raise
        except PyocoServerError:
            raise InvalidEventToken from None

    async def _read_signed(self, source: Source, arrival: Arrival, course: _Course) -> EventRequest:
        body = await arrival.read_body()
        verify(source, body, arrival.headers, self._clock())
        course.caller = Caller(tenant_id=source.tenant_id)
        return await off_loop(len(body), read_signed, source, body, arrival.headers)

    # Through

    async def _resolve_and_start(self, course: _Course) -> Started | Resumed:
        """In its turn: a sender whose body is slow to arrive has none yet, and keeps nobody waiting."""
        async with self._turns:
            return await self._resolved(course, course.request or EventRequest())

    async def _resolved(self, course: _Course, request: EventRequest) -> Started | Resumed:
        try:
            course.template = await self._template_for(course, request)
        except WorkflowNotFound:
            course.target = _target_of(request)
            if course.target is None:
                raise
            return await self._parts().resume_waits(course.event_id, request, course.target, course.caller)
        return await self._start(course)

    async def _template_for(self, course: _Course, request: EventRequest) -> Template:
        """Raises WorkflowNotFound. A node that the event names, too, never keeps a template from starting."""
        if _target_of(request) is not None and request.event_name is None:
            raise WorkflowNotFound  # not even the only template there is: it was not meant
        return await self._parts().templates.resolve(
            course.caller.tenant_id, request.template_id, request.event_name
        )

    async def _start(self, course: _Course) -> Started:
        order = course.order
        assert order is not None  # noqa: S101 - both parts of it were set before
        parts = self._parts()
        started = await parts.start_template(order)
        if started.was_queued and order.place is not None:
            await parts.retry_queue.succeeded(order.tenant_id, order.place, started.run_id)
        return started

    async def _refused(self, course: _Course, error: PyocoServerError) -> Answer:
        job = None
        order = course.order
        if course.queue and order is not None and order.request.key is not None and may_be_queued(error):
            try:
                job = await self._parts().retry_queue.add(
                    order.template, order.request, Failure(error.detail, reason_of(error)), order.api_key_id
                )
            except NatsUnavailable as full:
                error = full
        return _answer(course, error=error, job=job)

    # Out

    def _stored(self, course: _Course, answer: Answer) -> StoredEvent:
        request, now = course.request or EventRequest(), self._clock()
        about = event_period(request, course.template)
        record = AuditRecord(
            at=iso(now),
            event_id=course.event_id,
            ym=about.ym if about else clock_ym(now),
            event_type=course.event_type,
            action=_action(course),
            status=_status(answer),
            run_id=answer.started.run_id if answer.started else None,
            execution_id=_execution_id(course, answer),
            actor=AuditActor(
                tenant_id=course.caller.tenant_id,
                api_key_id=course.caller.api_key_id,
                ip=course.ip,
                user_agent=course.user_agent,
            ),
            details=AuditDetails(
                template_id=course.template.id
                if course.template
                else (request.template_id or "")[:64] or None,
                template_name=course.template.name if course.template else None,
                event_name=request.event_name,
                source=request.source,
                idempotency_key=request.key,
                duplicate=answer.is_duplicate,
                replay_of=course.replay_of,
                **_resume_details(course, answer),
                **_reason_details(answer),
            ),
        )
        return StoredEvent(record=record, request=course.request)


def _log_refusal(course: _Course, error: PyocoServerError, *, is_queued: bool) -> None:
    log.info(
        "an event started nothing",
        action="event.refused",
        event_id=course.event_id,
        status=int(error.status),
        reason_code=reason_of(error).reason_code,
        is_queued=is_queued,
        **error.ids,
    )


def _answer(
    course: _Course,
    *,
    done: Done | None = None,
    error: PyocoServerError | None = None,
    job: RetryJob | None = None,
) -> Answer:
    reason = reason_of(error) if error else None
    if done is not None and done.is_duplicate:
        reason = DUPLICATE
    return Answer(
        event_id=course.event_id,
        template=course.template,
        request=course.request,
        started=done if isinstance(done, Started) else None,
        resumed=done if isinstance(done, Resumed) else None,
        is_ping=isinstance(done, Pinged),
        is_resume_ignored=isinstance(done, Started) and _target_of(course.request) is not None,
        error=error,
        reason=reason,
        job=job,
    )


def _status(answer: Answer) -> EventStatus:
    if answer.error is not None:
        return status_of(answer.error)
    return EventStatus.SKIPPED if answer.is_duplicate or answer.is_ping else EventStatus.SUCCESS


def _target_of(request: EventRequest | None) -> ResumeTarget | None:
    """The waiting node that the event names, unless it, or the source that signed it, names a template."""
    if request is None or request.template_id is not None or request.resume is UNSET:
        return None
    return request.resume


def _action(course: _Course) -> str | None:
    if course.template is not None:
        return course.template.first.action
    return None if course.target is None else RESUME_ACTION


def _execution_id(course: _Course, answer: Answer) -> str | None:
    if answer.started is not None:
        return answer.started.execution_id
    if answer.resumed is not None and answer.resumed.place is not None:
        return answer.resumed.place.execution_id
    return None if course.target is None else course.target.execution_id


def _reason_details(answer: Answer) -> dict[str, Any]:
    if answer.is_ping:
        return {"reason": PONG}
    return records.reason_fields(answer.error.detail if answer.error else None, answer.reason)


def _resume_details(course: _Course, answer: Answer) -> dict[str, Any]:
    target = course.target
    if target is None:
        return {}
    resumed = answer.resumed
    return {
        "node_id": resumed.place.node_id if resumed and resumed.place else target.node_id,
        "wait_key": target.wait_key,
        "kept": resumed is not None and resumed.is_kept,
    }


def _for_replay(stored: StoredEvent) -> EventRequest:
    assert stored.request is not None  # noqa: S101 - the caller has looked
    request = stored.request
    values: dict[str, Any] = {name: getattr(request, name) for name in request.__struct_fields__}
    if stored.record.status in (EventStatus.SUCCESS, EventStatus.SKIPPED):
        values["key"] = None
    return EventRequest(**{**values, "is_key_ignored": False})
