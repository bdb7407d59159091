"""Watching runs: one feed for many watchers, each of which receives the newest state without a backlog."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from itertools import chain

from msgspec import Struct

from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.listing import RunFilter, RunSummary, changed_at, is_beat, summary
from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import GatewayOverloaded, RunNotFound
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.fleet import FollowWorkers
from pyoco_server.usecases.ports.runs import RunIndex, RunStore, TaskLogs
from pyoco_server.usecases.ports.stores import Change, Clock, Revision, Versioned

MAX_LINES_WAITING = 1000
"""Buffered lines of a slow watcher; older ones are dropped and remain in the log."""
MAX_RUNS_WAITING = 500
"""Buffered runs of a slow list watcher; above this it has to read the list again."""


class News(Struct, frozen=True):
    snapshot: Versioned[RunSnapshot] | None
    lines: list[LogLine]


class Watcher:
    """The newest state of one run. A slow reader misses intermediate states, never the last one."""

    def __init__(self) -> None:
        self._snapshot: Versioned[RunSnapshot] | None = None
        self._lines: deque[LogLine] = deque(maxlen=MAX_LINES_WAITING)
        self._arrived = asyncio.Event()
        self.is_over = False
        """The end of the watch: the run was removed, or the gateway stops."""

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
        """The next news; None after `timeout` seconds without any."""
        await _set_within(self._arrived, timeout)
        self._arrived.clear()
        if self._snapshot is None and not self._lines:
            return None
        news = News(self._snapshot, list(self._lines))
        self._snapshot = None
        self._lines.clear()
        return news


class ListNews(Struct, frozen=True):
    """Changes of all runs since the last read."""

    changed: list[RunSummary]
    removed: list[str]
    is_partial: bool
    """The buffer overflowed; the list has to be read again."""


class ListWatcher:
    """The newest state of every changed run, in a bounded buffer."""

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
        """The next news; None after `timeout` seconds without any."""
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
        """The gateway stops; clients should reconnect to another."""
        self._is_closed = True
        self.send_home()

    def send_home(self) -> None:
        """End every watch. A client that reconnects receives the current state."""
        everybody: Iterable[Watcher | ListWatcher] = chain(self._list_watchers, *self._watchers.values())
        for watcher in everybody:
            watcher.end()

    def tell(
        self, changes: Iterable[Change[RunSnapshot]], is_known: Callable[[Change[RunSnapshot]], bool]
    ) -> None:
        """`is_known`: lists already have this change, apart from its heartbeat."""
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
        """Skip heartbeats, or lists would be sent again every second."""
        if change.value is not None and is_beat(change.value) and is_known(change):
            return
        shown = None if change.value is None else _shown(change.key, change.value, change.stored_at)
        for watcher in self._list_watchers:
            watcher.tell(change, shown)


def _shown(key: str, run: RunSnapshot, stored_at: float | None) -> RunSummary:
    # The key identifies the run, whatever another implementation wrote into the record.
    return summary(run, key, changed_at(run, stored_at))


# Watch one run: the current state, then every change until it ends.

HEARTBEAT_SEC = 1.5
"""Heartbeat interval of the contract; clients time out after some seconds of silence."""


class Heartbeat(Struct, frozen=True):
    at: float


WatchEvent = Versioned[RunSnapshot] | list[LogLine] | Heartbeat


class WatchRequest(Struct, frozen=True, kw_only=True):
    run_id: str
    since: float | None = None
    """Skip states updated before this time."""
    last_revision: Revision | None = None
    """The last event the client has seen."""
    timeout: float | None = None


class WatchRun:
    def __init__(
        self, runs: RunStore, task_logs: TaskLogs, hub: WatchHub, clock: Clock, workers: FollowWorkers
    ) -> None:
        self._workers = workers
        self._runs = runs
        self._task_logs = task_logs
        self._hub = hub
        self._clock = clock

    async def check(self, run_id: str, caller: Caller) -> None:
        """Raises RunNotFound before the stream starts, because a started stream cannot return 404."""
        current = await self._runs.get(run_id) if is_run_id(run_id) else None
        if current is None or not may_see(caller, current.value):
            raise RunNotFound

    @asynccontextmanager
    async def watching(self, wanted: WatchRequest) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Register a watcher and return its events. Raises GatewayOverloaded."""
        with self._hub.watching(wanted.run_id) as watcher:
            async with aclosing(self._events(wanted, watcher)) as events:
                yield events

    def _refreshed(self, event: WatchEvent) -> WatchEvent:
        if not isinstance(event, Versioned):
            return event
        return Versioned(self._workers.refreshed(event.value), event.revision)

    async def _events(self, wanted: WatchRequest, watcher: Watcher) -> AsyncGenerator[WatchEvent, None]:
        current = await self._runs.get(wanted.run_id)
        if current is None:
            return
        if current.value.status.is_terminal:
            if _is_news(current, wanted):
                yield self._refreshed(current)
            return
        # Before the first event, so that a client that reads the log after it misses no line.
        stop = await self._task_logs.follow(wanted.run_id, watcher.printed)
        try:
            if _is_news(current, wanted):
                yield self._refreshed(current)
            async for event in self._changes(watcher, current.revision, wanted.timeout):
                yield self._refreshed(event)
        finally:
            await stop()

    async def _changes(
        self, watcher: Watcher, seen: Revision, patience: float | None
    ) -> AsyncGenerator[WatchEvent, None]:
        loop = asyncio.get_running_loop()
        deadline = None if patience is None else loop.time() + patience
        while not watcher.is_over:
            left = HEARTBEAT_SEC if deadline is None else min(HEARTBEAT_SEC, deadline - loop.time())
            if left <= 0:
                return
            news = await watcher.next(left)
            if news is None:
                if not watcher.is_over:
                    yield Heartbeat(self._clock())
                continue
            if news.lines:  # before the snapshot: what was printed belongs in front of the end
                yield news.lines
            if news.snapshot is not None and news.snapshot.revision > seen:
                seen = news.snapshot.revision
                yield news.snapshot
                if news.snapshot.value.status.is_terminal:
                    return


def _is_news(current: Versioned[RunSnapshot], wanted: WatchRequest) -> bool:
    if wanted.last_revision is not None:
        return current.revision > wanted.last_revision
    return wanted.since is None or current.value.updated_at > wanted.since


# Watch the run list: counts by status, and every changed run.

GATHER_SEC = 0.2
"""Minimum time between two events, so that thousands of changes per second become a few events."""


MAX_COUNTED = 10_000
"""Runs of a status within a filter. Unlike those of all runs, they are counted for every event."""
NOTHING = ListNews([], [], is_partial=False)


class ListChange(Struct, frozen=True):
    items: list[RunSummary]
    removed: list[str]
    counts: dict[RunStatus, int]
    is_partial: bool = False
    """The buffer overflowed; the list has to be read again."""


class WatchRuns:
    def __init__(self, index: RunIndex, hub: WatchHub, workers: FollowWorkers) -> None:
        self._workers = workers
        self._index = index
        self._hub = hub

    @asynccontextmanager
    async def watching(self, caller: Caller, counted: RunFilter) -> AsyncIterator[AsyncIterator[ListChange]]:
        """Register a watcher and return its events. Raises GatewayOverloaded.

        `counted`: the runs to count, by flow, tag and times. Changes are those of all runs.
        """
        with self._hub.watching_list(lambda change: self._sees(caller, change)) as watcher:
            async with aclosing(self._events(counted, watcher)) as events:
                yield events

    async def _events(self, counted: RunFilter, watcher: ListWatcher) -> AsyncGenerator[ListChange, None]:
        """First the counts alone, so that a client that reads the list after them misses nothing."""
        yield self._change(counted, NOTHING)
        while not watcher.is_over:
            news = await watcher.next(HEARTBEAT_SEC)
            if not watcher.is_over:
                yield self._change(counted, news or NOTHING)
                await asyncio.sleep(GATHER_SEC)

    def _change(self, counted: RunFilter, news: ListNews) -> ListChange:
        changed = [self._workers.refreshed(run) for run in news.changed]
        return ListChange(changed, news.removed, self._counts(counted), news.is_partial)

    def _counts(self, counted: RunFilter) -> dict[RunStatus, int]:
        if counted == RunFilter(tenant_id=counted.tenant_id):
            return self._index.counts(counted.tenant_id)
        return self._index.counts_within(counted, MAX_COUNTED)

    def _sees(self, caller: Caller, change: Change[RunSnapshot]) -> bool:
        if caller.tenant_id is None:
            return True
        if change.value is None:  # the index forgets it after the watchers are notified
            return self._index.is_of(change.key, caller.tenant_id)
        return may_see(caller, change.value)
