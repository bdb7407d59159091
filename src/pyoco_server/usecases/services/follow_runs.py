"""Follow the feed of runs: update the index, the watchers and the run metrics."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.usecases.ports.runs import RunIndex
from pyoco_server.usecases.ports.stores import Change, Clock, Feed, FeedBatch, Revision
from pyoco_server.usecases.runs.watch import WatchHub

# Run metrics: durations, waits, redeliveries.


class RunMeter(Protocol):
    """Receives the metrics."""

    def started(self, queue_wait_sec: float) -> None: ...
    def redelivered(self) -> None: ...
    def ended(self, status: RunStatus, duration_sec: float | None) -> None: ...


def record_run_metrics(changes: Iterable[Change[RunSnapshot]], meter: RunMeter) -> None:
    """Call once per change; the times in a snapshot show what changed."""
    for change in changes:
        run = change.value
        if run is None:
            continue
        if run.status.is_terminal:
            meter.ended(run.status, _duration(run))
        elif _is_claim(run):
            _observe_claim(run, meter)


def _is_claim(run: RunSnapshot) -> bool:
    """Whether this is the worker's claim, without heartbeat or progress since."""
    return run.status is RunStatus.RUNNING and not run.tasks and run.heartbeat_at == run.start_time


def _observe_claim(run: RunSnapshot, meter: RunMeter) -> None:
    if run.attempt is not None and run.attempt > 1:
        meter.redelivered()
    elif run.start_time is not None and run.submitted_at is not None:
        meter.started(max(0.0, run.start_time - run.submitted_at))


def _duration(run: RunSnapshot) -> float | None:
    if run.start_time is None or run.end_time is None:
        return None
    return max(0.0, run.end_time - run.start_time)


CHUNK = 100
"""Changes indexed before the event loop continues with requests."""
EXPIRE_INTERVAL_SEC = 5.0


class FollowRuns:
    def __init__(
        self,
        feed: Feed[RunSnapshot],
        index: RunIndex,
        hub: WatchHub,
        clock: Clock,
        meter: RunMeter,
        look: Callable[[Sequence[Change[RunSnapshot]]], None] = lambda _: None,
        *,
        expire_interval_sec: float = EXPIRE_INTERVAL_SEC,
    ) -> None:
        """`look` is called for every change before it is indexed."""
        self._look = look
        self._meter = meter
        self._feed = feed
        self._index = index
        self._hub = hub
        self._clock = clock
        self._expire_interval_sec = expire_interval_sec
        self._seen = Revision(0)
        self._waiting: list[tuple[Revision, asyncio.Future[None]]] = []
        self.is_caught_up = False
        """Whether everything stored at the start has been read."""

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    async def run(self) -> None:
        async for batch in self._feed.follow(self._index.position):
            await self._take(batch)

    async def keep_expiring(self) -> None:
        while True:
            await asyncio.sleep(self._expire_interval_sec)
            self._index.expire(self._clock())

    async def reached(self, revision: Revision, patience: float) -> None:
        """Wait until `revision` was read, or for `patience` seconds, so that callers see their own writes."""
        if self._seen >= revision:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, waiter))
        await asyncio.wait({waiter}, timeout=patience)
        waiter.cancel()

    async def _take(self, batch: FeedBatch[RunSnapshot]) -> None:
        if batch.is_reset:
            self._index.clear()
            self._seen = Revision(0)
            if self.is_caught_up:  # the revisions that watchers know mean nothing any more
                self._hub.send_home()
            self.is_caught_up = False
        self._hub.tell(batch.changes, self._index.is_known)
        self._look(batch.changes)
        if self.is_caught_up:  # history was counted when it was news
            record_run_metrics(batch.changes, self._meter)
        await self._put_in_index(batch)
        self._seen = batch.position.last_revision
        self._waiting = [
            (wanted, waiter) for wanted, waiter in self._waiting if not self._wake(wanted, waiter)
        ]
        self.is_caught_up = self.is_caught_up or batch.is_caught_up

    async def _put_in_index(self, batch: FeedBatch[RunSnapshot]) -> None:
        changes: Sequence[Change[RunSnapshot]] = batch.changes
        for start in range(0, len(changes), CHUNK):
            chunk = changes[start : start + CHUNK]
            is_last = start + CHUNK >= len(changes)
            # The position covers only what is indexed, so that the rest is read again after a crash.
            reached = chunk[-1].revision
            position = batch.position if is_last else batch.position.at(reached)
            self._index.apply(chunk, position)
            if not is_last:
                await asyncio.sleep(0)

    def _wake(self, wanted: Revision, waiter: asyncio.Future[None]) -> bool:
        if self._seen < wanted and not waiter.done():
            return False
        if not waiter.done():
            waiter.set_result(None)
        return True
