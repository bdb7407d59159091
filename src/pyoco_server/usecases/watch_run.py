"""Follow one run: what it is now, then every change, until it has ended."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from msgspec import Struct

from pyoco_server.domain.names import is_run_id
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.domain.task_logs import LogLine
from pyoco_server.errors import RunNotFound
from pyoco_server.usecases.callers import Caller, may_see
from pyoco_server.usecases.ports import Clock, Revision, RunStore, TaskLogs, Versioned
from pyoco_server.usecases.watch_hub import Watcher, WatchHub

HEARTBEAT_SEC = 1.5
"""Clients give up after some seconds of silence; two seconds is what they were promised."""


class Heartbeat(Struct, frozen=True):
    at: float


WatchEvent = Versioned[RunSnapshot] | list[LogLine] | Heartbeat


class WatchRequest(Struct, frozen=True, kw_only=True):
    run_id: str
    since: float | None = None
    """Do not repeat what was not updated after this."""
    last_revision: Revision | None = None
    """The last the client has seen."""
    timeout: float | None = None


class WatchRun:
    def __init__(self, runs: RunStore, task_logs: TaskLogs, hub: WatchHub, clock: Clock) -> None:
        self._runs = runs
        self._task_logs = task_logs
        self._hub = hub
        self._clock = clock

    async def check(self, run_id: str, caller: Caller) -> None:
        """Raises RunNotFound: a stream that has begun can only end, not answer 404."""
        current = await self._runs.get(run_id) if is_run_id(run_id) else None
        if current is None or not may_see(caller, current.value):
            raise RunNotFound

    @asynccontextmanager
    async def watching(self, wanted: WatchRequest) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """A place among the watchers, and what is seen from it. Raises GatewayOverloaded."""
        with self._hub.watching(wanted.run_id) as watcher:
            async with aclosing(self._events(wanted, watcher)) as events:
                yield events

    async def _events(self, wanted: WatchRequest, watcher: Watcher) -> AsyncGenerator[WatchEvent, None]:
        current = await self._runs.get(wanted.run_id)
        if current is None:
            return
        if current.value.status.is_terminal:
            if _is_news(current, wanted):
                yield current
            return
        # Before the first event: who reads the log behind it misses no line.
        stop = await self._task_logs.follow(wanted.run_id, watcher.printed)
        try:
            if _is_news(current, wanted):
                yield current
            async for event in self._changes(watcher, current.revision, wanted.timeout):
                yield event
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
