"""The worker: its loop, which takes as many jobs as its executors can run, and its record in the registry.

While flows are tiny, a few jobs are taken ahead.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.fleet import (
    FEATURES,
    LANES,
    SHARES,
    WorkerActivity,
    WorkerRecord,
    WorkerState,
    register,
)
from pyoco_server.domain.inputs import is_tag, is_worker_id
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.wheels import WheelSync
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger, surviving
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.fleet import RegisterWorker
from pyoco_server.usecases.ports.queues import Delivery, JobSource
from pyoco_server.usecases.ports.runs import WorkerBackend
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.worker.figures import CountRuns, Usage, unknown_usage
from pyoco_server.worker.pipeline import Handled, Pipeline, Resolve, receive
from pyoco_server.worker.run_log import REFUSED_PATIENCE_SEC
from pyoco_server.worker.session import FlowExecutors
from pyoco_server.worker.wheels import KeepWheels

log = get_logger(__name__)

WAIT_SEC = 5.0
"""Timeout of one wait for a job; no latency, because a job ends the wait."""
AHEAD_PER_SLOT = 2
FULL_SEC = 0.05
"""How long a full worker keeps its request for jobs open."""


class SideWorkEnded(Exception):
    """A required background task has ended: a worker without heartbeats must not take jobs."""


class Worker:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        config: NatsBackendConfig,
        backend: WorkerBackend,
        executors: FlowExecutors,
        worker_id: str,
        tags: Sequence[str],
        wheel_sync: KeepWheels | None = None,
        *,
        clock: Clock,
        instance_id: str,
        log_patience_sec: float = REFUSED_PATIENCE_SEC,
        resolve: Resolve | None = None,
        usage: Callable[[], Usage] = unknown_usage,
        values_dir: str = "",
    ) -> None:
        """`usage`: of this process, for metrics. `values_dir`: for large values, of this process alone."""
        check_names(worker_id, tags)
        self.worker_id = worker_id
        self.instance_id = instance_id
        self.tags = tuple(dict.fromkeys(tags))
        self._clock = clock
        self._counts = CountRuns(clock(), usage)
        self._backend = backend
        self._executors = executors
        self._active: set[asyncio.Task[Handled]] = set()
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._pipeline = Pipeline(
            backend,
            executors,
            config,
            clock,
            self.worker_id,
            self.instance_id,
            log_patience_sec=log_patience_sec,
            resolve=resolve,
            values_dir=values_dir,
        )
        self._registration = Registration(
            RegisterWorker(backend.workers, clock),
            clock,
            config.worker_heartbeat_interval_sec,
            WorkerActivity(
                worker_id=self.worker_id,
                instance_id=self.instance_id,
                tags=self.tags,
                state=WorkerState.IDLE,
            ),
            _never_synced if wheel_sync is None else wheel_sync.status,
            self._abilities,
        )
        self._lanes: Callable[[], tuple[str, ...]] = lambda: (LANES, SHARES)
        self._side_work: list[asyncio.Task[None]] = []
        self._wheel_sync = wheel_sync

    async def open(self) -> None:
        """Register and get ready. Raises NatsUnavailable, or WorkerIdInUse if another worker has this id."""
        await self._registration.announce()
        self._source: JobSource = await self._backend.sources.open(self.tags)
        source = self._source
        self._lanes = lambda: source.features
        self._executors.on_capacity_change(self._check_again)
        work: list[Coroutine[Any, Any, None]] = [
            self._registration.run(),
            source.keep_settings(),
            *self._pipeline.side_work(lambda: source.ack_wait_sec),
        ]
        if self._wheel_sync is not None:
            self._wheel_sync.when_due = self._check_again
            self._wheel_sync.is_idle = lambda: not self._active
            work.append(self._wheel_sync.run())
        self._side_work = [asyncio.ensure_future(item) for item in work]
        for task in self._side_work:
            task.add_done_callback(lambda _: self._check_again())
        log.info("worker ready", action="worker.ready", worker_id=self.worker_id, tags=self.tags)

    async def handle_one(self, patience: float) -> Handled | None:
        """Handle the next job; None: none came within `patience`."""
        self._check_side_work()
        await self._sync_if_due()
        delivery = await self._source.next(patience)
        return None if delivery is None else await self._handle(delivery)

    async def run(self) -> None:
        """Handle jobs until `stop`. Raises SideWorkEnded."""
        while not self._stopping.is_set():
            self._check_side_work()
            await self._sync_if_due()
            if self._stopping.is_set():
                return
            wanted = self._wanted()
            if wanted <= 0:
                await self._wait_until_freed()
                continue
            delivery = await self._source.next(WAIT_SEC, wanted)
            if delivery is not None:
                self._take(delivery)

    async def _sync_if_due(self) -> None:
        """New code applies to the next run: wait for active runs, and take none before the sync is done."""
        if self._wheel_sync is None or not self._wheel_sync.is_due:
            return
        await self._source.pause()
        if self._active:
            log.info("wheel sync waits for active runs", action="wheel.waiting")
        while self._active and not self._stopping.is_set():
            self._freed.clear()
            await self._freed.wait()
            self._check_side_work()
        if not self._stopping.is_set():
            await self._unless_stopped(self._wheel_sync.sync())

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            working.cancel()
        if working.done() and not working.cancelled():
            working.result()

    def _wanted(self) -> int:
        """How many more jobs to take."""
        capacity, active = self._executors.capacity, len(self._active)
        ahead = self._executors.prefetch.ahead(capacity)
        if self._source.has_lanes:  # what was taken cannot be overtaken any more
            ahead = min(ahead, AHEAD_PER_SLOT * capacity)
        return capacity + ahead - active if capacity else 0

    def _abilities(self) -> dict[str, Any]:
        """Before it is open it is expected to get the jobs of all lanes: it does so in a moment."""
        return {
            "flows": self._executors.flows,
            "features": (*FEATURES, *self._lanes()),
            "slots": self._executors.capacity,
            "figures": self._counts.now(),
        }

    def record(self) -> WorkerRecord:
        """As the next heartbeat will have it."""
        return self._registration.record()

    @property
    def is_ready(self) -> bool:
        """Whether it takes jobs."""
        is_open = bool(self._side_work) and not any(task.done() for task in self._side_work)
        return is_open and not self._stopping.is_set() and self._backend.is_available

    async def _wait_until_freed(self) -> None:
        """After `FULL_SEC`, withdraw the request for jobs: other workers may be free."""
        self._freed.clear()
        freed = asyncio.ensure_future(self._freed.wait())
        try:
            done, _ = await asyncio.wait({freed}, timeout=FULL_SEC)
            if not done:
                await self._source.pause()
                await freed
        finally:
            freed.cancel()

    def stop(self) -> None:
        """Take no more jobs."""
        self._stopping.set()
        self._check_again()

    def _check_again(self) -> None:
        """Have the loop check how many jobs it wants, and its background tasks."""
        self._freed.set()
        self._source.interrupt()

    @property
    def in_hand(self) -> int:
        """Active runs."""
        return len(self._active)

    async def drain(self, patience: float) -> int:
        """Wait for active runs to end. Returns how many have not."""
        if self._active:
            log.info("finishing active runs", action="worker.draining", runs=len(self._active))
            await asyncio.wait(self._active, timeout=patience)
        return len(self._active)

    async def close(self) -> None:
        """Return unfinished jobs, record the stop."""
        await self._source.close()
        if self._active:
            self._pipeline.give_back()
            await asyncio.wait(self._active, timeout=WAIT_SEC)
        await self._registration.stopped("graceful_shutdown")
        for task in (*self._side_work, *self._active):
            task.cancel()
        await asyncio.wait([*self._side_work, *self._active], timeout=WAIT_SEC)
        log.info("worker stopped", action="worker.stopped", worker_id=self.worker_id)

    def _take(self, delivery: Delivery) -> None:
        task = asyncio.ensure_future(self._handle(delivery))
        self._active.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Handled]) -> None:
        self._active.discard(task)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "internal error; job will be redelivered",
                action="job.crashed",
                exc_info=task.exception(),
            )

    async def _handle(self, delivery: Delivery) -> Handled:
        received = receive(delivery)
        self._registration.started(received.run_id)
        self._counts.started()
        began, handled = self._clock(), None
        try:
            handled = await self._pipeline.handle(received)
            return handled
        finally:
            status = handled.status if handled else None
            self._counts.ended(status, max(0.0, self._clock() - began))
            self._registration.ended(received.run_id, status)

    def _check_side_work(self) -> None:
        for task in self._side_work:
            if task.done():
                cause = None if task.cancelled() else task.exception()
                raise SideWorkEnded(f"a background task of the worker has ended: {cause}") from cause


def _never_synced() -> WheelSync:
    return WheelSync()


def check_names(worker_id: str, tags: Sequence[str]) -> None:
    if not is_worker_id(worker_id):
        raise ValueError(f"worker_id {worker_id!r} must match [A-Za-z0-9_.-] and be at most 128 long")
    for tag in tags:
        if not is_tag(tag):
            raise ValueError(f"tag {tag!r} must match [A-Za-z0-9_-]{{1,64}}: no dots, blanks or wildcards")


# Registration: the record of the worker in the registry

MIN_INTERVAL_SEC = 0.25
"""Changes within this time become one write: a worker may start hundreds of runs per second."""
EARLY_WRITES = 2
"""Changes written before the interval is over: start and end of a run. A quiet interval allows them again.

A busy worker writes at its interval only: its runs show what it does.
"""
HEARTBEATS_OF_SILENCE = 1.5
"""A worker is dead if its record is unchanged for this many heartbeat intervals. No clocks are compared."""


class WorkerIdInUse(Exception):
    """Another worker with this id is running."""


class Registration:
    def __init__(
        self,
        register: RegisterWorker,
        clock: Clock,
        interval: float,
        activity: WorkerActivity,
        wheel_sync: Callable[[], WheelSync],
        abilities: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """`abilities`: what it can do now, as fields of its activity."""
        self._wheel_sync = wheel_sync
        self._abilities = abilities
        self._register = register
        self._clock = clock
        self._interval = interval
        self._activity = activity
        self._changed = asyncio.Event()
        self._early_writes = EARLY_WRITES
        self._stopping = False
        self._current: list[str | None] = []
        self._last_started_at: float | None = None
        self._last_ended: tuple[str | None, RunStatus | None, float | None] = (None, None, None)

    async def announce(self) -> None:
        """Write the first record.

        Raises NatsUnavailable, or WorkerIdInUse if another worker with this id is alive.
        """
        held = await self._register.holder(self._activity)
        if held is not None:
            await self._wait_until_dead(held)
        self._check_ours(await self._register(self._now(), held.instance_id if held else None))

    async def _wait_until_dead(self, held: WorkerRecord) -> None:
        log.info(
            "worker with this id was not stopped cleanly; checking whether it is alive",
            action="worker.id_held",
            worker_id=held.worker_id,
            instance_id=held.instance_id,
        )
        patience = self._interval * HEARTBEATS_OF_SILENCE + MIN_INTERVAL_SEC
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(MIN_INTERVAL_SEC, left))
            now = await self._register.holder(self._activity)
            if now is None:
                return
            if (now.instance_id, now.last_heartbeat_at) != (held.instance_id, held.last_heartbeat_at):
                raise WorkerIdInUse(_in_use(now))

    def _check_ours(self, record: WorkerRecord) -> None:
        if record.instance_id != self._activity.instance_id:
            raise WorkerIdInUse(_in_use(record))

    async def run(self) -> None:
        """Until `stopped`. Raises WorkerIdInUse when another worker has taken the id."""
        while not self._stopping:
            await self._wait()
            self._changed.clear()
            if not self._stopping:
                record = None
                with surviving(log, "worker.heartbeat", NatsUnavailable):
                    record = await self._register(self._now())
                if record is not None:
                    self._check_ours(record)
            if not self._stopping:
                await asyncio.sleep(min(MIN_INTERVAL_SEC, self._interval))

    async def _wait(self) -> None:
        """For the interval, or until a change that may be written early."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._interval
        if self._early_writes:
            await wait_at_most(self._changed, self._interval)
        else:
            await asyncio.sleep(self._interval)
        if loop.time() < deadline:
            self._early_writes -= 1
        elif not self._changed.is_set():
            self._early_writes = EARLY_WRITES

    def started(self, run_id: str | None) -> None:
        self._current.append(run_id)
        self._last_started_at = self._clock()
        self._changed.set()

    def ended(self, run_id: str | None, status: RunStatus | None) -> None:
        self._current.remove(run_id)
        self._last_ended = (run_id, status, self._clock())
        self._changed.set()

    def _now(self) -> WorkerActivity:
        """Built only when it is written: runs start and end much more often."""
        run_id, status, ended_at = self._last_ended
        return replace(
            self._activity,
            state=WorkerState.RUNNING if self._current else WorkerState.IDLE,
            current_run_id=self._current[0] if self._current else None,
            last_run_started_at=self._last_started_at,
            last_run_id=run_id,
            last_run_status=status,
            last_run_finished_at=ended_at,
            wheel_sync=self._wheel_sync(),
            **self._abilities(),
        )

    def record(self) -> WorkerRecord:
        return register(None, self._now(), self._clock())

    async def stopped(self, reason: str) -> None:
        """Write the last record: a clean stop differs from a missing heartbeat."""
        self._stopping = True
        self._changed.set()
        last = replace(
            self._now(),
            state=WorkerState.STOPPED_GRACEFUL,
            current_run_id=None,
            stopped_at=self._clock(),
            stop_reason=reason,
        )
        with surviving(log, "worker.stopped", NatsUnavailable):
            await self._register(last)


def _in_use(record: WorkerRecord) -> str:
    return (
        f"another worker with the id {record.worker_id!r} is running (instance {record.instance_id}); "
        "every worker needs its own id"
    )
