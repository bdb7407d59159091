"""Follow the feeds of limits: definitions, holders, and runs whose limits have to be determined again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from pyoco_server.domain.limits.holders import Holders, KeyId
from pyoco_server.domain.limits.model import LimitRecord, limits_anew
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.limits.board import LimitBoard
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Change, Feed, FeedBatch, Revision, Versioned

log = get_logger(__name__)

SORT_AT_ONCE = 50
RETRY_SEC = 0.5
START_PATIENCE_SEC = 5.0
"""How long a submit waits for the definitions of limits after a start."""


class FollowLimits:
    def __init__(
        self,
        board: LimitBoard,
        definitions: Feed[LimitRecord],
        holders: Feed[Holders],
        runs: RunStore,
        runs_known: Callable[[], Awaitable[None]],
        active: Callable[[], Iterable[str]],
    ) -> None:
        """`runs_known`: waits until the feed of runs has shown everything that was stored at the start.

        `active`: ids of the runs that have not ended.
        """
        self._active = active
        self._board = board
        self._definitions = definitions
        self._holders = holders
        self._runs = runs
        self._runs_known = runs_known
        self._has_definitions = asyncio.Event()
        self._has_holders = asyncio.Event()
        self._ids: dict[str, KeyId] = {}
        """Of records, by their keys in the store."""

    @property
    def is_caught_up(self) -> bool:
        return self._has_definitions.is_set() and self._has_holders.is_set()

    async def definitions_known(self) -> None:
        """Raises NatsUnavailable: without them a run might get past its limits."""
        if self._has_definitions.is_set():
            return
        try:
            async with asyncio.timeout(START_PATIENCE_SEC):
                await self._has_definitions.wait()
        except TimeoutError:
            raise NatsUnavailable("nats unavailable: limits are not read yet") from None

    async def ready(self) -> None:
        """Until everything is known that was stored at the start."""
        await self._has_definitions.wait()
        await self._has_holders.wait()
        await self._runs_known()

    async def run_definitions(self) -> None:
        async for batch in self._definitions.follow(None):
            self._take_definitions(batch)
            await asyncio.sleep(0)

    def _take_definitions(self, batch: FeedBatch[LimitRecord]) -> None:
        if batch.is_reset:
            for key in self._board.definitions.all_keys():
                self._board.forget_definition(key)
        for change in batch.changes:
            if change.value is None:
                self._board.forget_definition(change.key, change.revision)
            else:
                self._board.note_definition(change.key, Versioned(change.value, Revision(change.revision)))
        self._board.definitions_noted()
        if batch.is_caught_up:
            self._has_definitions.set()

    async def run_holders(self) -> None:
        async for batch in self._holders.follow(None):
            if batch.is_reset:
                self._board.forget_records()
                self._ids.clear()
            for change in batch.changes:
                self._take_holders(change)
            if batch.is_caught_up:
                self._has_holders.set()
            await asyncio.sleep(0)

    def _take_holders(self, change: Change[Holders]) -> None:
        if change.value is not None:
            self._ids[change.key] = change.value.id
            self._board.note_record(Versioned(change.value, Revision(change.revision)))
        elif change.key in self._ids:
            self._board.forget_record(self._ids.pop(change.key), change.revision)

    # Sort again

    async def run_sorting(self) -> None:
        while True:
            await self._board.sorting.wait()
            self._board.sorting.clear()
            await self._has_definitions.wait()
            await self._read_active()
            while unsorted := self._board.unsorted()[:SORT_AT_ONCE]:
                try:
                    await asyncio.gather(*(self._sort(run_id) for run_id in unsorted))
                except NatsUnavailable as error:
                    log.warning(
                        "runs are not sorted by their limits yet", action="limit.sort", exc_info=error
                    )
                    await asyncio.sleep(RETRY_SEC)

    async def _read_active(self) -> None:
        """Runs that were accepted before their limits were defined."""
        while tenants := self._board.definitions.unread():
            try:
                await self._runs_known()
                ids = [run_id for run_id in self._active() if self._board.run(run_id) is None]
                for start in range(0, len(ids) if any(tenants.values()) else 0, SORT_AT_ONCE):
                    await self._note_active(ids[start : start + SORT_AT_ONCE])
                self._board.have_read(tenants)
            except NatsUnavailable as error:
                log.warning("active runs are not counted yet", action="limit.sort", exc_info=error)
                await asyncio.sleep(RETRY_SEC)

    async def _note_active(self, run_ids: list[str]) -> None:
        for stored in await asyncio.gather(*map(self._runs.get, run_ids)):
            if stored is not None and not stored.value.status.is_terminal:
                self._board.note_active(stored.value, stored.revision)

    async def _sort(self, run_id: str) -> None:
        stored = await self._runs.get(run_id)
        known = self._board.run(run_id)
        if known is None:
            return
        if stored is None:
            self._board.end(run_id, known.revision)
            return
        definitions = self._board.definitions
        rules = definitions.rules(known.tenant_id)
        limits = [limit.value for limit in definitions.limits(known.tenant_id).values()]
        found = limits_anew(stored.value, limits)
        keys = tuple(KeyId(known.tenant_id, one.limit, one.key) for one in found)
        self._board.sorted_as(run_id, keys, rules)
