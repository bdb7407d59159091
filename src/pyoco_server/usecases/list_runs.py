"""A page of runs, from the index."""

import asyncio

from msgspec import Struct

from pyoco_server.domain.listing import RunFilter, decode_cursor, encode_cursor
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.usecases.own_writes import OwnWrites
from pyoco_server.usecases.ports import RunIndex, RunStore


class RunPage(Struct, frozen=True):
    items: list[bytes] | list[RunSnapshot]
    """Summaries as JSON; snapshots when details were asked for."""
    next_cursor: str | None


class ListRuns:
    def __init__(self, runs: RunStore, index: RunIndex, own_writes: OwnWrites) -> None:
        self._runs = runs
        self._index = index
        self._own_writes = own_writes

    async def __call__(self, wanted: RunFilter, cursor: str | None, limit: int, *, full: bool) -> RunPage:
        after = None if cursor is None else decode_cursor(cursor, wanted)
        await self._own_writes.are_visible()
        page = self._index.page(wanted, after, limit)
        next_cursor = None if page.more_after is None else encode_cursor(page.more_after, wanted)
        items = await self._details(page.run_ids) if full else page.summaries
        return RunPage(items, next_cursor)

    async def _details(self, run_ids: list[str]) -> list[RunSnapshot]:
        """A run that was removed a moment ago is left out: the page is of what exists."""
        stored = await asyncio.gather(*(self._runs.get(run_id) for run_id in run_ids))
        return [entry.value for entry in stored if entry is not None]
