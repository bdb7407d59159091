"""Executor processes as the worker sees them: started before they are needed, reused, replaced."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.dispositions import Ending
from pyoco_server.domain.jobs import Job
from pyoco_server.domain.outcomes import FlowListener, FlowOutcome
from pyoco_server.domain.runs import CodeWheel
from pyoco_server.engine.executor_messages import (
    HEADER,
    CancelFlow,
    Ended,
    ExecutorSpec,
    GoLive,
    Printed,
    Progressed,
    Ready,
    RunFlow,
    Unusable,
    Written,
    decode_from_executor,
    frame,
)
from pyoco_server.engine.zygote import ENDED, REPORT, STARTED
from pyoco_server.errors import InvalidCliInput
from pyoco_server.logs import get_logger
from pyoco_server.processes import start_child, stop_child

log = get_logger(__name__)

READY_PATIENCE_SEC = 60.0
"""Users' modules may import a lot."""
EXIT_CODE_PATIENCE_SEC = 1.0
FIRST_RETRY_SEC, MAX_RETRY_SEC = 1.0, 30.0


class Limits(Struct, frozen=True, kw_only=True):
    """When an executor is replaced although it is well. 0: never."""

    max_runs: int = 0
    max_rss_bytes: int = 0


class ProcessExecutors:
    def __init__(self, spec: ExecutorSpec, concurrency: int, limits: Limits) -> None:
        self._spec = replace(spec, tells_memory=limits.max_rss_bytes > 0)
        self._limits = limits
        self.capacity = concurrency
        self._idle: deque[_Executor] = deque()
        self._takers: deque[asyncio.Future[_Executor | None]] = deque()
        self._all: set[_Executor] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._changing = asyncio.Lock()
        self._is_closing = False

    async def open(self) -> None:
        """Raises InvalidCliInput when the flows cannot be loaded."""
        self._zygote = await _Zygote.start()
        first = await self._start_executor(self._spec)
        if isinstance(first, str):
            await self.close()
            raise InvalidCliInput(f"the flows could not be loaded: {first}")
        self._admit(first)
        for _ in range(self.capacity - 1):
            self._fill_up()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=READY_PATIENCE_SEC)

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
        self._admit(first)
        for executor in [executor for executor in self._idle if self.is_spent(executor)]:
            self._idle.remove(executor)
            executor.hang_up()
        return None

    async def start(self, job: Job, listener: FlowListener, patience: float) -> "ProcessFlow | None":
        """Run the job's flow in the next free executor; None when none became free within `patience`."""
        executor = self._idle.popleft() if self._idle else await self._next_idle(patience)
        if executor is None or executor.is_gone:  # it may have died on its way to us
            return None
        return executor.begin(job, listener)

    async def close(self) -> None:
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        for executor in list(self._all):
            executor.hang_up()
        await asyncio.to_thread(self._zygote.stop)

    async def _next_idle(self, patience: float) -> "_Executor | None":
        loop = asyncio.get_running_loop()
        taker: asyncio.Future[_Executor | None] = loop.create_future()
        self._takers.append(taker)
        timer = loop.call_later(patience, _give_up, taker)
        try:
            return await taker
        finally:
            timer.cancel()

    def is_idle(self, executor: "_Executor") -> None:
        """An executor is ready for its next flow."""
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(executor)
                return
        self._idle.append(executor)

    def is_spent(self, executor: "_Executor") -> bool:
        limits = self._limits
        if executor.spec is not self._spec:
            return True
        return (0 < limits.max_runs <= executor.runs) or (0 < limits.max_rss_bytes < executor.rss_bytes)

    def is_gone(self, executor: "_Executor") -> None:
        self._all.discard(executor)
        if executor in self._idle:
            self._idle.remove(executor)
        self._fill_up()

    def _fill_up(self) -> None:
        if not self._is_closing and len(self._all) + self._starting < self.capacity:
            self._starting += 1
            self._in_background(self._replace())

    def exit_code_of(self, pid: int) -> "asyncio.Future[int]":
        return self._zygote.exit_code_of(pid)

    async def _replace(self) -> None:
        """Until it succeeds: flows that cannot be loaded now may be loadable after the next deployment."""
        pause = FIRST_RETRY_SEC
        try:
            while isinstance(started := await self._start_executor(self._spec), str):
                log.error("an executor cannot load the flows", action="executor.unusable", error=started)
                await asyncio.sleep(pause)
                pause = min(MAX_RETRY_SEC, pause * 2)
        finally:
            self._starting -= 1
        self._admit(started)
        self._fill_up()

    async def _start_executor(self, spec: ExecutorSpec) -> "_Executor | str":
        """A ready executor, or why there is none."""
        executor = _Executor(self, spec)
        fds = await executor.connect()
        executor.pid = await self._zygote.fork(spec, fds)
        done, _ = await asyncio.wait({executor.ready}, timeout=READY_PATIENCE_SEC)
        if not done:
            executor.kill()
            return f"it was not ready after {READY_PATIENCE_SEC:g} s"
        error = executor.ready.result()
        if error is not None:
            return error
        self._all.add(executor)
        return executor

    def _admit(self, executor: "_Executor") -> None:
        """What it was started with may have changed while it was starting."""
        if executor.spec is self._spec:
            self.is_idle(executor)
        else:
            executor.hang_up()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _give_up(taker: "asyncio.Future[_Executor | None]") -> None:
    if not taker.done():
        taker.set_result(None)


class ProcessFlow:
    """One flow in one executor."""

    def __init__(self, executor: "_Executor", listener: FlowListener) -> None:
        self._executor = executor
        self._nth = executor.runs
        self.listener = listener
        self.ended: asyncio.Future[FlowOutcome] = asyncio.get_running_loop().create_future()
        self.was_killed = False

    @property
    def wheels(self) -> tuple[CodeWheel, ...]:
        return self._executor.spec.wheels

    async def outcome(self) -> FlowOutcome:
        return await self.ended

    def cancel(self) -> None:
        if not self.ended.done():
            self._executor.tell(CancelFlow(self._nth))

    def go_live(self) -> None:
        if not self.ended.done():
            self._executor.tell(GoLive(self._nth))

    def written(self) -> None:
        if not self.ended.done():
            self._executor.tell(Written(self._nth))

    def kill(self) -> bool:
        """End the flow with its process."""
        if not self.ended.done():
            self.was_killed = True
            self._executor.kill()
        return True


class _Executor(asyncio.Protocol):
    """One process: the worker's end of its two channels."""

    def __init__(self, pool: ProcessExecutors, spec: ExecutorSpec) -> None:
        self._pool = pool
        self.spec = spec
        self._buffer = bytearray()
        self._flow: ProcessFlow | None = None
        self.pid = 0
        self.runs = 0
        self.rss_bytes = 0
        self.ready: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """None when the flows are loaded, else why not."""

    async def connect(self) -> list[socket.socket]:
        """Makes both channels; answers with the executor's ends."""
        loop = asyncio.get_running_loop()
        (work, their_work), (control, their_control) = socket.socketpair(), socket.socketpair()
        self._work, _ = await loop.create_unix_connection(lambda: self, sock=work)
        self._control, _ = await loop.create_unix_connection(asyncio.Protocol, sock=control)
        return [their_work, their_control]

    def begin(self, job: Job, listener: FlowListener) -> ProcessFlow:
        self.runs += 1
        self._flow = ProcessFlow(self, listener)
        self._work.write(frame(RunFlow(job)))
        return self._flow

    def tell(self, message: Struct) -> None:
        self._control.write(frame(message))

    @property
    def is_gone(self) -> bool:
        return self._work.is_closing()

    def kill(self) -> None:
        if self.pid and not self.is_gone:  # a process that has ended may have left its number to another
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """An idle executor ends when its channels do."""
        self._work.close()
        self._control.close()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= HEADER.size:
            end = start + HEADER.size + HEADER.unpack_from(buffer, start)[0]
            if len(buffer) < end:
                break
            self._received(bytes(buffer[start + HEADER.size : end]))
            start = end
        del buffer[:start]

    def _received(self, payload: bytes) -> None:
        message = decode_from_executor(payload)
        match message:
            case Ready():
                self.ready.set_result(None)
            case Unusable():
                self.ready.set_result(message.error)
            case Progressed() if self._flow is not None:
                self._flow.listener.progressed(message.progress)
            case Printed() if self._flow is not None:
                self._flow.listener.printed(message.entries)
            case Ended():
                self._ended(message)

    def _ended(self, message: Ended) -> None:
        flow, self._flow = self._flow, None
        self.rss_bytes = message.rss_bytes
        if flow is not None:
            if message.entries:
                flow.listener.printed(message.entries)
            if not flow.ended.done():
                flow.ended.set_result(message.outcome)
        if self._pool.is_spent(self):
            self.hang_up()
        else:
            self._pool.is_idle(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._control.close()
        if not self.ready.done():
            self.ready.set_result("it ended while it loaded the flows")
            return
        self._pool.is_gone(self)
        if self._flow is not None:
            task = asyncio.ensure_future(self._explain_death(self._flow))
            self._flow.ended.add_done_callback(lambda _: task.cancel())

    async def _explain_death(self, flow: ProcessFlow) -> None:
        """Its run ends with it; only its run."""
        exited = self._pool.exit_code_of(self.pid)
        await asyncio.wait({exited}, timeout=EXIT_CODE_PATIENCE_SEC)
        how = _how_it_ended(exited.result() if exited.done() else None)
        log.error(
            "an executor has ended in the middle of a run", action="executor.died", pid=self.pid, how=how
        )
        if not flow.ended.done():
            ending = Ending.CANCELLED if flow.was_killed else Ending.EXECUTION_ERROR
            flow.ended.set_result(FlowOutcome(ending=ending, error=f"the executor process {how}"))


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class _Zygote(asyncio.Protocol):
    """The process that forks executors, and tells how they ended."""

    def __init__(self, child: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._child = child
        self._channel = channel
        self._buffer = bytearray()
        self._asked: deque[asyncio.Future[int]] = deque()
        self._exits: dict[int, asyncio.Future[int]] = {}

    @classmethod
    async def start(cls) -> "_Zygote":
        ours, theirs = socket.socketpair()
        # One end is only for asking: descriptors cannot be sent through a transport.
        child = start_child(
            [sys.executable, "-m", "pyoco_server.engine.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        reading = ours.dup()
        zygote = cls(child, ours)
        ours.setblocking(True)
        await asyncio.get_running_loop().create_unix_connection(lambda: zygote, sock=reading)
        return zygote

    async def fork(self, spec: ExecutorSpec, channels: list[socket.socket]) -> int:
        """The new executor's pid."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        socket.send_fds(self._channel, [frame(spec)], [channel.fileno() for channel in channels])
        for channel in channels:
            channel.close()
        return await asked

    def exit_code_of(self, pid: int) -> "asyncio.Future[int]":
        return self._exits.setdefault(pid, asyncio.get_running_loop().create_future())

    def stop(self) -> None:
        self._channel.close()
        stop_child(self._child)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= REPORT.size:
            kind, pid, code = REPORT.unpack_from(self._buffer)
            del self._buffer[: REPORT.size]
            if kind == STARTED:
                self._asked.popleft().set_result(pid)
            elif kind == ENDED:
                self._exited(pid, code)

    def _exited(self, pid: int, code: int) -> None:
        exited = self.exit_code_of(pid)
        if not exited.done():
            exited.set_result(code)
        asyncio.get_running_loop().call_later(EXIT_CODE_PATIENCE_SEC * 2, self._exits.pop, pid, None)
