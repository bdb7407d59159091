"""Receive an event: admit its sender, read it, then start a template or resume a waiting node.

One request is one `Attempt`, and `audited` wraps its work:

    attempt = receive.begin(origin)
    answer = await receive.audited(attempt, work)

where `work` admits the sender (`admit`), reads the body, and passes the whole `Arrival` on.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.events import audit as records
from pyoco_server.domain.events.audit import EventStatus, StoredEvent, may_be_queued, reason_of
from pyoco_server.domain.events.requests import EventRequest, read_request, with_source
from pyoco_server.domain.events.retry import Failure
from pyoco_server.domain.events.sources import SIGNATURE_TEXT, Source, is_ping, read_signed, verify
from pyoco_server.domain.events.templates import Template
from pyoco_server.errors import (
    InvalidEventToken,
    NatsUnavailable,
    PyocoServerError,
    WorkflowConflict,
    WorkflowNotFound,
)
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import off_loop
from pyoco_server.usecases.events.attempt import (
    Answer,
    Attempt,
    Origin,
    Outcome,
    Pinged,
    Refused,
    audited,
    settled,
    target_of,
)
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.definitions import ManageSources, ManageTemplates
from pyoco_server.usecases.events.resume import ResumeWaits
from pyoco_server.usecases.events.retry import RetryQueue
from pyoco_server.usecases.events.start import Started, StartOrder, StartTemplate
from pyoco_server.usecases.ports.events import AuditStream
from pyoco_server.usecases.ports.stores import Clock

IN_FLIGHT = 50
"""Concurrency limit: a burst queues here instead of overloading the store."""


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
        return await audited(attempt, work, self._audit, self._clock)

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
        return await self.audited(attempt, self._start_or_resume(attempt, attempt.request))

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
        if isinstance(credentials.caller, NatsUnavailable):
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
                attempt.target = target_of(request)
                if attempt.target is None:
                    raise
                return await self._parts().resume_waits(
                    attempt.event_id, request, attempt.target, attempt.caller
                )
            return await self._start_or_queue(attempt.event_id, _order(attempt, attempt.template, request))

    async def _template_for(self, attempt: Attempt, request: EventRequest) -> Template:
        """Raises WorkflowNotFound. A template takes precedence over a node that the event also names."""
        if target_of(request) is not None and request.event_name is None:
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
