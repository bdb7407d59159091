"""The worker's pool of executor processes: started in advance, reused, replaced.

A flow goes to an idle executor, or into the short queue of a busy one, where it starts without a round trip
to the worker. While flows are tiny, the queue comes first (see `Prefetch`).

When the flows come from a directory, `follow_flow_files` reloads them after a change.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pyoco_server.domain.fleet import FlowList
from pyoco_server.domain.runs.jobs import FlowListener, Job
from pyoco_server.engine.executors.process import ExecutorProcess
from pyoco_server.engine.executors.process_flow import ProcessFlowHandle
from pyoco_server.engine.executors.protocol import ExecutorSpec, Limits
from pyoco_server.engine.executors.zygote import Zygote, ZygoteEnded
from pyoco_server.engine.resolve import reported_flows
from pyoco_server.errors import InvalidCliInput
from pyoco_server.logs import get_logger

log = get_logger(__name__)

HORIZON_SEC = 0.02
"""Claimed runs should start within this time."""
STALLED_SEC = 0.1
"""If no flow has ended for this long, flows are not tiny."""
MAX_AHEAD = 32
WAKE_UP_SEC = 0.002
"""A flow waits this long for a busy executor rather than wake an idle one."""
_WEIGHT = 0.2
"""Weight of the newest duration in the moving average."""


class Prefetch:
    """How much work is taken ahead of free executors, from one moving average of how long flows take.

    Claiming a run takes a round trip to NATS, and waking an idle process takes about as long: both cost more
    than a tiny flow. So while flows are tiny, a worker claims a few runs ahead and queues several at one
    executor. Otherwise a run is claimed only when it can start.

    The average counts the time an executor is busy with a flow. Time spent in the queue would grow with the
    prefetch itself.

    The duration of a flow is unknown until it has ended. So nothing is claimed ahead while no flow ends:
    runs behind a long flow would be returned and claimed again until the queue has delivered them as often as
    it may. Nor does an idle worker claim ahead: of many, one would take the jobs of all, and return them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._average: float | None = None
        self._last_end = 0.0

    def ended(self, busy_sec: float) -> None:
        """A flow has just ended; its executor was busy with it for `busy_sec`."""
        average = busy_sec if self._average is None else self._average
        self._average = average + _WEIGHT * (busy_sec - average)
        self._last_end = self._clock()

    def ahead(self, capacity: int) -> int:
        """How many runs to claim beyond `capacity`."""
        if self._average is None or self._clock() - self._last_end > STALLED_SEC:
            return 0
        return min(MAX_AHEAD, int(HORIZON_SEC / max(self._average, 1e-6) * capacity))

    def queue_length(self) -> int:
        """How many flows to queue at a busy executor before an idle one is woken."""
        return 0 if self._average is None else int(WAKE_UP_SEC / max(self._average, 1e-6))


READY_TIMEOUT_SEC = 60.0
"""Importing users' modules may take long."""
FIRST_RETRY_SEC, MAX_RETRY_SEC = 1.0, 30.0
CHECK_FILES_SEC = 0.5


class ProcessExecutors:
    def __init__(self, spec: ExecutorSpec, concurrency: int, limits: Limits) -> None:
        self._spec = replace(spec, reports_memory=limits.max_rss_bytes > 0)
        self._limits = limits
        self._max_queue = limits.max_queue
        self._concurrency = concurrency
        self._on_capacity_change: Callable[[], None] = lambda: None
        self._flows: FlowList | None = None
        self._flows_spec: ExecutorSpec | None = None
        self.prefetch = Prefetch(time.monotonic)
        self._all: dict[ExecutorProcess, None] = {}
        """Oldest first."""
        self._idle: deque[ExecutorProcess] = deque()
        self._waiting: deque[ProcessFlowHandle] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._changing = asyncio.Lock()
        self._renewing = asyncio.Lock()
        self._is_closing = False

    async def open(self) -> None:
        """Raises InvalidCliInput when the flows cannot be loaded."""
        self._zygote = await Zygote.start()
        first = await self._start_executor(self._spec)
        if isinstance(first, str):
            await self.close()
            raise InvalidCliInput(f"the flows could not be loaded: {first}")
        self._admit(first)
        for _ in range(self._concurrency - 1):
            self._fill_up()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=READY_TIMEOUT_SEC)

    @property
    def capacity(self) -> int:
        """Lower than the concurrency while executors are missing: their runs must not be claimed."""
        return min(self._concurrency, len(self._all))

    def on_capacity_change(self, callback: Callable[[], None]) -> None:
        self._on_capacity_change = callback

    @property
    def flows(self) -> FlowList | None:
        """Names of the current flows, as far as they can be listed."""
        return self._flows

    @property
    def spec(self) -> ExecutorSpec:
        return self._spec

    @property
    def paths_in_use(self) -> set[str]:
        """Code directories of all live executors, including retired ones whose flow still runs."""
        return {path for executor in self._all for path in executor.spec.path}

    async def change_spec(self, **changes: Any) -> str | None:
        """Flows that start from now on use the new code; running ones keep the old.

        Returns an error if the new code cannot be loaded; then nothing changes.
        """
        async with self._changing:
            spec = replace(self._spec, **changes)
            first = await self._start_executor(spec)
            if isinstance(first, str):
                return first
            self._spec = spec
        self._idle = deque(executor for executor in self._idle if executor.spec is spec)
        self._admit(first)
        for executor in [executor for executor in self._all if executor.spec is not spec]:
            executor.retire()
        return None

    async def start(self, job: Job, listener: FlowListener, timeout_sec: float) -> ProcessFlowHandle | None:
        """None: no executor was free within `timeout_sec`."""
        flow = ProcessFlowHandle(job, listener)
        if not flow.is_sendable():
            return flow
        short = min(self._max_queue, self.prefetch.queue_length())
        executor = self._next_busy(short) or self._next_idle() or self._next_busy(self._max_queue)
        if executor is not None:
            executor.enqueue(flow)
            return flow
        self._waiting.append(flow)
        flow.start_waiting(timeout_sec, self._give_up)
        return flow if await flow.is_placed() else None

    async def close(self) -> None:
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for executor in list(self._all):
            executor.hang_up()
        await self._zygote.stop()

    # Choosing an executor

    def _next_idle(self) -> ExecutorProcess | None:
        while self._idle:
            executor = self._idle.popleft()
            if executor.is_usable:  # it may have just died
                return executor
        return None

    def _next_busy(self, max_queue: int) -> ExecutorProcess | None:
        """The first busy one with a shorter queue. No flow overtakes those that wait already."""
        if max_queue > 1 and not self._waiting:
            for executor in self._all:
                if 0 < executor.flow_count < max_queue and executor.is_usable:
                    return executor
        return None

    def _serve_waiting(self, executor: ExecutorProcess, max_queue: int) -> None:
        while self._waiting and executor.flow_count < max_queue:
            flow = self._waiting.popleft()
            if flow.stop_waiting():
                executor.enqueue(flow)

    def _give_up(self, flow: ProcessFlowHandle) -> None:
        self._waiting.remove(flow)
        flow.give_up()

    # Reports from executors

    @property
    def limits(self) -> Limits:
        return self._limits

    def flow_ended(self, busy_sec: float) -> None:
        self.prefetch.ended(busy_sec)

    def reuse(self, executor: ExecutorProcess) -> None:
        if self._is_spent(executor):
            executor.retire()
        else:
            self.freed(executor)

    def freed(self, executor: ExecutorProcess) -> None:
        self._serve_waiting(executor, self._max_queue)
        if executor.flow_count == 0:
            self._idle.append(executor)

    def take_back(self, flows: list[ProcessFlowHandle]) -> None:
        """Put them in front of the waiting flows, because they came first."""
        for flow in reversed(flows):
            self._waiting.appendleft(flow)
            flow.start_waiting(self._limits.move_timeout_sec, self._give_up)
        while self._waiting and (executor := self._next_idle()) is not None:
            self._serve_waiting(executor, max_queue=1)
            if executor.flow_count == 0:  # no waiting flow was wanted any more
                self._idle.append(executor)

    def gone(self, executor: ExecutorProcess) -> None:
        self._all.pop(executor, None)
        if executor in self._idle:
            self._idle.remove(executor)
        self._fill_up()
        self._on_capacity_change()

    def _is_spent(self, executor: ExecutorProcess) -> bool:
        limits = self._limits
        return (0 < limits.max_runs <= executor.runs) or (0 < limits.max_rss_bytes < executor.rss_bytes)

    # Starting executors

    def _fill_up(self) -> None:
        if not self._is_closing and len(self._all) + self._starting < self._concurrency:
            self._starting += 1
            self._in_background(self._replace())

    async def _replace(self) -> None:
        """Retry until it succeeds: the next deployment may fix flows that cannot be loaded."""
        pause = FIRST_RETRY_SEC
        try:
            while isinstance(started := await self._start_executor(self._spec), str):
                log.error("executor could not be started", action="executor.unusable", error=started)
                await asyncio.sleep(pause)
                pause = min(MAX_RETRY_SEC, pause * 2)
        finally:
            self._starting -= 1
        self._admit(started)
        self._fill_up()

    async def _start_executor(self, spec: ExecutorSpec) -> ExecutorProcess | str:
        """A ready executor, or the reason why there is none."""
        try:
            zygote = await self._living_zygote()
            executor = ExecutorProcess(self, spec)
            descriptors = await executor.connect()
        except OSError as failure:  # no descriptors or memory left: retried later
            return str(failure)
        try:
            await zygote.fork(descriptors, executor)
            error = await self._loaded(executor)
        except ZygoteEnded:
            error = "the zygote has ended"
        except OSError as failure:  # no processes left: retried later
            error = f"no process could be started: {failure.strerror}"
        except BaseException:  # cancelled
            executor.hang_up()
            raise
        if error is not None:
            executor.hang_up()
            return error
        self._all[executor] = None
        self._on_capacity_change()
        return executor

    async def _loaded(self, executor: ExecutorProcess) -> str | None:
        """The reason why it cannot be used, if any."""
        done, _ = await asyncio.wait({executor.ready}, timeout=READY_TIMEOUT_SEC)
        if not done:
            executor.kill_process()
            return f"not ready after {READY_TIMEOUT_SEC:g} s"
        return executor.ready.result()

    async def _living_zygote(self) -> Zygote:
        """The kernel may have killed it when memory ran out."""
        async with self._renewing:
            if self._zygote.has_ended:
                log.error("zygote has ended; starting a new one", action="executor.parent_died")
                await self._zygote.stop()
                self._zygote = await Zygote.start()
            return self._zygote

    def _admit(self, executor: ExecutorProcess) -> None:
        """The spec may have changed while it started."""
        if executor.spec is self._spec:
            if self._flows_spec is not executor.spec:
                self._flows_spec, self._flows = executor.spec, reported_flows(executor.flow_names)
            self.freed(executor)
        else:
            executor.retire()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def version_of(directory: Path) -> str:
    """A digest that changes when a file is added, removed or written; empty without a directory."""
    if not directory.is_dir():
        return ""
    digest = hashlib.sha256()
    try:
        for path in sorted(directory.glob("*.py")):
            with suppress(FileNotFoundError):
                stat = path.stat()
                digest.update(f"{path.name}\0{stat.st_mtime_ns}\0{stat.st_size}\0{stat.st_ino}\0".encode())
    except OSError:  # removed meanwhile, or on a network file system that is unavailable
        return ""
    return digest.hexdigest()


async def follow_flow_files(directory: Path, executors: ProcessExecutors) -> None:
    """Reload the flows whenever a file has changed. Runs until cancelled."""
    seen = executors.spec.version
    while True:
        await asyncio.sleep(CHECK_FILES_SEC)
        version = await asyncio.to_thread(version_of, directory)
        if version == seen:
            continue
        seen = version
        error = await executors.change_spec(version=version)
        if error is None:
            log.info("flow files reloaded", action="flows.reloaded")
        else:
            log.error(
                "changed flow files cannot be loaded; keeping the previous flows",
                action="flows.unusable",
                error=error,
            )
