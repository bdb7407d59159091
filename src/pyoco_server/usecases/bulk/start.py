"""Start a bulk operation: find its items, store them, then the operation."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import asdict

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.bulk import (
    MAX_DURATION_SEC,
    MAX_RECORDED,
    BulkAction,
    BulkChunk,
    BulkPreview,
    BulkRecord,
    BulkStatus,
    chunk_key,
    chunks_of,
    entry_id,
    opened,
)
from pyoco_server.domain.dead_letters import DeadLetterView, LetterFilter
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.listing import RunFilter, RunSummary, summary
from pyoco_server.errors import DeadLetterNotFound, InvalidRequest
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.bulk.read import FollowBulk
from pyoco_server.usecases.consistency import OwnWrites
from pyoco_server.usecases.dead_letters import ReadDeadLetters
from pyoco_server.usecases.ports.runs import RunIndex, RunStore
from pyoco_server.usecases.ports.stores import Clock, Store, Versioned

log = get_logger(__name__)

PREVIEW = 20
AT_ONCE = 20
"""Chunks written at the same time."""


class BulkRequest(Struct, frozen=True, kw_only=True):
    action: BulkAction
    ids: tuple[str, ...] | None = None
    """None: those that match the filter."""
    runs: RunFilter = RunFilter()
    letters: LetterFilter = LetterFilter()
    max_per_sec: float | None = None

    @property
    def asked(self) -> dict[str, Any]:
        if self.ids is not None:
            return {"ids": self.ids[:MAX_RECORDED]}
        wanted = asdict(self.letters if self.action is BulkAction.REDRIVE else self.runs)
        return {
            "filter": {
                name: value for name, value in wanted.items() if value is not None and name != "tenant_id"
            }
        }


class BulkItems:
    """The items of an operation, as they are when it starts."""

    def __init__(
        self, runs: RunStore, index: RunIndex, letters: ReadDeadLetters, own_writes: OwnWrites
    ) -> None:
        self._runs = runs
        self._index = index
        self._letters = letters
        self._own_writes = own_writes

    async def ids(self, wanted: BulkRequest, caller: Caller) -> Sequence[str]:
        if wanted.ids is not None:
            return tuple(dict.fromkeys(wanted.ids))
        if wanted.action is BulkAction.REDRIVE:
            return await self._letters.matching(wanted.letters, caller)
        await self._own_writes.are_visible()
        return self._index.matching(wanted.runs)

    async def preview(self, wanted: BulkRequest, caller: Caller) -> BulkPreview:
        ids = await self.ids(wanted, caller)
        if wanted.action is BulkAction.REDRIVE:
            letters = await asyncio.gather(*(self._letter(one, caller) for one in ids[:PREVIEW]))
            return BulkPreview(len(ids), [letter for letter in letters if letter is not None])
        if wanted.ids is None:
            page = self._index.page(wanted.runs, None, PREVIEW)
            return BulkPreview(len(ids), [decode(one, type=RunSummary) for one in page.summaries])
        runs = await asyncio.gather(*(self._run(one, caller) for one in ids[:PREVIEW]))
        return BulkPreview(len(ids), [run for run in runs if run is not None])

    async def _letter(self, letter_id: str, caller: Caller) -> DeadLetterView | None:
        try:
            return await self._letters.find(letter_id, caller)
        except DeadLetterNotFound:
            return None

    async def _run(self, run_id: str, caller: Caller) -> RunSummary | None:
        found = await self._runs.get(run_id) if is_run_id(run_id) else None
        if found is None or not may_see(caller, found.value):
            return None
        return summary(found.value, run_id, found.value.updated_at)


class StartBulk:
    """The operation is stored last: one that is there has all its items."""

    def __init__(
        self,
        *,
        items: BulkItems,
        operations: Store[BulkRecord],
        chunks: Store[BulkChunk],
        followed: FollowBulk,
        clock: Clock,
        new_id: Callable[[], str],
        trail: AuditTrail,
    ) -> None:
        self._items = items
        self._operations = operations
        self._chunks = chunks
        self._followed = followed
        self._clock = clock
        self._new_id = new_id
        self._trail = trail

    async def __call__(self, wanted: BulkRequest, caller: Caller) -> BulkRecord:
        """Raises InvalidRequest."""
        ids = await self._items.ids(wanted, caller)
        _check_duration(len(ids), wanted.max_per_sec)
        record = opened(
            BulkRecord(
                id=self._new_id(),
                action=wanted.action,
                status=BulkStatus.RUNNING,
                total=len(ids),
                created_at=self._clock(),
                max_per_sec=wanted.max_per_sec,
                tenant_id=caller.tenant_id,
                api_key_id=caller.api_key_id,
                origin=caller.origin,
                asked=wanted.asked,
            )
        )
        await self._store_chunks(record.id, ids)
        revision = await self._operations.create(record.id, record)
        log.info(
            "bulk operation started",
            action="bulk.started",
            bulk_id=record.id,
            bulk_action=record.action,
            total=record.total,
            by=caller.name,
        )
        await record_start(self._trail, record)
        self._followed.note(Versioned(record, revision))
        return record

    async def _store_chunks(self, operation_id: str, ids: Sequence[str]) -> None:
        turns = asyncio.Semaphore(AT_ONCE)

        async def put(number: int, chunk: BulkChunk) -> None:
            async with turns:
                await self._chunks.create(chunk_key(operation_id, number), chunk)

        await asyncio.gather(*(put(number, chunk) for number, chunk in enumerate(chunks_of(ids))))


def _check_duration(total: int, max_per_sec: float | None) -> None:
    """The items are not kept for ever."""
    if max_per_sec is not None and total / max_per_sec > MAX_DURATION_SEC:
        days, most = total / max_per_sec / 86_400, MAX_DURATION_SEC / 86_400
        raise InvalidRequest(
            f"max_per_sec: at this rate {total} items would take {days:,.0f} days; "
            f"at most {most:.0f} are allowed"
        )


async def record_start(trail: AuditTrail, record: BulkRecord) -> None:
    """Once, whoever records it: its id follows from the operation's."""
    after = {
        "action": record.action,
        **(record.asked or {}),
        "total": record.total,
        "max_per_sec": record.max_per_sec,
    }
    await trail.record(
        author_of(record),
        "bulk.start",
        ChangeTarget("bulk", record.id),
        None,
        after,
        entry_id=entry_id(record.id),
    )


def author_of(record: BulkRecord) -> Caller:
    """Items are acted on with the rights of whoever started the operation."""
    return Caller(record.tenant_id, record.api_key_id, record.origin)
