"""Executor processes as the worker sees them: started before they are needed, reused, replaced.

A flow goes to an executor that is free, or into the short line before one that is not: there it begins
without the worker having to hear of the end of the one before it and to answer. While flows are tiny, the
line comes first: to wake up a process that sleeps costs about as much as such a flow.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.runs.jobs import FlowListener, Job
from pyoco_server.engine.executors.process import ExecutorProcess, ProcessFlow
from pyoco_server.engine.executors.protocol import ExecutorSpec
from pyoco_server.engine.executors.zygote_process import Zygote, ZygoteEnded
from pyoco_server.errors import InvalidCliInput
from pyoco_server.logs import get_logger

log = get_logger(__name__)

READY_PATIENCE_SEC = 60.0
"""Users' modules may import a lot."""
FIRST_RETRY_SEC, MAX_RETRY_SEC = 1.0, 30.0
LINE = 8
"""Flows that an executor has at most, with the one that runs. They are only handed out ahead while flows take
a few milliseconds (see worker/prefetch.py)."""
DENSE_SEC = 0.002
"""A flow rather waits for so long than to wake up another executor."""
WEIGHT = 0.2
"""Of the newest flow in the average of how long they take."""
MOVE_PATIENCE_SEC = 1.0
"""How long a flow that was taken back waits for another executor, before another worker gets the chance."""


class Limits(Struct, frozen=True, kw_only=True):
    """When an executor is replaced although it is well. 0: never."""

    max_runs: int = 0
    max_rss_bytes: int = 0
    grace_sec: float = 30.0
    """How long a task that has timed out may take to stop before its process is ended."""

    @property
    def line(self) -> int:
        """Where what one flow leaves behind may end the process, none stands behind it."""
        return 1 if self.max_runs or self.max_rss_bytes else LINE


class ProcessExecutors:
    def __init__(self, spec: ExecutorSpec, concurrency: int, limits: Limits) -> None:
        self._spec = replace(spec, tells_memory=limits.max_rss_bytes > 0)
        self._limits = limits
        self._line = limits.line
        self._concurrency = concurrency
        self._tell_change: Callable[[], None] = lambda: None
        self._dense = 0
        """How many flows an executor has before another is woken up."""
        self._busy_sec = DENSE_SEC
        self._all: dict[ExecutorProcess, None] = {}
        """In the order in which they came."""
        self._idle: deque[ExecutorProcess] = deque()
        self._waiting: deque[_Waiting] = deque()
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
            await asyncio.wait(self._tasks, timeout=READY_PATIENCE_SEC)

    @property
    def capacity(self) -> int:
        """Less than was wanted while some are not there: what they cannot run is not to be claimed."""
        return min(self._concurrency, len(self._all))

    def when_it_changes(self, tell: Callable[[], None]) -> None:
        self._tell_change = tell

    @property
    def spec(self) -> ExecutorSpec:
        return self._spec

    @property
    def paths_in_use(self) -> set[str]:
        """Where the code of executors lies that live: of old ones too, while their flows go on."""
        return {path for executor in self._all for path in executor.spec.path}

    async def change_spec(self, **changes: Any) -> str | None:
        """Flows that start from now on get the new code; those that run end with the old.

        Answers with an error when the new code cannot be loaded: then all stays as it was.
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

    async def start(self, job: Job, listener: FlowListener, patience: float) -> ProcessFlow | None:
        """Have the job's flow run; None when nobody could take it within `patience`."""
        flow = ProcessFlow(job, listener)
        if not flow.is_sendable():
            return flow
        executor = self._next_in_line(self._dense) or self._next_idle() or self._next_in_line(self._line)
        if executor is not None:
            executor.begin(flow)
            return flow
        return flow if await self._placed(flow, patience) else None

    async def close(self) -> None:
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for executor in list(self._all):
            executor.hang_up()
        await self._zygote.stop()

    # Who takes the next flow

    def _next_idle(self) -> ExecutorProcess | None:
        while self._idle:
            executor = self._idle.popleft()
            if executor.is_usable:  # it may have died just now
                return executor
        return None

    def _next_in_line(self, length: int) -> ExecutorProcess | None:
        """The first at work whose line is shorter than that. Nobody passes those who wait already."""
        if length > 1 and not self._waiting:
            for executor in self._all:
                if 0 < executor.in_line < length and executor.is_usable:
                    return executor
        return None

    async def _placed(self, flow: ProcessFlow, patience: float) -> bool:
        placed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(self._waits(flow, placed, patience))
        return await placed

    def _waits(self, flow: ProcessFlow, placed: "asyncio.Future[bool] | None", patience: float) -> "_Waiting":
        waiting = _Waiting(flow, placed)
        waiting.timer = asyncio.get_running_loop().call_later(patience, self._give_up, waiting)
        return waiting

    def _give_up(self, waiting: "_Waiting") -> None:
        self._waiting.remove(waiting)
        waiting.give_up()

    def _serve_waiting(self, executor: ExecutorProcess, line: int) -> None:
        while self._waiting and executor.in_line < line:
            waiting = self._waiting.popleft()
            waiting.timer.cancel()
            if not waiting.is_over:
                waiting.hand_to(executor)

    # What executors report

    @property
    def grace_sec(self) -> float:
        return self._limits.grace_sec

    def is_free(self, executor: ExecutorProcess) -> None:
        self._serve_waiting(executor, self._line)
        if executor.in_line == 0:
            self._idle.append(executor)

    def has_ended_one(self, executor: ExecutorProcess, flow: ProcessFlow) -> None:
        self._busy_sec += WEIGHT * (flow.busy_sec - self._busy_sec)
        self._dense = min(self._line, int(DENSE_SEC / max(self._busy_sec, 1e-6)))
        if self._is_spent(executor):
            executor.retire()
        else:
            self.is_free(executor)

    def take_back(self, flows: list[ProcessFlow]) -> None:
        """Flows that were not begun where they were: in front of those who wait, as they were first."""
        self._waiting.extendleft(self._waits(flow, None, MOVE_PATIENCE_SEC) for flow in reversed(flows))
        while self._waiting and (executor := self._next_idle()) is not None:
            self._serve_waiting(executor, line=1)
            if executor.in_line == 0:  # nobody wanted one any more
                self._idle.append(executor)

    def is_gone(self, executor: ExecutorProcess) -> None:
        self._all.pop(executor, None)
        if executor in self._idle:
            self._idle.remove(executor)
        self._fill_up()
        self._tell_change()

    def _is_spent(self, executor: ExecutorProcess) -> bool:
        limits = self._limits
        return (0 < limits.max_runs <= executor.runs) or (0 < limits.max_rss_bytes < executor.rss_bytes)

    # How many there are

    def _fill_up(self) -> None:
        if not self._is_closing and len(self._all) + self._starting < self._concurrency:
            self._starting += 1
            self._in_background(self._replace())

    async def _replace(self) -> None:
        """Until it succeeds: flows that cannot be loaded now may be loadable after the next deployment."""
        pause = FIRST_RETRY_SEC
        try:
            while isinstance(started := await self._start_executor(self._spec), str):
                log.error("an executor could not be started", action="executor.unusable", error=started)
                await asyncio.sleep(pause)
                pause = min(MAX_RETRY_SEC, pause * 2)
        finally:
            self._starting -= 1
        self._admit(started)
        self._fill_up()

    async def _start_executor(self, spec: ExecutorSpec) -> ExecutorProcess | str:
        """A ready executor, or why there is none."""
        try:
            zygote = await self._living_zygote()
            executor = ExecutorProcess(self, spec)
            descriptors = await executor.connect()
        except OSError as failure:  # no descriptors, no memory: perhaps later
            return str(failure)
        try:
            await zygote.fork(descriptors, executor)
            error = await self._loaded(executor)
        except ZygoteEnded:
            error = "the process that starts executors has ended"
        except OSError as failure:  # no processes left: perhaps later
            error = f"no process could be started: {failure.strerror}"
        except BaseException:  # we are stopped just now
            executor.hang_up()
            raise
        if error is not None:
            executor.hang_up()
            return error
        self._all[executor] = None
        self._tell_change()
        return executor

    async def _loaded(self, executor: ExecutorProcess) -> str | None:
        """Why it is of no use, if it is not."""
        done, _ = await asyncio.wait({executor.ready}, timeout=READY_PATIENCE_SEC)
        if not done:
            executor.kill_process()
            return f"it was not ready after {READY_PATIENCE_SEC:g} s"
        return executor.ready.result()

    async def _living_zygote(self) -> Zygote:
        """When memory runs out, the kernel may choose to kill this one of all processes."""
        async with self._renewing:
            if self._zygote.has_ended:
                log.error("the process that starts executors has ended", action="executor.parent_died")
                await self._zygote.stop()
                self._zygote = await Zygote.start()
            return self._zygote

    def _admit(self, executor: ExecutorProcess) -> None:
        """What it was started with may have changed while it was starting."""
        if executor.spec is self._spec:
            self.is_free(executor)
        else:
            executor.retire()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Waiting:
    """A flow that waits for an executor."""

    timer: asyncio.TimerHandle

    def __init__(self, flow: ProcessFlow, placed: "asyncio.Future[bool] | None") -> None:
        """`placed` is told whether it got one; None if it had one already and somebody follows it."""
        self.flow = flow
        self._placed = placed

    @property
    def is_over(self) -> bool:
        """Nobody wants it any more."""
        return self.flow.ended.done() or (self._placed is not None and self._placed.done())

    def hand_to(self, executor: ExecutorProcess) -> None:
        executor.begin(self.flow)
        if self._placed is not None:
            self._placed.set_result(True)

    def give_up(self) -> None:
        if self._placed is None:
            self.flow.end(None)
        elif not self._placed.done():
            self._placed.set_result(False)


# A directory of flow files that may change while a worker runs.

LOOK_SEC = 0.5


def version_of(directory: Path) -> str:
    """Another one whenever a file was added, removed or written; empty if it is no directory, or gone."""
    if not directory.is_dir():
        return ""
    digest = hashlib.sha256()
    try:
        for path in sorted(directory.glob("*.py")):
            with suppress(FileNotFoundError):
                stat = path.stat()
                digest.update(f"{path.name}\0{stat.st_mtime_ns}\0{stat.st_size}\0{stat.st_ino}\0".encode())
    except OSError:  # taken away while we look, or a file system of the network that has lost its server
        return ""
    return digest.hexdigest()


async def follow_flow_files(directory: Path, executors: ProcessExecutors) -> None:
    """Have the executors load the files again when they have changed. For ever."""
    seen = executors.spec.version
    while True:
        await asyncio.sleep(LOOK_SEC)
        version = await asyncio.to_thread(version_of, directory)
        if version == seen:
            continue
        seen = version
        error = await executors.change_spec(version=version)
        if error is None:
            log.info("flow files have changed; the new ones are used", action="flows.reloaded")
        else:
            log.error(
                "flow files have changed and cannot be loaded; the old ones are used",
                action="flows.unusable",
                error=error,
            )
