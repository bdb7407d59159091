"""Bulk operations in memory, from a feed: find, list, watch, cancel."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.bulk import BulkOperation, BulkPage, BulkRecord, BulkStatus, cancelled
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.errors import BulkNotFound
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.executions.query import ExecutionHub
from pyoco_server.usecases.ports.stores import Clock, Feed, FeedBatch, Revision, Store, Versioned

log = get_logger(__name__)

REPEAT_SEC = 1.5
"""When a watcher gets the operation again although nothing has changed."""


class FollowBulk:
    """All operations that are stored. There are few: each is somebody's request."""

    def __init__(self, feed: Feed[BulkRecord], hub: ExecutionHub) -> None:
        self._feed = feed
        self._hub = hub
        self._known: dict[str, Versioned[BulkRecord]] = {}
        self._ids: list[str] = []
        self.is_caught_up = False
        self.news = asyncio.Event()
        """Set when an operation may have to be carried out."""

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            self._take(batch)
            await asyncio.sleep(0)

    def known(self, operation_id: str) -> BulkRecord | None:
        found = self._known.get(operation_id)
        return None if found is None else found.value

    def running(self) -> list[str]:
        return [key for key, one in self._known.items() if one.value.status is BulkStatus.RUNNING]

    def before(self, tenant_id: str | None, operation_id: str | None, limit: int) -> list[BulkRecord]:
        """Newest first: their ids are in the order of time."""
        end = len(self._ids) if operation_id is None else bisect_left(self._ids, operation_id)
        found: list[BulkRecord] = []
        for key in reversed(self._ids[:end]):
            record = self._known[key].value
            if tenant_id in (None, record.tenant_id):
                found.append(record)
            if len(found) == limit:
                break
        return found

    def note(self, stored: Versioned[BulkRecord]) -> None:
        """Something newer, from the feed or from this gateway's own work."""
        key, known = stored.value.id, self._known.get(stored.value.id)
        if known is not None and known.revision >= stored.revision:
            return
        if known is None:
            insort(self._ids, key)
        self._known[key] = stored
        self._hub.ring(key)
        self.news.set()

    def _take(self, batch: FeedBatch[BulkRecord]) -> None:
        if batch.is_reset:
            self._known.clear()
            self._ids.clear()
        for change in batch.changes:
            if change.value is not None:
                self.note(Versioned(change.value, Revision(change.revision)))
            elif self._known.pop(change.key, None) is not None:
                self._ids.remove(change.key)
        self.is_caught_up = self.is_caught_up or batch.is_caught_up


class ReadBulk:
    def __init__(self, operations: Store[BulkRecord], followed: FollowBulk, hub: ExecutionHub) -> None:
        self._operations = operations
        self._followed = followed
        self._hub = hub

    async def find(self, operation_id: str, caller: Caller) -> BulkOperation:
        """Raises BulkNotFound."""
        return (await self.record(operation_id, caller)).view()

    async def record(self, operation_id: str, caller: Caller) -> BulkRecord:
        found = await self._operations.get(operation_id) if is_run_id(operation_id) else None
        if found is None or caller.tenant_id not in (None, found.value.tenant_id):
            raise BulkNotFound
        return found.value

    def page(self, cursor: str | None, limit: int, caller: Caller) -> BulkPage:
        of = digest_of("bulk", caller.tenant_id)
        before = None if cursor is None else place_of(cursor, of).run_id
        found = self._followed.before(caller.tenant_id, before, limit + 1)
        shown = [record.view() for record in found[:limit]]
        more = cursor_at(Place(0.0, shown[-1].id), of) if len(found) > limit else None
        return BulkPage(shown, more)

    @asynccontextmanager
    async def watching(
        self, operation_id: str, caller: Caller
    ) -> AsyncIterator[AsyncIterator[BulkOperation]]:
        """Every change, and now and then without one; closes at the end. Raises BulkNotFound."""
        first = await self.record(operation_id, caller)
        with self._hub.watching(operation_id) as bell:
            yield self._follow(first, bell)

    async def _follow(self, record: BulkRecord, bell: asyncio.Event) -> AsyncIterator[BulkOperation]:
        yield record.view()
        while record.status is BulkStatus.RUNNING and not self._hub.is_closed:
            await wait_at_most(bell, REPEAT_SEC)
            bell.clear()
            newer = self._followed.known(record.id)
            record = record if newer is None or newer.position < record.position else newer
            yield record.view()


class CancelBulk:
    def __init__(
        self, read: ReadBulk, operations: Store[BulkRecord], clock: Clock, trail: AuditTrail
    ) -> None:
        self._trail = trail
        self._read = read
        self._operations = operations
        self._clock = clock

    async def __call__(self, operation_id: str, caller: Caller) -> BulkOperation:
        """What is under way is finished and counted; the rest is left. Raises BulkNotFound."""
        before = await self._read.record(operation_id, caller)
        if before.status is not BulkStatus.RUNNING:
            return before.view()

        def decide(found: BulkRecord | None) -> BulkRecord | None:
            return None if found is None else cancelled(found, self._clock())

        record = await change_value(self._operations, operation_id, decide)
        if record is None:
            raise BulkNotFound
        view = record.view()
        log.info("bulk operation cancelled", action="bulk.cancelled", bulk_id=operation_id, by=caller.name)
        target = ChangeTarget("bulk", operation_id)
        await self._trail.record(caller, "bulk.cancel", target, before.view(), view)
        return view
