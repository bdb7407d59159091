"""The worker's record in the registry: identity, activity and heartbeat."""

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
"""Changes within this time become one write: a worker may start hundreds of runs per second."""
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
        flows: Callable[[], tuple[str, ...] | None] = lambda: None,
    ) -> None:
        self._wheel_sync = wheel_sync
        self._flows = flows
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
            flows=self._flows(),
        )

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
