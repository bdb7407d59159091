"""Receive an event: admit its sender, read it, then start a template or resume a waiting node.

One request is one `Attempt`, and `audited` wraps its work:

    attempt = receive.begin(origin)
    answer = await receive.audited(attempt, work)

where `work` admits the sender (`admit`), reads the body, and passes the whole `Arrival` on.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server import tracing
from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.cel.values import Allowance, TooHeavy
from pyoco_server.domain.events import audit as records
from pyoco_server.domain.events.audit import EventStatus, StoredEvent, may_be_queued, reason_of
from pyoco_server.domain.events.cloud_events import STRUCTURED, members
from pyoco_server.domain.events.filters import Choice, choose
from pyoco_server.domain.events.requests import EventRequest, read_request, with_source
from pyoco_server.domain.events.retry import Failure
from pyoco_server.domain.events.sources import (
    SIGNATURE_TEXT,
    Source,
    is_batch,
    is_ping,
    read_signed,
    verify,
)
from pyoco_server.domain.events.templates import Template, the_only
from pyoco_server.errors import (
    InvalidEventToken,
    MissingScope,
    NatsUnavailable,
    PyocoServerError,
    WorkflowConflict,
    WorkflowNotFound,
)
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import off_loop, parse_in_thread
from pyoco_server.usecases.events.attempts import (
    NO_EVENTS,
    PINGED,
    Answer,
    Attempt,
    Batched,
    Origin,
    Outcome,
    Refused,
    answer_to,
    filtered,
    record_of,
    settled,
    traced,
)
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.definitions import ManageSources, ManageTemplates
from pyoco_server.usecases.events.resume import ResumeWaits
from pyoco_server.usecases.events.retry import RetryQueue
from pyoco_server.usecases.events.start import Started, StartOrder, StartTemplate
from pyoco_server.usecases.ports.gateway import AuditStream
from pyoco_server.usecases.ports.stores import Clock

log = get_logger(__name__)

IN_FLIGHT = 50
"""Concurrency limit: a burst queues here instead of overloading the store."""
LIGHT_STEPS = 20_000
"""Work of filters that takes some 2 ms; more is done in a thread."""
MEMBER: Mapping[str, str] = {"content-type": STRUCTURED}
"""Headers of an event in a batch: those of the request, as idempotency keys, are not its own."""


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
            span.attributes.update(traced(attempt, answer))
            return answer

    async def _audited(self, attempt: Attempt, work: Awaitable[Outcome]) -> Answer:
        answer = answer_to(attempt, await settled(attempt.event_id, work))
        if answer.batch is not None:
            return answer  # each of its events has a record
        stored = StoredEvent(record=record_of(attempt, answer, self._clock()), request=attempt.request)
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
        sender = arrival.sender
        if isinstance(sender, Source):
            verify(sender, arrival.body, arrival.headers, self._clock())
            attempt.caller = Caller(tenant_id=sender.tenant_id)
        if is_batch(sender, arrival.headers):
            return await self._receive_batch(attempt, arrival)
        return await self._receive_one(attempt, arrival)

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

    async def _receive_batch(self, attempt: Attempt, arrival: Arrival) -> Outcome:
        """One after another, in order. Each has its own key, so the whole batch may be sent again."""
        parts = await off_loop(len(arrival.body), members, arrival.body)
        if not parts:
            return NO_EVENTS
        answers: list[Answer] = []
        for part in parts:
            answers.append(await self._receive_member(attempt, replace(arrival, body=part, headers=MEMBER)))
            error = answers[-1].error
            if isinstance(error, NatsUnavailable):  # the others would wait for it, too
                done = len(answers) - 1
                raise NatsUnavailable(
                    f"{error.detail}; {done} of {len(parts)} events handled, send all again"
                )
        return Batched(tuple(answers))

    async def _receive_member(self, batch: Attempt, arrival: Arrival) -> Answer:
        attempt = self._attempt(batch.event_type, batch.caller, batch.origin)
        return await self.audited(attempt, self._receive_one(attempt, arrival))

    async def _receive_one(self, attempt: Attempt, arrival: Arrival) -> Outcome:
        sender, body, headers = arrival.sender, arrival.body, arrival.headers
        if isinstance(sender, Source):
            request = await off_loop(len(body), read_signed, sender, body, headers)
        else:
            request = with_source(await off_loop(len(body), read_request, body, headers), arrival.source)
        attempt.request = request
        if isinstance(sender, Source) and is_ping(sender, request):
            return PINGED
        return await self._start_or_resume(attempt, request)

    # Starting and resuming

    async def _start_or_resume(self, attempt: Attempt, request: EventRequest) -> Outcome:
        """Takes its turn only now: a sender with a slow body blocks nobody."""
        async with self._turns:
            try:
                found = await self._candidates(attempt, request)
            except WorkflowNotFound:
                attempt.target = request.target
                if attempt.target is None:
                    raise
                return await self._parts().resume_waits(
                    attempt.event_id, request, attempt.target, attempt.caller
                )
            choice = await _chosen(found, request)
            if not choice.passing:
                attempt.template = found[0] if len(found) == 1 else None
                return filtered(choice.problems)
            attempt.template = the_only(request.event_name, choice.passing)
            return await self._start_or_queue(attempt.event_id, _order(attempt, attempt.template, request))

    async def _candidates(self, attempt: Attempt, request: EventRequest) -> list[Template]:
        """Raises WorkflowNotFound. A template takes precedence over a node that the event also names."""
        if request.target is not None and request.event_name is None:
            raise WorkflowNotFound  # nothing in the event means the only template there is
        return await self._parts().templates.candidates(
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


async def _chosen(templates: Sequence[Template], request: EventRequest) -> Choice:
    try:
        return choose(templates, request, Allowance(LIGHT_STEPS))
    except TooHeavy:
        return await parse_in_thread(choose, templates, request)


def _order(attempt: Attempt, template: Template, request: EventRequest) -> StartOrder:
    return StartOrder(template=template, request=request, api_key_id=attempt.caller.api_key_id)


def _caller_by_key(found: Caller | PyocoServerError) -> Caller:
    if isinstance(found, PyocoServerError):
        raise found
    return found


def _for_replay(stored: StoredEvent, request: EventRequest) -> EventRequest:
    is_done = stored.record.status in (EventStatus.SUCCESS, EventStatus.SKIPPED)
    return replace(request, key=None if is_done else request.key, is_key_ignored=False)
