"""One executor process as the worker sees it, and the flows in its line."""

import asyncio
import os
import signal
import socket
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from typing import Protocol

from msgspec import Struct

from pyoco_server.domain.dispositions import Ending
from pyoco_server.domain.jobs import Job
from pyoco_server.domain.outcomes import FlowListener, FlowOutcome, FlowProgress
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
from pyoco_server.engine.record_changes import KnownRecords
from pyoco_server.engine.tickets import Tickets
from pyoco_server.logs import get_logger

log = get_logger(__name__)

EXIT_CODE_PATIENCE_SEC = 1.0
LINE_PATIENCE_SEC = 0.01
"""Flows that stand behind one that takes longer are taken back: another executor may be free for them."""


class ProcessFlow:
    """One flow: in an executor, or waiting for one."""

    def __init__(self, job: Job, listener: FlowListener) -> None:
        self.job = job
        self.listener = listener
        self.ended: asyncio.Future[FlowOutcome | None] = asyncio.get_running_loop().create_future()
        """None: it was never begun."""
        self.busy_sec = 0.0
        self.was_killed = False
        self._executor: ExecutorProcess | None = None
        self.nth = 0
        self._is_live = False
        self._is_cancelled = False
        self.wheels: tuple[CodeWheel, ...] = ()
        self._records = KnownRecords()

    def handed_to(self, executor: "ExecutorProcess", nth: int) -> RunFlow:
        """What to tell it, with what was asked of the flow while it stood in another's line, or in none."""
        self._executor = executor
        self.nth = nth
        self.wheels = executor.spec.wheels
        return RunFlow(nth, self.job, is_live=self._is_live, is_cancelled=self._is_cancelled)

    def taken_back(self) -> None:
        self._executor = None

    def progressed(self, progress: FlowProgress) -> None:
        self.listener.progressed(self._records.completed(progress))

    async def outcome(self) -> FlowOutcome | None:
        return await self.ended

    def cancel(self) -> None:
        self._is_cancelled = True
        self._tell(CancelFlow(self.nth))

    def go_live(self) -> None:
        self._is_live = True
        self._tell(GoLive(self.nth))

    def written(self) -> None:
        self._tell(Written(self.nth))

    def kill(self) -> bool:
        """End the flow with its process."""
        if not self.ended.done():
            self.was_killed = True
            if self._executor is not None:
                self._executor.kill(self)
            if self._executor is None:
                self.end(FlowOutcome(ending=Ending.CANCELLED, error="it was ended before it began"))
        return True

    def end(self, outcome: FlowOutcome | None) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)

    def _tell(self, message: Struct) -> None:
        if self._executor is not None and not self.ended.done():
            self._executor.tell(message)


class Pool(Protocol):
    """Whom an executor tells what becomes of it."""

    def is_free(self, executor: "ExecutorProcess") -> None: ...
    def has_ended_one(self, executor: "ExecutorProcess", flow: ProcessFlow) -> None: ...
    def is_gone(self, executor: "ExecutorProcess") -> None: ...
    def take_back(self, flows: list[ProcessFlow]) -> None: ...
    def exit_code_of(self, pid: int) -> "asyncio.Future[int]": ...


class ExecutorProcess(asyncio.Protocol):
    """The worker's end of its channels. Flows are run in the order in which they were handed over."""

    def __init__(self, pool: Pool, spec: ExecutorSpec) -> None:
        self._pool = pool
        self.spec = spec
        self._buffer = bytearray()
        self._flows: deque[ProcessFlow] = deque()
        """Those of whose end nothing was heard: the first has begun, or its end is on the way."""
        self._to_send: list[RunFlow] = []
        self._tickets = Tickets()
        self._look: asyncio.TimerHandle | None = None
        self._is_slow = False
        self._is_retired = False
        self.pid = 0
        self.runs = 0
        self.rss_bytes = 0
        self.ready: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """None when the flows are loaded, else why not."""

    async def connect(self) -> list[int]:
        """Makes the channels; answers with the executor's ends."""
        loop = asyncio.get_running_loop()
        with ExitStack() as undone:  # if we are stopped just now, or have no descriptors left
            undone.callback(self._tickets.close)
            work, their_work = map(undone.enter_context, socket.socketpair())
            control, their_control = map(undone.enter_context, socket.socketpair())
            tickets = self._tickets.for_executor()
            undone.callback(os.close, tickets)
            self._control, _ = await loop.create_unix_connection(asyncio.Protocol, sock=control)
            undone.callback(self._control.close)
            self._work, _ = await loop.create_unix_connection(lambda: self, sock=work)
            undone.pop_all()
        self._work.write(frame(self.spec))
        return [their_work.detach(), their_control.detach(), tickets]

    @property
    def in_line(self) -> int:
        """How many flows it has, with the one that runs."""
        return len(self._flows)

    @property
    def is_usable(self) -> bool:
        """Not if its flow has turned out to be a long one: nobody should stand behind that."""
        return not (self._is_slow or self._is_retired or self._work.is_closing())

    def begin(self, flow: ProcessFlow) -> None:
        """Now, or after those that it has."""
        self.runs += 1
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._send)
        self._to_send.append(flow.handed_to(self, self.runs))
        self._flows.append(flow)
        if self._look is None and len(self._flows) > 1:
            self._look_again()

    def _send(self) -> None:
        """All that came in one turn of the loop: the process is woken up once for them."""
        if self._to_send and not self._work.is_closing():
            jobs, self._to_send = self._to_send, []
            self._tickets.give(*(job.nth for job in jobs))
            self._work.write(b"".join(map(frame, jobs)))

    def tell(self, message: Struct) -> None:
        self._control.write(frame(message))

    def kill(self, flow: ProcessFlow) -> None:
        """End a flow by force, and no other: those that have not begun go elsewhere first."""
        self._send_line_away(but=flow)
        # Has one behind it begun, then it has ended, and that is on its way to us.
        if self._flows and self._flows[-1] is flow:
            self.kill_process()

    def kill_process(self) -> None:
        if self.pid and not self._work.is_closing():  # else its number may be another's by now
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def retire(self) -> None:
        """No more flows: it ends after the one that it has begun."""
        self._is_retired = True
        self._send_line_away()
        if not self._flows:
            self.hang_up()

    def hang_up(self) -> None:
        """An idle executor ends when its channels do."""
        self._work.close()
        self._control.close()

    # Its line

    def _take_back(self) -> list[ProcessFlow]:
        """The flows that it has not begun, and now never will."""
        numbers = self._tickets.take_back() | {job.nth for job in self._to_send}
        self._to_send.clear()
        if not numbers:
            return []
        taken = [flow for flow in self._flows if flow.nth in numbers]
        self._flows = deque(flow for flow in self._flows if flow.nth not in numbers)
        for flow in taken:
            flow.taken_back()
        return taken

    def _send_line_away(self, but: ProcessFlow | None = None) -> None:
        """Flows that it has not begun go to others, or back to it if it is the one that is free."""
        taken = self._take_back()
        if taken and not self._flows and not self._is_retired:
            self._pool.is_free(self)
        self._pool.take_back([flow for flow in taken if flow is not but])

    def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(LINE_PATIENCE_SEC, self._look_at_line, self._flows[0])

    def _look_at_line(self, first: ProcessFlow) -> None:
        self._look = None
        if len(self._flows) < 2:  # noqa: PLR2004 - nobody stands behind anybody
            return
        if self._flows[0] is first:
            self._send_line_away()
            self._is_slow = bool(self._flows)  # else it had not even begun the first
        else:
            self._look_again()

    # What it says

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
            case Progressed() if self._flows:
                self._flows[0].progressed(message.progress)
            case Printed() if self._flows:
                self._flows[0].listener.printed(message.entries)
            case Ended() if self._flows:
                self._ended(self._flows.popleft(), message)

    def _ended(self, flow: ProcessFlow, message: Ended) -> None:
        self._is_slow = False
        self.rss_bytes = message.rss_bytes
        flow.busy_sec = message.busy_sec
        if message.entries:
            flow.listener.printed(message.entries)
        flow.end(message.outcome)
        if self._is_retired:
            if not self._flows:
                self.hang_up()
        else:
            self._pool.has_ended_one(self, flow)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._control.close()
        not_begun = self._take_back()
        self._tickets.close()
        if not self.ready.done():
            self.ready.set_result("it ended while it loaded the flows")
            return
        self._pool.is_gone(self)
        for flow in self._flows:
            task = asyncio.ensure_future(self._explain_death(flow))
            flow.ended.add_done_callback(partial(_cancel, task))
        self._pool.take_back(not_begun)

    async def _explain_death(self, flow: ProcessFlow) -> None:
        """Its run ends with it; only its run."""
        exited = self._pool.exit_code_of(self.pid)
        await asyncio.wait({exited}, timeout=EXIT_CODE_PATIENCE_SEC)
        how = _how_it_ended(exited.result() if exited.done() else None)
        log.error(
            "an executor has ended in the middle of a run", action="executor.died", pid=self.pid, how=how
        )
        ending = Ending.CANCELLED if flow.was_killed else Ending.EXECUTION_ERROR
        flow.end(FlowOutcome(ending=ending, error=f"the executor process {how}"))


def _cancel(task: "asyncio.Task[None]", _ended: object) -> None:
    task.cancel()


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
