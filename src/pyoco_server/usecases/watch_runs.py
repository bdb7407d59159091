"""Follow the list of runs: how many there are in each status, and every run that changes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from msgspec import Struct

from pyoco_server.domain.listing import RunSummary
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.usecases.callers import Caller, may_see
from pyoco_server.usecases.ports import Change, RunIndex
from pyoco_server.usecases.watch_hub import ListNews, ListWatcher, WatchHub
from pyoco_server.usecases.watch_run import HEARTBEAT_SEC

GATHER_SEC = 0.2
"""Between two events: thousands of changes in a second are a few events, and the eye sees no difference."""


NOTHING = ListNews([], [], is_partial=False)


class ListChange(Struct, frozen=True):
    items: list[RunSummary]
    removed: list[str]
    counts: dict[RunStatus, int]
    is_partial: bool = False
    """More has changed than is told here: the list has to be read again."""


class WatchRuns:
    def __init__(self, index: RunIndex, hub: WatchHub) -> None:
        self._index = index
        self._hub = hub

    @asynccontextmanager
    async def watching(self, caller: Caller) -> AsyncIterator[AsyncIterator[ListChange]]:
        """A place among the watchers, and what is seen from it. Raises GatewayOverloaded."""
        with self._hub.watching_list(lambda change: self._sees(caller, change)) as watcher:
            async with aclosing(self._events(caller, watcher)) as events:
                yield events

    async def _events(self, caller: Caller, watcher: ListWatcher) -> AsyncGenerator[ListChange, None]:
        """First the counts alone: whoever reads the list after that misses nothing."""
        yield self._change(caller, NOTHING)
        while not watcher.is_over:
            news = await watcher.next(HEARTBEAT_SEC)
            if not watcher.is_over:
                yield self._change(caller, news or NOTHING)
                await asyncio.sleep(GATHER_SEC)

    def _change(self, caller: Caller, news: ListNews) -> ListChange:
        return ListChange(news.changed, news.removed, self._index.counts(caller.tenant_id), news.is_partial)

    def _sees(self, caller: Caller, change: Change[RunSnapshot]) -> bool:
        if caller.tenant_id is None:
            return True
        if change.value is None:  # the index forgets it after the watchers are told
            return self._index.is_of(change.key, caller.tenant_id)
        return may_see(caller, change.value)
