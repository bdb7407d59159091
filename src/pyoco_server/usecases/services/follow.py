"""Follow the feeds of runs and executions, and check that NATS stores writes.

Runs first: a change of one updates the index, the watchers and the run metrics.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from pyoco_server.domain.executions.events import ORCHESTRATOR, Commit
from pyoco_server.domain.executions.records import LoggedCommit, summarise
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import IndexLost, NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.concurrency import cancelled, wait_at_most
from pyoco_server.usecases.executions.commands import is_execution_id
from pyoco_server.usecases.executions.query import ExecutionHub
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.ports.gateway import ExecutionIndex
from pyoco_server.usecases.ports.runs import RunIndex
from pyoco_server.usecases.ports.stores import (
    Change,
    Clock,
    Feed,
    FeedBatch,
    FeedPosition,
    Revision,
    Storage,
)
from pyoco_server.usecases.runs.watch import WatchHub
from pyoco_server.usecases.services.orchestrator import Orchestrate
from pyoco_server.usecases.services.progress import Reading

log = get_logger(__name__)

# Run metrics: durations, waits, redeliveries.


class RunMeter(Protocol):
    """Receives the metrics."""

    def started(self, queue_wait_sec: float, *, is_delayed: bool) -> None:
        """`is_delayed`: the wait began when a delay was over."""
        ...

    def redelivered(self) -> None: ...
    def ended(self, status: RunStatus, duration_sec: float | None) -> None: ...


def record_run_metrics(changes: Iterable[Change[RunSnapshot]], meter: RunMeter) -> None:
    """Call once per change; the times in a snapshot show what changed."""
    for change in changes:
        run = change.value
        if run is None:
            continue
        if run.status.is_terminal and run.retried_as is None:  # a link to its retry is no second end
            meter.ended(run.status, _duration(run))
        elif _is_claim(run):
            _observe_claim(run, meter)


def _is_claim(run: RunSnapshot) -> bool:
    """Whether this is the worker's claim, without heartbeat or progress since."""
    has_no_progress = len(run.tasks) == len(run.kept_tasks or ())
    return run.status is RunStatus.RUNNING and has_no_progress and run.heartbeat_at == run.start_time


def _observe_claim(run: RunSnapshot, meter: RunMeter) -> None:
    if run.attempt is not None and run.attempt > 1:
        meter.redelivered()
    elif run.start_time is not None and run.submitted_at is not None:
        due_at = run.submitted_at if run.not_before is None else run.not_before
        meter.started(max(0.0, run.start_time - due_at), is_delayed=run.not_before is not None)


def _duration(run: RunSnapshot) -> float | None:
    if run.start_time is None or run.end_time is None:
        return None
    return max(0.0, run.end_time - run.start_time)


RUNS_AT_ONCE = 100
"""Changes indexed before the event loop continues with requests."""
EXPIRE_INTERVAL_SEC = 5.0


class FollowRuns:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        feed: Feed[RunSnapshot],
        index: RunIndex,
        hub: WatchHub,
        clock: Clock,
        meter: RunMeter,
        look: Callable[[Sequence[Change[RunSnapshot]]], None] = lambda _: None,
        *,
        forget: Callable[[], None] = lambda: None,
        expire_interval_sec: float = EXPIRE_INTERVAL_SEC,
    ) -> None:
        """`look` is called for every change before it is indexed, `forget` if all that it saw is void."""
        self._look = look
        self._forget = forget
        self._reading = Reading("runs", index)
        self._meter = meter
        self._feed = feed
        self._index = index
        self._hub = hub
        self._clock = clock
        self._expire_interval_sec = expire_interval_sec
        self._seen = Revision(0)
        self._waiting: list[tuple[Revision, asyncio.Future[None]]] = []

    @property
    def is_caught_up(self) -> bool:
        """Whether everything stored at the start has been read."""
        return self._reading.is_caught_up

    async def caught_up(self) -> None:
        await self._reading.caught_up()

    @property
    def progress(self) -> tuple[int, int] | None:
        """Runs read and to be read; None if all are read."""
        return self._reading.progress

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    async def run(self) -> None:
        await self._reading.run(self._read)

    async def _read(self) -> None:
        async for batch in self._feed.follow(self._index.position):
            await self._take(batch)

    async def keep_expiring(self) -> None:
        while True:
            await asyncio.sleep(self._expire_interval_sec)
            with suppress(IndexLost):
                self._index.expire(self._clock())
            self._reading.stop_if_lost()

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
            self._index.clear(batch.horizon)
            self._forget()
            self._seen = Revision(0)
            if self.is_caught_up:  # the revisions that watchers know mean nothing any more
                self._hub.send_home()
            self._reading.begin()
        self._hub.tell(batch.changes, self._index.is_known)
        self._look(batch.changes)
        if self.is_caught_up:  # history was counted when it was news
            record_run_metrics(batch.changes, self._meter)
        await self._put_in_index(batch)
        self._seen = batch.position.last_revision
        self._waiting = [
            (wanted, waiter) for wanted, waiter in self._waiting if not self._wake(wanted, waiter)
        ]
        self._reading.note(len(batch.changes), batch.pending, is_caught_up=batch.is_caught_up)

    async def _put_in_index(self, batch: FeedBatch[RunSnapshot]) -> None:
        changes: Sequence[Change[RunSnapshot]] = batch.changes
        for start in range(0, len(changes), RUNS_AT_ONCE):
            chunk = changes[start : start + RUNS_AT_ONCE]
            is_last = start + RUNS_AT_ONCE >= len(changes)
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


# Executions: the feed of commits keeps the gateway's view of all of them up to date.

EXECUTIONS_AT_ONCE = 200
LOST_CHECK_SEC = 5.0


class FollowExecutions:
    def __init__(
        self,
        feed: Feed[LoggedCommit],
        index: ExecutionIndex,
        records: ExecutionRepository,
        orchestrate: Orchestrate,
        hub: ExecutionHub,
        *,
        lost_check_sec: float = LOST_CHECK_SEC,
    ) -> None:
        self._lost_check_sec = lost_check_sec
        self._feed = feed
        self._index = index
        self._records = records
        self._orchestrate = orchestrate
        self._hub = hub
        self._reading = Reading("executions", index)
        self._somebody_waits = asyncio.Event()
        self._looks: list[Callable[[LoggedCommit], None]] = []

    def on_commits(self, look: Callable[[LoggedCommit], None]) -> None:
        """`look` gets every commit."""
        self._looks.append(look)

    @property
    def is_caught_up(self) -> bool:
        """Whether all executions that existed at the start are known."""
        return self._reading.is_caught_up

    @property
    def progress(self) -> tuple[int, int] | None:
        """Executions read and to be read; None if all are read."""
        return self._reading.progress

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    async def run(self) -> None:
        checking = asyncio.ensure_future(self._keep_checking())
        try:
            await self._reading.run(self._read)
        finally:
            await cancelled(checking)

    async def _read(self) -> None:
        async for batch in self._feed.follow(self._index.position):
            await self._take(batch)

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self._lost_check_sec)
            self._reading.stop_if_lost()

    async def orchestrate(self) -> None:
        """The orchestrator needs all executions."""
        await self._reading.caught_up()
        await self._orchestrate.run()

    async def next_wait(self, seconds: float) -> bool:
        """Wait for news of an execution with a waiting node; False after a timeout."""
        await wait_at_most(self._somebody_waits, seconds)
        has_come = self._somebody_waits.is_set()
        self._somebody_waits.clear()
        return has_come

    async def _take(self, batch: FeedBatch[LoggedCommit]) -> None:
        if batch.is_reset:
            self._index.clear()
            self._records.forget_all()
            self._reading.begin()
        for start in range(0, max(1, len(batch.changes)), EXECUTIONS_AT_ONCE):
            chunk = batch.changes[start : start + EXECUTIONS_AT_ONCE]
            is_last = start + EXECUTIONS_AT_ONCE >= len(batch.changes)
            await self._take_some(chunk, batch.position if is_last else batch.position.at(chunk[-1].revision))
            if not is_last:
                await asyncio.sleep(0)
        self._reading.note(len(batch.changes), batch.pending, is_caught_up=batch.is_caught_up)

    async def _take_some(self, changes: Sequence[Change[LoggedCommit]], position: FeedPosition) -> None:
        """The position covers only what is indexed, so that the rest is read again after a crash.

        Nothing is awaited in between: an orchestrator that begins finds each change in the index, or gets it.
        """
        applied = [await self._made_good(change) for change in changes]
        for change in changes:
            self._tell(change)
        self._index.apply(applied, position)
        if any(change.value is not None and change.value.summary.waits for change in applied):
            self._somebody_waits.set()

    async def _made_good(self, change: Change[LoggedCommit]) -> Change[LoggedCommit]:
        """Data that is not a commit leaves the execution unchanged."""
        if change.value is not None or not is_execution_id(change.key):
            return change
        record = await self._records.fresh(change.key)
        if record is None:
            return change
        nothing = Commit(
            execution_id=change.key,
            command_id="",
            first_sequence=record.state.version + 1,
            at=record.state.updated_at,
            actor=ORCHESTRATOR,
            payloads=(),
        )
        self._orchestrate.nudge(nothing)
        return Change(change.key, change.revision, LoggedCommit(nothing, summarise(record.state)), None)

    def _tell(self, change: Change[LoggedCommit]) -> None:
        logged = change.value
        if logged is None:
            return
        is_ours = self._orchestrate.attends_to(change.key)
        if self._records.heard(logged, Revision(change.revision), is_ours=is_ours):
            self._orchestrate.nudge(logged.commit)
        self._hub.ring(change.key)
        for look in self._looks:
            look(logged)


# Storage: a test write, because a connection alone proves nothing.

STORAGE_CHECK_SEC = 5.0


class CheckStorage:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.is_ok: bool | None = None
        """None: not checked yet."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes by stream, at most some seconds old."""
        return self._storage.sizes

    async def run(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(STORAGE_CHECK_SEC)

    async def check(self) -> None:
        was_ok = self.is_ok
        try:
            await self._storage.check()
        except NatsUnavailable as error:
            self.is_ok = False
            if was_ok is not False:
                log.exception(
                    "NATS does not store writes; not ready",
                    action="storage.failed",
                    **error.ids,
                )
            return
        self.is_ok = True
        if was_ok is False:
            log.info("NATS stores writes again", action="storage.ok")
