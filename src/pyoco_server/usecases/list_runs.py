"""A page of runs, from the index."""

import asyncio

from msgspec import Struct

from pyoco_server.domain.listing import Place, RunFilter, decode_cursor, encode_cursor
from pyoco_server.domain.runs import RunSnapshot, replace
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
        items = await self._details(page.places) if full else page.summaries
        return RunPage(items, next_cursor)

    async def _details(self, places: list[Place]) -> list[RunSnapshot]:
        """A run that was removed a moment ago is left out: the page is of what exists."""
        stored = await asyncio.gather(*(self._runs.get(place.run_id) for place in places))
        return [
            replace(entry.value, updated_at=place.updated_at)
            for entry, place in zip(stored, places, strict=True)
            if entry is not None
        ]
