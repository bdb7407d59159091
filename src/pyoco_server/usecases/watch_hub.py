"""One feed, many watchers: each is told of the newest snapshot of its run, and never has to catch up."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.domain.task_logs import LogLine
from pyoco_server.errors import TooManyWatchers
from pyoco_server.usecases.ports import Change, Versioned

MAX_LINES_WAITING = 1000
"""Printed lines for a watcher that does not read; older ones are dropped here, the log has them."""


class News(Struct, frozen=True):
    snapshot: Versioned[RunSnapshot] | None
    lines: list[LogLine]


class Watcher:
    """The newest news of one run. A slow reader misses steps in between, never the last one."""

    def __init__(self) -> None:
        self._snapshot: Versioned[RunSnapshot] | None = None
        self._lines: deque[LogLine] = deque(maxlen=MAX_LINES_WAITING)
        self._arrived = asyncio.Event()
        self.is_removed = False
        """Whether there is no such run any more."""

    def tell(self, snapshot: Versioned[RunSnapshot]) -> None:
        self._snapshot = snapshot
        self._arrived.set()

    def printed(self, lines: Iterable[LogLine]) -> None:
        self._lines.extend(lines)
        self._arrived.set()

    def removed(self) -> None:
        self.is_removed = True
        self._arrived.set()

    def wake(self) -> None:
        self._arrived.set()

    async def next(self, timeout: float) -> News | None:  # noqa: ASYNC109
        """What is new, or None when nothing happened for `timeout` seconds."""
        if not self._arrived.is_set():
            waiter = asyncio.ensure_future(self._arrived.wait())
            try:
                await asyncio.wait({waiter}, timeout=timeout)
            finally:
                waiter.cancel()
        self._arrived.clear()
        if self._snapshot is None and not self._lines:
            return None
        news = News(self._snapshot, list(self._lines))
        self._snapshot = None
        self._lines.clear()
        return news


class WatchHub:
    def __init__(self, max_watchers: int) -> None:
        self._max_watchers = max_watchers
        self.is_closed = False
        self._watchers: dict[str, set[Watcher]] = defaultdict(set)
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self._max_watchers

    @contextmanager
    def watching(self, run_id: str) -> Iterator[Watcher]:
        if self.is_full:
            raise TooManyWatchers
        watcher = Watcher()
        self._watchers[run_id].add(watcher)
        self.count += 1
        try:
            yield watcher
        finally:
            self.count -= 1
            self._watchers[run_id].discard(watcher)
            if not self._watchers[run_id]:
                del self._watchers[run_id]

    def close(self) -> None:
        """Wake everybody: the gateway is going away, and their clients should look for another."""
        self.is_closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.wake()

    def tell(self, changes: Iterable[Change[RunSnapshot]]) -> None:
        for change in changes:
            for watcher in self._watchers.get(change.key, ()):
                if change.value is None:
                    watcher.removed()
                else:
                    watcher.tell(Versioned(change.value, change.revision))
