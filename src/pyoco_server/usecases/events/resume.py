"""An event resumes a node that waits: now, or when it does wait. Once for each idempotency key.

The event is stored first, and only then looked at. From then on it does not matter who carries it out or how
often that is tried: it leaves the store when the resume is in the execution's log, or is refused for good.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from msgspec import Struct

from pyoco_server.domain.events import audit as records
from pyoco_server.domain.events.audit import (
    AuditActor,
    AuditDetails,
    AuditRecord,
    EventStatus,
    Reason,
    ReasonClass,
    RetryAdvice,
    StoredEvent,
    clock_ym,
    iso,
    reason_of,
    status_of,
)
from pyoco_server.domain.events.receipts import (
    DAY_SEC,
    KeptResume,
    Receipt,
    WaitPlace,
    is_over,
    kept_name,
    new_kept,
    receipt_of,
    with_choice,
)
from pyoco_server.domain.events.requests import EventRequest, ResumeTarget, event_period
from pyoco_server.domain.executions.commands import Code, ResumeNode
from pyoco_server.domain.executions.events import Actor, ActorKind
from pyoco_server.domain.executions.graphs import NodeType
from pyoco_server.domain.executions.model import possible_ids
from pyoco_server.errors import (
    CommandRejected,
    InvalidRequest,
    NatsUnavailable,
    PyocoServerError,
    RequestTooLarge,
    RetryQueueFull,
)
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import MAX_TRIES, change_value
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.definitions import of_tenant
from pyoco_server.usecases.events.definitions import place as place_of
from pyoco_server.usecases.events.start import MAX_PARAMS_BYTES
from pyoco_server.usecases.executions.commands import CommandExecution
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.ports.events import CountedStore, ListedStore, NotWaitingYet, Waits
from pyoco_server.usecases.ports.executions import ExecutionIndex
from pyoco_server.usecases.ports.stores import Clock, Versioned, WrongRevision
from pyoco_server.usecases.services.follow_executions import FollowExecutions

log = get_logger(__name__)

ACTION = "resume"
"""In audit records, where a template's action stands otherwise."""
LOOKS = 10
EXPIRED = Reason(ReasonClass.VALIDATION, "resume_expired", RetryAdvice.RETRY_AFTER_FIX)


class Resumed(Struct, frozen=True, kw_only=True):
    target: ResumeTarget
    place: WaitPlace | None = None
    is_kept: bool = False
    """The node does not wait yet."""
    is_duplicate: bool = False
    is_mismatch: bool = False


class _Stored(Struct, frozen=True):
    """A kept event as it stands in the store."""

    where: str
    entry: Versioned[KeptResume]

    @property
    def kept(self) -> KeptResume:
        return self.entry.value


class _Elsewhere(Exception):
    """Another gateway is at the same event, and further."""


class ResumeWaits:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        resumes: CountedStore[KeptResume],
        receipts: ListedStore[Receipt],
        waits: Waits,
        audit: Audit,
        clock: Clock,
        new_id: Callable[[], str],
        max_kept: int,
        ttl_days: float,
        receipt_ttl_days: float,
        strict_keys: bool,
        poll_seconds: float,
    ) -> None:
        self._resumes = resumes
        self._receipts = receipts
        self._waits = waits
        self._audit = audit
        self._clock = clock
        self._new_id = new_id
        self._max_kept = max_kept
        self._ttl_days = ttl_days
        self._receipt_ttl_days = receipt_ttl_days
        self._strict_keys = strict_keys
        self._poll_seconds = poll_seconds
        self._in_hand: set[str] = set()

    # An event arrives

    async def __call__(
        self, event_id: str, request: EventRequest, target: ResumeTarget, caller: Caller
    ) -> Resumed:
        """Raises a PyocoServerError; then nothing is kept of the event, and its key may be used again."""
        if len(msgspec.json.encode(request.data)) > MAX_PARAMS_BYTES:
            raise RequestTooLarge(f"data: more than {MAX_PARAMS_BYTES} bytes of JSON")
        ours = new_kept(event_id, request, target, self._clock(), caller.tenant_id, caller.api_key_id)
        where = place_of(caller.tenant_id, kept_name(caller.tenant_id, request.key, event_id))
        stored, is_new = await self._store(where, ours)
        known = await self._receipt(stored)
        if known is not None:
            await self._drop(stored)
            self._check_content(known.content, ours.content)
            return _duplicate_of(known, ours)
        self._check_content(stored.kept.content, ours.content)
        resumed = Resumed(
            target=stored.kept.target,
            is_duplicate=not is_new,
            is_mismatch=stored.kept.content != ours.content,
        )
        return await self._answer(stored, resumed)

    async def _answer(self, stored: _Stored, resumed: Resumed) -> Resumed:
        replace = msgspec.structs.replace
        for _ in range(LOOKS):
            try:
                async with self._holding(stored.where):
                    place, _ = await self._carry_out(stored)
                return replace(resumed, place=place)
            except _Elsewhere:
                pass  # another gateway carries it out: look below what has become of it, and try again
            except NatsUnavailable:
                break  # it is stored: what is missing is done later
            except NotWaitingYet:
                # The background has left this one alone: did a node begin to wait meanwhile?
                if not self._waits.find(stored.kept.tenant_id, stored.kept.target):
                    break
            except PyocoServerError:
                await self._drop(stored)
                raise
            entry = await self._resumes.get(stored.where)
            if entry is None:
                return replace(resumed, place=await self._place_elsewhere(stored))
            stored = _Stored(stored.where, entry)
        return replace(resumed, is_kept=True)

    async def _store(self, where: str, ours: KeptResume) -> tuple[_Stored, bool]:
        """The event under its key, and whether it is this one. Raises RetryQueueFull."""
        for _ in range(MAX_TRIES):
            found = await self._resumes.get(where)
            if found is not None:
                return _Stored(where, found), False
            if await self._resumes.count(of_tenant(ours.tenant_id)) >= self._max_kept:
                raise RetryQueueFull(f"{self._max_kept} events wait for their nodes, and no more are kept")
            try:
                return _Stored(where, Versioned(ours, await self._resumes.create(where, ours))), True
            except WrongRevision:
                continue
        raise NatsUnavailable("too many events with this idempotency_key at once; try again in a moment")

    def _check_content(self, found: str, ours: str) -> None:
        if self._strict_keys and found != ours:
            raise InvalidRequest("this idempotency_key was used with another content")

    async def _place_elsewhere(self, stored: _Stored) -> WaitPlace | None:
        known = await self._receipt(stored)
        return stored.kept.named if known is None else _place_in(known)

    # Carry it out: whoever does, from wherever it was left

    async def _carry_out(self, stored: _Stored) -> tuple[WaitPlace, bool]:
        """The node, and whether the event left the store here and not by somebody else's hand.

        Raises NotWaitingYet, _Elsewhere, and what refuses it for good.
        """
        stored, place = await self._resume(stored)
        await self._keep_receipt(stored.kept, place)
        return place, await self._drop(stored)

    async def _resume(self, stored: _Stored) -> tuple[_Stored, WaitPlace]:
        named = stored.kept.named
        if named is not None:
            await self._waits.resume(stored.kept, named)
            return stored, named
        passed_over: set[WaitPlace] = set()
        while True:
            place = stored.kept.chosen or self._oldest(stored.kept, passed_over)
            if place is None:
                raise NotWaitingYet
            if stored.kept.chosen is None:
                stored = await self._choose(stored, place)
            try:
                await self._waits.resume(stored.kept, place)
            except NatsUnavailable:
                raise
            except (PyocoServerError, NotWaitingYet):
                # Somebody else has resumed it meanwhile: the next one that waits with this key, then.
                passed_over.add(place)
                stored = await self._choose(stored, None)
                continue
            return stored, place

    def _oldest(self, kept: KeptResume, passed_over: set[WaitPlace]) -> WaitPlace | None:
        found = self._waits.find(kept.tenant_id, kept.target)
        return next((place for place in found if place not in passed_over), None)

    async def _choose(self, stored: _Stored, place: WaitPlace | None) -> _Stored:
        kept = with_choice(stored.kept, place)
        try:
            revision = await self._resumes.update(stored.where, kept, stored.entry.revision)
        except WrongRevision:
            raise _Elsewhere from None
        return _Stored(stored.where, Versioned(kept, revision))

    async def _drop(self, stored: _Stored) -> bool:
        """False: somebody else has changed or removed it."""
        try:
            await self._resumes.remove(stored.where, stored.entry.revision)
        except WrongRevision:
            return False
        return True

    async def _receipt(self, stored: _Stored) -> Receipt | None:
        """Of the same key, if it has resumed something and that still counts.

        Looked for behind the store, and written before the event leaves it: so none is overlooked.
        """
        key = stored.kept.request.key
        if key is None:
            return None
        found = await self._receipts.get(kept_name(stored.kept.tenant_id, key, ""))
        if found is None or self._clock() - found.value.claimed_at > self._receipt_ttl_days * DAY_SEC:
            return None
        return found.value

    async def _keep_receipt(self, kept: KeptResume, place: WaitPlace) -> None:
        key = kept.request.key
        if key is not None:
            receipt = receipt_of(kept, place, self._clock())
            await change_value(self._receipts, kept_name(kept.tenant_id, key, ""), lambda _: receipt)

    @asynccontextmanager
    async def _holding(self, where: str) -> AsyncIterator[None]:
        """Spares this gateway's own background the work; other gateways may do it again, harmlessly."""
        self._in_hand.add(where)
        try:
            yield
        finally:
            self._in_hand.discard(where)

    # In the background

    async def run(self) -> None:
        """Whenever something waits, and now and then."""
        is_news = False  # at the beginning, all are looked at
        while True:
            with best_effort(log, "resume.look", NatsUnavailable):
                await self.look(all_of_them=not is_news)
            is_news = await self._waits.news(self._poll_seconds)

    async def look(self, *, all_of_them: bool) -> None:
        """At the kept events whose node waits; at `all_of_them`, also for those that are hopeless."""
        kept = await self._resumes.list_values()
        for one in sorted(kept, key=lambda kept: kept.received_at):
            if all_of_them or one.chosen is not None or self._waits.find(one.tenant_id, one.target):
                await self._try(one)

    async def _try(self, listed: KeptResume) -> None:
        where = place_of(listed.tenant_id, kept_name(listed.tenant_id, listed.request.key, listed.id))
        if where in self._in_hand:
            return
        entry = await self._resumes.get(where)
        if entry is None or entry.value.id != listed.id:
            return
        stored = _Stored(where, entry)
        try:
            if await self._receipt(stored) is not None:
                await self._drop(stored)
                return
            place, is_ours = await self._carry_out(stored)
            if is_ours:
                await self._record(stored.kept, EventStatus.SUCCESS, place)
        except NotWaitingYet:
            await self._forget_if_over(stored)
        except _Elsewhere:
            log.debug("another gateway resumes it", action="resume.elsewhere", event_id=listed.id)
        except NatsUnavailable:
            raise
        except PyocoServerError as error:
            await self._give_up(stored, status_of(error), error.detail, reason_of(error))
        except Exception:
            # One event that cannot be handled must not keep the others waiting.
            log.exception("a kept event could not be handled", action="resume.failed", event_id=listed.id)

    async def _forget_if_over(self, stored: _Stored) -> None:
        if is_over(stored.kept, self._clock(), self._ttl_days):
            text = f"no node waited for it within {self._ttl_days:g} days"
            await self._give_up(stored, EventStatus.REJECTED, text, EXPIRED)

    async def _give_up(self, stored: _Stored, status: EventStatus, text: str, reason: Reason) -> None:
        if not await self._drop(stored):
            return
        kept = stored.kept
        log.warning("a kept event resumes nothing", action="resume.gave_up", event_id=kept.id, detail=text)
        await self._record(kept, status, kept.named, text, reason)

    async def _record(
        self,
        kept: KeptResume,
        status: EventStatus,
        place: WaitPlace | None,
        text: str | None = None,
        reason: Reason | None = None,
    ) -> None:
        now, request = self._clock(), kept.request
        about = event_period(request, None)
        record = AuditRecord(
            at=iso(now),
            event_id=self._new_id(),
            ym=about.ym if about else clock_ym(now),
            event_type=records.RESUME,
            action=ACTION,
            status=status,
            execution_id=place.execution_id if place else None,
            actor=AuditActor(tenant_id=kept.tenant_id, api_key_id=kept.api_key_id),
            details=AuditDetails(
                event_name=request.event_name,
                source=request.source,
                idempotency_key=request.key,
                duplicate=False,
                node_id=place.node_id if place else None,
                wait_key=kept.target.wait_key,
                kept=False,
                kept_event_id=kept.id,
                **records.reason_fields(text, reason),
            ),
        )
        await self._audit.record(StoredEvent(record=record))


def _place_in(receipt: Receipt) -> WaitPlace:
    return WaitPlace(receipt.execution_id or "", receipt.node_id or "")


def _duplicate_of(receipt: Receipt, ours: KeptResume) -> Resumed:
    return Resumed(
        target=ours.target,
        place=_place_in(receipt),
        is_duplicate=True,
        is_mismatch=receipt.content != ours.content,
    )


# The nodes that events resume are those of executions.

_NEVER_WAIT: Final = frozenset({NodeType.FORK.value, NodeType.JOIN.value})


class ExecutionWaits:
    def __init__(
        self,
        index: ExecutionIndex,
        records: ExecutionRepository,
        command: CommandExecution,
        follow: FollowExecutions,
    ) -> None:
        self._index = index
        self._records = records
        self._command = command
        self._follow = follow

    def find(self, tenant_id: str | None, target: ResumeTarget) -> list[WaitPlace]:
        if target.execution_id is not None and target.node_id is not None:
            ids, node_id = possible_ids(tenant_id, target.execution_id), target.node_id
            is_there = any(self._index.is_waiting(tenant_id, it, node_id) for it in ids)
            return [WaitPlace(target.execution_id, node_id)] if is_there else []
        found = self._index.waiting_with(tenant_id, target.wait_key or "")
        return [WaitPlace(execution_id, node_id) for execution_id, node_id in found]

    async def resume(self, kept: KeptResume, place: WaitPlace) -> None:
        command = ResumeNode(
            actor=Actor(ActorKind.EXTERNAL, f"event:{kept.request.source or kept.id}"),
            node_id=place.node_id,
            resume_key=kept.target.wait_key,
            data=kept.request.data,
            correlation_id=kept.id,
        )
        try:
            await self._command(place.execution_id, command, Caller(tenant_id=kept.tenant_id), kept.id)
        except CommandRejected as error:
            if await self._may_wait_yet(error, place, kept.tenant_id):
                raise NotWaitingYet from None
            raise

    async def _may_wait_yet(self, error: CommandRejected, place: WaitPlace, tenant_id: str | None) -> bool:
        if error.code == Code.EXECUTION_NOT_STARTED:
            return True
        if error.code != Code.NODE_STATUS:
            return False
        node = None
        for execution_id in possible_ids(tenant_id, place.execution_id):
            if (record := await self._records.fresh(execution_id)) is not None:
                node = record.state.nodes.get(place.node_id)
                break
        return node is not None and not node.status.is_terminal and node.node_type not in _NEVER_WAIT

    async def news(self, seconds: float) -> bool:
        return await self._follow.next_wait(seconds)
