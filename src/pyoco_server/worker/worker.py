"""The worker's loop: as many deliveries in hand as there are executors, and no more."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.codec import run_id_in
from pyoco_server.domain.fleet import WorkerActivity, WorkerState
from pyoco_server.domain.names import is_tag, is_worker_id
from pyoco_server.domain.wheels import WheelSync
from pyoco_server.logs import get_logger
from pyoco_server.usecases.fleet import RegisterWorker
from pyoco_server.usecases.ports.runs import Delivery, JobSource, WorkerBackend
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.worker.pipeline import Handled, Pipeline
from pyoco_server.worker.prefetch import PrefetchRate
from pyoco_server.worker.registration import Registration
from pyoco_server.worker.session import REFUSED_PATIENCE_SEC, FlowExecutors
from pyoco_server.worker.wheels import KeepWheels

log = get_logger(__name__)

WAIT_SEC = 5.0
"""How long one wait for a job takes; it says nothing about latency, a job ends the wait at once."""
FULL_SEC = 0.05
"""For so long jobs that were asked for ahead may wait here for a worker that is full."""


class SideWorkEnded(Exception):
    """Heartbeats or the like have died: a worker that cannot show signs of life must not take jobs."""


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
    ) -> None:
        check_names(worker_id, tags)
        self.worker_id = worker_id
        self.instance_id = instance_id
        self.tags = tuple(dict.fromkeys(tags))
        self._backend = backend
        self._executors = executors
        self._rate = PrefetchRate(executors.capacity, lambda: asyncio.get_running_loop().time())
        self._in_hand: set[asyncio.Task[Handled]] = set()
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._pipeline = Pipeline(
            backend,
            executors,
            config,
            clock,
            self.worker_id,
            self.instance_id,
            on_busy=self._rate.took,
            log_patience_sec=log_patience_sec,
        )
        self._presence = Registration(
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
        )
        self._wheel_sync = wheel_sync

    async def open(self) -> None:
        """Be known and ready. Raises NatsUnavailable; WorkerIdInUse if another of this id is running."""
        await self._presence.announce()
        self._source: JobSource = await self._backend.sources.open(self.tags)
        self._executors.when_it_changes(self._look_again)
        source = self._source
        work: list[Coroutine[Any, Any, None]] = [
            self._presence.run(),
            source.keep_settings(),
            *self._pipeline.side_work(lambda: source.ack_wait_sec),
        ]
        if self._wheel_sync is not None:
            self._wheel_sync.when_due = self._look_again
            self._wheel_sync.is_idle = lambda: not self._in_hand
            work.append(self._wheel_sync.run())
        self._side_work = [asyncio.ensure_future(item) for item in work]
        for task in self._side_work:
            task.add_done_callback(lambda _: self._look_again())
        log.info("worker ready", action="worker.ready", worker_id=self.worker_id, tags=self.tags)

    async def handle_one(self, patience: float) -> Handled | None:
        """The next job, from its delivery to its end; None when none came."""
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
        """Other code is for the next run: no run is taken before it is there, and none is going meanwhile."""
        if self._wheel_sync is None or not self._wheel_sync.is_due:
            return
        await self._source.pause()
        if self._in_hand:
            log.info("wheels wait until the runs in hand have ended", action="wheel.waiting")
        while self._in_hand and not self._stopping.is_set():
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
        """How many more jobs: those that can start now, and a few if they are done in no time."""
        capacity, in_hand = self._executors.capacity, len(self._in_hand)
        return capacity + self._rate.ahead(in_hand) - in_hand if capacity else 0

    async def _wait_until_freed(self) -> None:
        """Soon, or what the queue would send us meanwhile is for other workers."""
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
        self._look_again()

    def _look_again(self) -> None:
        """At how many jobs are wanted, and whether all is well."""
        self._freed.set()
        self._source.interrupt()

    @property
    def in_hand(self) -> int:
        """Runs that have not ended yet."""
        return len(self._in_hand)

    async def drain(self, patience: float) -> int:
        """Let what is in hand end. Answers with how many runs had to be left."""
        if self._in_hand:
            log.info("finishing the runs in hand", action="worker.draining", runs=len(self._in_hand))
            await asyncio.wait(self._in_hand, timeout=patience)
        return len(self._in_hand)

    async def close(self) -> None:
        """Give back what was not started or has not ended, say goodbye."""
        await self._source.close()
        if self._in_hand:
            self._pipeline.give_back()
            await asyncio.wait(self._in_hand, timeout=WAIT_SEC)
        await self._presence.stopped("graceful_shutdown")
        for task in (*self._side_work, *self._in_hand):
            task.cancel()
        await asyncio.wait([*self._side_work, *self._in_hand], timeout=WAIT_SEC)
        log.info("worker stopped", action="worker.stopped", worker_id=self.worker_id)

    def _take(self, delivery: Delivery) -> None:
        task = asyncio.ensure_future(self._handle(delivery))
        self._in_hand.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Handled]) -> None:
        self._in_hand.discard(task)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "a delivery could not be handled; it will be delivered again",
                action="job.crashed",
                exc_info=task.exception(),
            )

    async def _handle(self, delivery: Delivery) -> Handled:
        run_id = run_id_in(delivery.payload)
        self._presence.started(run_id)
        handled = None
        try:
            handled = await self._pipeline.handle(delivery)
            return handled
        finally:
            self._presence.ended(run_id, handled.status if handled else None)

    def _check_side_work(self) -> None:
        for task in self._side_work:
            if task.done():
                cause = None if task.cancelled() else task.exception()
                raise SideWorkEnded(f"the worker's signs of life have stopped: {cause}") from cause


def _never_synced() -> WheelSync:
    return WheelSync()


def check_names(worker_id: str, tags: Sequence[str]) -> None:
    if not is_worker_id(worker_id):
        raise ValueError(f"worker_id {worker_id!r} must match [A-Za-z0-9_.-] and be at most 128 long")
    for tag in tags:
        if not is_tag(tag):
            raise ValueError(f"tag {tag!r} must match [A-Za-z0-9_-]{{1,64}}: no dots, blanks or wildcards")
