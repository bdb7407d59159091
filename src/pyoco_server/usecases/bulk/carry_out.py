"""Carry out bulk operations: act on a batch of items, record what failed, count it; then the next batch.

A gateway holds the lease of an operation while it works on it. When it dies, another repeats at most its last
batch, which does nothing twice: cancels and deletes are idempotent, and the ids of new runs follow from
operation and item. Counting is a compare-and-set on the place in the items.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.bulk import (
    BATCH,
    CHUNK,
    BulkAction,
    BulkChunk,
    BulkError,
    BulkRecord,
    BulkStatus,
    chunk_key,
    entry_id,
    error_of,
    progressed,
    retried_run_id,
    taken,
)
from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import NatsUnavailable, PyocoServerError, RunNotFound
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import may_see
from pyoco_server.usecases.bulk.read import FollowBulk
from pyoco_server.usecases.bulk.start import author_of, record_start
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.dead_letters import RedriveDeadLetter
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Clock, Store, Versioned, WrongRevision
from pyoco_server.usecases.runs.cancel import CancelRun
from pyoco_server.usecases.runs.delete import DeleteRun
from pyoco_server.usecases.runs.retry import RetryRun

log = get_logger(__name__)

LASTS_SEC = 5.0
"""Lease timeout before another gateway carries on."""
BEAT_SEC = 1.0


class BulkMeter(Protocol):
    def bulk_items(self, action: str, done: int, failed: int) -> None: ...


class ActOnItems:
    """What the actions do with one item. They raise PyocoServerError with the reason of a failure."""

    def __init__(
        self,
        runs: RunStore,
        cancel: CancelRun,
        retry: RetryRun,
        delete: DeleteRun,
        redrive: RedriveDeadLetter,
    ) -> None:
        self._runs = runs
        self._cancel_run = cancel
        self._retry_run = retry
        self._delete_run = delete
        self._redrive_letter = redrive

    async def __call__(self, operation: BulkRecord, item: str, *, is_repeated: bool) -> BulkError | None:
        """`is_repeated`: an interrupted batch may have done it before."""
        act = {
            BulkAction.CANCEL: self._cancel,
            BulkAction.RETRY: self._retry,
            BulkAction.DELETE: self._delete,
            BulkAction.REDRIVE: self._redrive,
        }[operation.action]
        try:
            return await act(operation, item, is_repeated)
        except NatsUnavailable:
            raise
        except (PyocoServerError, Unreadable) as error:
            return error_of(item, str(error))

    async def _cancel(self, operation: BulkRecord, item: str, _: bool) -> BulkError | None:  # noqa: FBT001
        run = await self._cancel_run.unrecorded(item, author_of(operation), f"bulk operation {operation.id}")
        if run.status in (RunStatus.CANCELLING, RunStatus.CANCELLED):
            return None
        return error_of(item, f"the run is {run.status}")

    async def _retry(self, operation: BulkRecord, item: str, _: bool) -> BulkError | None:  # noqa: FBT001
        caller, new_id = author_of(operation), retried_run_id(operation.id, item)
        found = await self._runs.get(item) if is_run_id(item) else None
        if found is None or not may_see(caller, found.value):
            if is_run_id(item) and await self._runs.get(new_id) is not None:
                return None  # retried before, and deleted since
            raise RunNotFound
        await self._retry_run.as_run(found.value, caller, new_id)
        return None

    async def _delete(self, operation: BulkRecord, item: str, is_repeated: bool) -> BulkError | None:  # noqa: FBT001
        try:
            await self._delete_run.unrecorded(item, author_of(operation))
        except RunNotFound:
            if not is_repeated:
                raise
        return None

    async def _redrive(self, operation: BulkRecord, item: str, _: bool) -> BulkError | None:  # noqa: FBT001
        await self._redrive_letter.unrecorded(item, author_of(operation))
        return None


class CarryOutBulk:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        operations: Store[BulkRecord],
        chunks: Store[BulkChunk],
        followed: FollowBulk,
        act: ActOnItems,
        lease_of: Callable[[str], Lease],
        holder: str,
        clock: Clock,
        trail: AuditTrail,
        meter: BulkMeter,
        at_once: int = BATCH,
    ) -> None:
        self._at_once = at_once
        self._operations = operations
        self._chunks = chunks
        self._followed = followed
        self._act = act
        self._lease_of = lease_of
        self._holder = holder
        self._clock = clock
        self._trail = trail
        self._meter = meter

    async def run(self) -> None:
        """A task for each operation that is not finished: a slow one does not delay another."""
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                self._followed.news.clear()
                for key in [key for key, task in tasks.items() if task.done()]:
                    tasks.pop(key).result()
                for key in self._followed.running():
                    if key not in tasks:
                        tasks[key] = asyncio.create_task(self._attend(key))
                        tasks[key].add_done_callback(lambda _: self._followed.news.set())
                await self._followed.news.wait()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _attend(self, operation_id: str) -> None:
        """Carry it out when its lease is free, until it has ended."""
        lease = self._lease_of(operation_id)
        while self._is_running(operation_id):
            with best_effort(log, "bulk.carry_out", NatsUnavailable, bulk_id=operation_id):
                if await lease.take():
                    try:
                        await self.carry_out(operation_id, lease)
                    finally:
                        await lease.give_back()
                    continue
            await asyncio.sleep(BEAT_SEC)

    def _is_running(self, operation_id: str) -> bool:
        known = self._followed.known(operation_id)
        return known is not None and known.status is BulkStatus.RUNNING

    async def carry_out(self, operation_id: str, lease: Lease) -> None:
        """Until it has ended, or the lease is lost. Raises NatsUnavailable; then nothing is lost."""
        current, is_repeated = await self._begin(operation_id)
        held = _Held(lease)
        while current is not None and current.value.status is BulkStatus.RUNNING:
            if not await held.is_kept():
                return
            began = asyncio.get_running_loop().time()
            start = current.value.position
            current = await self._batch(current, is_repeated=is_repeated)
            is_repeated = False
            if current is not None and not await self._pace(current.value, start, began, held):
                return
        if current is not None:
            await self._finish(current.value)

    async def _begin(self, operation_id: str) -> tuple[Versioned[BulkRecord] | None, bool]:
        """The operation, and whether its next batch may have been carried out before, in part."""
        found = await self._operations.get(operation_id)
        if found is None or found.value.status is not BulkStatus.RUNNING:
            return found, False
        before = found.value.holder
        if before is None:  # the gateway that stored it may have died before it recorded it
            await record_start(self._trail, found.value)
        elif before != self._holder:
            log.warning(
                "carrying on with a bulk operation of another gateway",
                action="bulk.taken_over",
                bulk_id=operation_id,
                done=found.value.position,
            )
        ours = taken(found.value, self._holder)
        if ours is not found.value:
            try:
                found = Versioned(ours, await self._operations.update(operation_id, ours, found.revision))
            except WrongRevision:
                return await self._begin(operation_id)
        return found, before is not None

    async def _batch(
        self, current: Versioned[BulkRecord], *, is_repeated: bool
    ) -> Versioned[BulkRecord] | None:
        operation = current.value
        items = await self._items(operation)
        found = await asyncio.gather(
            *(self._act(operation, item, is_repeated=is_repeated) for item in items), return_exceptions=True
        )
        outcomes = [_outcome(one) for one in found]
        await asyncio.gather(*(self._record(operation, one) for one in outcomes if one is not None))
        return await self._count(current, outcomes)

    async def _items(self, operation: BulkRecord) -> tuple[str, ...]:
        number, start = divmod(operation.position, CHUNK)
        chunk = await self._chunks.get(chunk_key(operation.id, number))
        if chunk is None:
            raise NatsUnavailable(f"the items of bulk operation {operation.id} are not readable")
        return chunk.value.ids[start : start + operation.batch_size(self._at_once)]

    async def _record(self, operation: BulkRecord, failed: BulkError) -> None:
        kind = "dead_letter" if operation.action is BulkAction.REDRIVE else "run"
        after = {"bulk_id": operation.id, "action": operation.action, "error": failed.error}
        await self._trail.record(
            author_of(operation),
            "bulk.item_failed",
            ChangeTarget(kind, failed.id),
            None,
            after,
            entry_id=entry_id(operation.id, failed.id),
        )

    async def _count(
        self, current: Versioned[BulkRecord] | None, outcomes: list[BulkError | None]
    ) -> Versioned[BulkRecord] | None:
        """The operation as it is then. None: it is gone."""
        assert current is not None  # noqa: S101 - it was read before
        start, operation_id = current.value.position, current.value.id
        while current is not None:
            after = progressed(current.value, start, outcomes, self._clock())
            if after is None:
                return current
            try:
                revision = await self._operations.update(operation_id, after, current.revision)
            except WrongRevision:
                current = await self._operations.get(operation_id)
                continue
            self._followed.note(Versioned(after, revision))
            failed = sum(one is not None for one in outcomes)
            self._meter.bulk_items(after.action, len(outcomes) - failed, failed)
            return Versioned(after, revision)
        return None

    async def _pace(self, operation: BulkRecord, start: int, began: float, held: "_Held") -> bool:
        """Wait until the next batch may begin. False: the lease is lost."""
        if operation.max_per_sec is None:
            return True
        at = began + (operation.position - start) / operation.max_per_sec
        while (left := at - asyncio.get_running_loop().time()) > 0 and self._is_running(operation.id):
            await asyncio.sleep(min(left, BEAT_SEC))
            if not await held.is_kept():
                return False
        return True

    async def _finish(self, operation: BulkRecord) -> None:
        log.info(
            "bulk operation ended",
            action="bulk.ended",
            bulk_id=operation.id,
            status=operation.status,
            done=operation.done,
            failed=operation.failed,
            left=operation.total - operation.position,
        )
        with best_effort(log, "bulk.clean_up", NatsUnavailable, bulk_id=operation.id):
            for number in range(operation.chunks):  # otherwise they expire
                await self._chunks.remove(chunk_key(operation.id, number), None)


def _outcome(found: BulkError | BaseException | None) -> BulkError | None:
    if isinstance(found, BaseException):
        raise found
    return found


class _Held:
    """A lease that is renewed now and then."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._renewed_at = asyncio.get_running_loop().time()

    async def is_kept(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._renewed_at < BEAT_SEC:
            return True
        self._renewed_at = now
        return await self._lease.take()
