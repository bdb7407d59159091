"""Resume waiting nodes by event, once per idempotency key.

The event is stored before anything else. From then on any gateway may deliver it, any number of times: it is
removed when the resume is in the execution's log or was rejected permanently. An event whose node does not
wait yet is kept until it does.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.events.audit import (
    RESUME,
    RESUME_EXPIRED,
    AuditActor,
    EventStatus,
    Reason,
    StoredEvent,
    new_record,
    reason_of,
    status_of,
)
from pyoco_server.domain.events.receipts import (
    KeptResume,
    Receipt,
    WaitPlace,
    check_content,
    has_waited_too_long,
    is_expired,
    is_other_content,
    new_kept,
    receipt_of,
    with_choice,
)
from pyoco_server.domain.events.requests import EventRequest, ResumeTarget
from pyoco_server.errors import NatsUnavailable, PyocoServerError, RequestTooLarge, RetryQueueFull
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import MAX_TRIES, change_value
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.definitions import of_tenant, tenant_key
from pyoco_server.usecases.events.start import MAX_PARAMS_BYTES
from pyoco_server.usecases.ports.gateway import CountedStore, ListedStore, NotWaitingYet, Waits
from pyoco_server.usecases.ports.stores import Clock, Versioned, WrongRevision

log = get_logger(__name__)

ACTION = "resume"
"""The action in audit records, in place of a template's."""
MAX_DELIVERIES = 10


class Resumed(Struct, frozen=True, kw_only=True):
    target: ResumeTarget
    place: WaitPlace | None = None
    is_kept: bool = False
    """The node does not wait yet; the event is delivered when it does."""
    is_duplicate: bool = False
    is_mismatch: bool = False


class _Stored(Struct, frozen=True):
    """A kept event with its key and revision in the store."""

    where: str
    entry: Versioned[KeptResume]

    @property
    def kept(self) -> KeptResume:
        return self.entry.value


class _TakenOver(Exception):
    """Another gateway delivers the same event."""


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

    # On arrival

    async def __call__(
        self, event_id: str, request: EventRequest, target: ResumeTarget, caller: Caller
    ) -> Resumed:
        """Raises a PyocoServerError; the event is then removed, and its key may be used again."""
        if len(msgspec.json.encode(request.data)) > MAX_PARAMS_BYTES:
            raise RequestTooLarge(f"data: more than {MAX_PARAMS_BYTES} bytes of JSON")
        ours = new_kept(event_id, request, target, self._clock(), caller.tenant_id, caller.api_key_id)
        stored, is_new = await self._store(ours)
        known = await self._receipt(stored.kept)
        if known is not None:
            await self._remove(stored)
        content = stored.kept.content if known is None else known.content
        check_content(content, ours.content, is_strict=self._strict_keys)
        is_mismatch = is_other_content(content, ours.content)
        if known is not None:
            return Resumed(
                target=ours.target, place=_place_in(known), is_duplicate=True, is_mismatch=is_mismatch
            )
        resumed = Resumed(target=stored.kept.target, is_duplicate=not is_new, is_mismatch=is_mismatch)
        return await self._deliver_now(stored, resumed)

    async def _deliver_now(self, stored: _Stored, resumed: Resumed) -> Resumed:
        for _ in range(MAX_DELIVERIES):
            try:
                async with self._holding(stored.where):
                    place, _ = await self._deliver(stored)
                return replace(resumed, place=place)
            except _TakenOver:
                pass  # read below how far the other gateway got, and try again
            except NatsUnavailable:
                break  # it is stored: the background completes it
            except NotWaitingYet:
                # The background skipped this event while it was held: a node may wait by now.
                if not self._waits.find(stored.kept.tenant_id, stored.kept.target):
                    break
            except PyocoServerError:
                await self._remove(stored)
                raise
            entry = await self._resumes.get(stored.where)
            if entry is None:  # another gateway has delivered it
                known = await self._receipt(stored.kept)
                return replace(resumed, place=stored.kept.named if known is None else _place_in(known))
            stored = _Stored(stored.where, entry)
        return replace(resumed, is_kept=True)

    async def _store(self, ours: KeptResume) -> tuple[_Stored, bool]:
        """The event under its key, and whether it is this one. Raises RetryQueueFull."""
        where = tenant_key(ours.tenant_id, ours.name)
        for _ in range(MAX_TRIES):
            found = await self._resumes.get(where)
            if found is not None:
                return _Stored(where, found), False
            if await self._resumes.count(of_tenant(ours.tenant_id)) >= self._max_kept:
                raise RetryQueueFull(f"{self._max_kept} events are waiting for their nodes; no more are kept")
            try:
                return _Stored(where, Versioned(ours, await self._resumes.create(where, ours))), True
            except WrongRevision:
                continue
        raise NatsUnavailable("too many concurrent events with this idempotency_key; try again in a moment")

    # Delivery: by any gateway, from any point where another stopped

    async def _deliver(self, stored: _Stored) -> tuple[WaitPlace, bool]:
        """The node, and whether this gateway removed the event.

        Raises NotWaitingYet, _TakenOver, or the permanent rejection.
        """
        stored, place = await self._resume(stored)
        await self._keep_receipt(stored.kept, place)
        return place, await self._remove(stored)

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
                # Resumed by someone else in the meantime: take the next one waiting with this key.
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
            raise _TakenOver from None
        return _Stored(stored.where, Versioned(kept, revision))

    async def _remove(self, stored: _Stored) -> bool:
        """False: another gateway changed or removed it."""
        try:
            await self._resumes.remove(stored.where, stored.entry.revision)
        except WrongRevision:
            return False
        return True

    async def _receipt(self, kept: KeptResume) -> Receipt | None:
        """The receipt of the same key, unless it has expired.

        It is written before the event is removed and read after the event was stored, so none is missed.
        """
        key = kept.receipt_key
        found = None if key is None else await self._receipts.get(key)
        if found is None or is_expired(found.value, self._clock(), self._receipt_ttl_days):
            return None
        return found.value

    async def _keep_receipt(self, kept: KeptResume, place: WaitPlace) -> None:
        key = kept.receipt_key
        if key is not None:
            receipt = receipt_of(kept, place, self._clock())
            await change_value(self._receipts, key, lambda _: receipt)

    @asynccontextmanager
    async def _holding(self, where: str) -> AsyncIterator[None]:
        """This gateway's background skips the event. Other gateways may deliver it too; that is harmless."""
        self._in_hand.add(where)
        try:
            yield
        finally:
            self._in_hand.discard(where)

    # In the background

    async def run(self) -> None:
        """Whenever a node begins to wait, and at regular intervals."""
        has_new_wait = False  # check all events on start
        while True:
            with best_effort(log, "resume.look", NatsUnavailable):
                await self.deliver_kept(check_all=not has_new_wait)
            has_new_wait = await self._waits.next_wait(self._poll_seconds)

    async def deliver_kept(self, *, check_all: bool) -> None:
        """Deliver the kept events whose node waits; with `check_all`, also expire old ones."""
        kept = await self._resumes.list_values()
        for one in sorted(kept, key=lambda kept: kept.received_at):
            if check_all or one.chosen is not None or self._waits.find(one.tenant_id, one.target):
                await self._try(one)

    async def _try(self, listed: KeptResume) -> None:
        where = tenant_key(listed.tenant_id, listed.name)
        if where in self._in_hand:
            return
        entry = await self._resumes.get(where)
        if entry is None or entry.value.id != listed.id:
            return
        stored = _Stored(where, entry)
        try:
            if await self._receipt(stored.kept) is not None:
                await self._remove(stored)
                return
            place, is_ours = await self._deliver(stored)
            if is_ours:
                await self._record(stored.kept, EventStatus.SUCCESS, place)
        except NotWaitingYet:
            await self._remove_if_expired(stored)
        except _TakenOver:
            log.debug(
                "kept event delivered by another gateway", action="resume.elsewhere", event_id=listed.id
            )
        except NatsUnavailable:
            raise
        except PyocoServerError as error:
            await self._give_up(stored, status_of(error), error.detail, reason_of(error))
        except Exception:
            # One broken event must not block the others.
            log.exception(
                "unexpected error while delivering a kept event",
                action="resume.failed",
                event_id=listed.id,
            )

    async def _remove_if_expired(self, stored: _Stored) -> None:
        if has_waited_too_long(stored.kept, self._clock(), self._ttl_days):
            text = f"no node waited for it within {self._ttl_days:g} days"
            await self._give_up(stored, EventStatus.REJECTED, text, RESUME_EXPIRED)

    async def _give_up(self, stored: _Stored, status: EventStatus, text: str, reason: Reason) -> None:
        if not await self._remove(stored):
            return
        kept = stored.kept
        log.warning("kept event discarded", action="resume.gave_up", event_id=kept.id, detail=text)
        await self._record(kept, status, kept.named, text, reason)

    async def _record(
        self,
        kept: KeptResume,
        status: EventStatus,
        place: WaitPlace | None,
        text: str | None = None,
        reason: Reason | None = None,
    ) -> None:
        record = new_record(
            RESUME,
            status,
            event_id=self._new_id(),
            now=self._clock(),
            actor=AuditActor(tenant_id=kept.tenant_id, api_key_id=kept.api_key_id),
            action=ACTION,
            execution_id=place.execution_id if place else None,
            request=kept.request,
            reason=reason,
            reason_text=text,
            duplicate=False,
            node_id=place.node_id if place else None,
            wait_key=kept.target.wait_key,
            kept=False,
            kept_event_id=kept.id,
        )
        await self._audit.record(StoredEvent(record=record))


def _place_in(receipt: Receipt) -> WaitPlace:
    return WaitPlace(receipt.execution_id or "", receipt.node_id or "")
