"""The worker's own record in the registry: who it is, what it does, that it is alive."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from pyoco_server.domain.fleet import WorkerActivity, WorkerRecord, WorkerState
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.wheels import WheelSync
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger, surviving
from pyoco_server.usecases.fleet import RegisterWorker
from pyoco_server.usecases.ports.stores import Clock

log = get_logger(__name__)

MIN_INTERVAL_SEC = 0.25
"""Changes closer together than this become one write: a worker may start hundreds of runs a second."""


HEARTBEATS_OF_SILENCE = 1.5
"""A worker whose record did not change for so many of its intervals is dead. No clocks are compared."""


class WorkerIdInUse(Exception):
    """Another worker of this id is running."""


class Registration:
    def __init__(
        self,
        register: RegisterWorker,
        clock: Clock,
        interval: float,
        activity: WorkerActivity,
        wheel_sync: Callable[[], WheelSync],
    ) -> None:
        self._wheel_sync = wheel_sync
        self._register = register
        self._clock = clock
        self._interval = interval
        self._activity = activity
        self._changed = asyncio.Event()
        self._stopping = False
        self._current: list[str | None] = []
        self._last_started_at: float | None = None
        self._last_ended: tuple[str | None, RunStatus | None, float | None] = (None, None, None)

    async def announce(self) -> None:
        """The first record. Raises, because a worker that nobody can see should not start.

        Raises WorkerIdInUse while another worker of this id shows signs of life.
        """
        held = await self._register.holder(self._activity)
        if held is not None:
            await self._outwait(held)
        self._check_ours(await self._register(self._now(), held.instance_id if held else None))

    async def _outwait(self, held: WorkerRecord) -> None:
        log.info(
            "a worker of this id was not stopped in order; waiting whether it is alive",
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
        """Until the end. Raises WorkerIdInUse when another worker has taken the id over."""
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
        waiter = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({waiter}, timeout=self._interval)
        finally:
            waiter.cancel()

    def started(self, run_id: str | None) -> None:
        self._current.append(run_id)
        self._last_started_at = self._clock()
        self._changed.set()

    def ended(self, run_id: str | None, status: RunStatus | None) -> None:
        self._current.remove(run_id)
        self._last_ended = (run_id, status, self._clock())
        self._changed.set()

    def _now(self) -> WorkerActivity:
        """Put together only when it is written: runs may start and end much more often than that."""
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
        )

    async def stopped(self, reason: str) -> None:
        """The last record: STOPPED_GRACEFUL is not the same as a silence."""
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
        "every worker needs an id of its own"
    )
