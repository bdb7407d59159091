"""One feed, many watchers: each is told of the newest snapshot of its run, and never has to catch up."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.listing import RunSummary, changed_at, is_beat, summary
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.domain.task_logs import LogLine
from pyoco_server.errors import GatewayOverloaded
from pyoco_server.usecases.ports import Change, Versioned

MAX_LINES_WAITING = 1000
"""Printed lines for a watcher that does not read; older ones are dropped here, the log has them."""
MAX_RUNS_WAITING = 500
"""Changed runs for a watcher of the list that does not read; above it, it has to read the list again."""


class News(Struct, frozen=True):
    snapshot: Versioned[RunSnapshot] | None
    lines: list[LogLine]


class Watcher:
    """The newest news of one run. A slow reader misses steps in between, never the last one."""

    def __init__(self) -> None:
        self._snapshot: Versioned[RunSnapshot] | None = None
        self._lines: deque[LogLine] = deque(maxlen=MAX_LINES_WAITING)
        self._arrived = asyncio.Event()
        self.is_over = False
        """There is nothing more to come: the run was removed, or the gateway stops."""

    def tell(self, snapshot: Versioned[RunSnapshot]) -> None:
        self._snapshot = snapshot
        self._arrived.set()

    def printed(self, lines: Iterable[LogLine]) -> None:
        self._lines.extend(lines)
        self._arrived.set()

    def end(self) -> None:
        self.is_over = True
        self._arrived.set()

    async def next(self, timeout: float) -> News | None:  # noqa: ASYNC109
        """What is new, or None when nothing happened for `timeout` seconds."""
        await _set_within(self._arrived, timeout)
        self._arrived.clear()
        if self._snapshot is None and not self._lines:
            return None
        news = News(self._snapshot, list(self._lines))
        self._snapshot = None
        self._lines.clear()
        return news


class ListNews(Struct, frozen=True):
    """What is new among all runs since the last look."""

    changed: list[RunSummary]
    removed: list[str]
    is_partial: bool
    """More has changed than was kept: the list has to be read again."""


class ListWatcher:
    """The newest state of every run that changed. A slow reader is told less, never more than fits."""

    def __init__(self, sees: Callable[[Change[RunSnapshot]], bool]) -> None:
        self._sees = sees
        self._changed: dict[str, RunSummary | None] = {}
        self._is_partial = False
        self._arrived = asyncio.Event()
        self.is_over = False

    def tell(self, change: Change[RunSnapshot], shown: RunSummary | None) -> None:
        if not self._sees(change):
            return
        if len(self._changed) >= MAX_RUNS_WAITING and change.key not in self._changed:
            self._is_partial = True
        else:
            self._changed[change.key] = shown
        self._arrived.set()

    def end(self) -> None:
        self.is_over = True
        self._arrived.set()

    async def next(self, timeout: float) -> ListNews | None:  # noqa: ASYNC109
        """What is new, or None when nothing happened for `timeout` seconds."""
        await _set_within(self._arrived, timeout)
        self._arrived.clear()
        if not self._changed and not self._is_partial:
            return None
        changed = [shown for shown in self._changed.values() if shown is not None]
        removed = [run_id for run_id, shown in self._changed.items() if shown is None]
        news = ListNews(changed, removed, self._is_partial)
        self._changed, self._is_partial = {}, False
        return news


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    if event.is_set():
        return
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiter}, timeout=seconds)
    finally:
        waiter.cancel()


class WatchHub:
    def __init__(self, max_watchers: int) -> None:
        self._max_watchers = max_watchers
        self._is_closed = False
        self._watchers: dict[str, set[Watcher]] = defaultdict(set)
        self._list_watchers: set[ListWatcher] = set()
        self.count = 0

    @contextmanager
    def watching(self, run_id: str) -> Iterator[Watcher]:
        watcher = Watcher()
        watcher.is_over = self._is_closed
        with self._counted():
            self._watchers[run_id].add(watcher)
            try:
                yield watcher
            finally:
                self._watchers[run_id].discard(watcher)
                if not self._watchers[run_id]:
                    del self._watchers[run_id]

    @contextmanager
    def watching_list(self, sees: Callable[[Change[RunSnapshot]], bool]) -> Iterator[ListWatcher]:
        watcher = ListWatcher(sees)
        watcher.is_over = self._is_closed
        with self._counted():
            self._list_watchers.add(watcher)
            try:
                yield watcher
            finally:
                self._list_watchers.discard(watcher)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self.count >= self._max_watchers:
            raise GatewayOverloaded("too many watchers")
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    def close(self) -> None:
        """The gateway is going away, and its watchers' clients should look for another."""
        self._is_closed = True
        self.send_home()

    def send_home(self) -> None:
        """End every watch. A client that comes back is told what there is now."""
        everybody: Iterable[Watcher | ListWatcher] = chain(self._list_watchers, *self._watchers.values())
        for watcher in everybody:
            watcher.end()

    def tell(
        self, changes: Iterable[Change[RunSnapshot]], is_known: Callable[[Change[RunSnapshot]], bool]
    ) -> None:
        """`is_known`: the lists have this change already, apart from its heartbeat."""
        for change in changes:
            if self._list_watchers:
                self._tell_lists(change, is_known)
            for watcher in self._watchers.get(change.key, ()):
                if change.value is None:
                    watcher.end()
                else:
                    watcher.tell(Versioned(change.value, change.revision))

    def _tell_lists(
        self, change: Change[RunSnapshot], is_known: Callable[[Change[RunSnapshot]], bool]
    ) -> None:
        """A heartbeat alone is no news: lists would be sent again every second."""
        if change.value is not None and is_beat(change.value) and is_known(change):
            return
        shown = None if change.value is None else _shown(change.key, change.value, change.stored_at)
        for watcher in self._list_watchers:
            watcher.tell(change, shown)


def _shown(key: str, run: RunSnapshot, stored_at: float | None) -> RunSummary:
    # The key is what a run is found by, whatever a writer of another make put in the record.
    return summary(replace(run, run_id=key), changed_at(run, stored_at))
