"""The worker's side of one executor process: its channels, its queue of flows, and its end."""

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from msgspec import Struct

from pyoco_server.domain.runs.jobs import Ending, FlowOutcome
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.model import FailureKind
from pyoco_server.engine.executors.process_flow import ProcessFlowHandle
from pyoco_server.engine.executors.protocol import (
    HEADER,
    MAX_FRAME_BYTES,
    Asked,
    BrokenFrame,
    Ended,
    ExecutorSpec,
    FromExecutor,
    Limits,
    Lost,
    OfFlow,
    Ping,
    Printed,
    Progressed,
    Ready,
    RunFlow,
    Skipped,
    TaskEnded,
    TaskStarted,
    Tickets,
    Unusable,
    decode_from_executor,
    end_of_frame,
    frame,
)
from pyoco_server.engine.executors.zygote import how_it_ended
from pyoco_server.engine.output import Ends, close_all, unread_output
from pyoco_server.engine.resolve import FlowNames
from pyoco_server.logs import get_logger
from pyoco_server.processes import end_group

log = get_logger(__name__)

EXIT_TIMEOUT_SEC = 5.0
"""How long to wait for the exit code of a process that cannot be reached."""


class Pool(Protocol):
    """The owner of the executor."""

    @property
    def limits(self) -> Limits: ...

    def flow_ended(self, busy_sec: float) -> None: ...
    def reuse(self, executor: "ExecutorProcess") -> None:
        """A flow of the executor has ended, and it can run more."""
        ...

    def freed(self, executor: "ExecutorProcess") -> None: ...
    def gone(self, executor: "ExecutorProcess") -> None: ...
    def take_back(self, flows: list[ProcessFlowHandle]) -> None:
        """Flows that did not start and need another executor."""
        ...


class ExecutorProcess(asyncio.Protocol):
    """Runs its flows in the order in which it got them.

    The process has ended when the zygote reports its exit. A closed channel proves nothing: child processes
    of a task may keep it open, or the task has closed it. In the latter case the process is killed.
    """

    def __init__(self, pool: Pool, spec: ExecutorSpec) -> None:
        self._pool = pool
        self.spec = spec
        self._buffer = bytearray()
        self._flows: deque[ProcessFlowHandle] = deque()
        """Flows whose end was not reported: the first has started, or the report of its end is on the way."""
        self._to_send: list[RunFlow] = []
        self._last_sent = 0
        self._tickets = Tickets()
        self._output: Sequence[int] = ()
        self._last_output: list[tuple[str, str]] = []
        self._queue_check: asyncio.TimerHandle | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._is_slow = False
        self._is_retired = False
        self._is_hung_up = False
        self._has_exited = False
        self._has_read_all = False
        self._is_over = False
        self._fault: str | None = None
        self.flow_names = FlowNames()
        self.pid = 0
        self.runs = 0
        self.rss_bytes = 0
        self.ready: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """None: the flows are loaded. Otherwise the reason why they are not."""

    async def connect(self) -> list[int]:
        """Create the channels. Returns the executor's ends."""
        loop = asyncio.get_running_loop()
        with ExitStack() as undone:  # on a cancel, or when no descriptors are left
            undone.callback(self._give_up)
            work, their_work = map(undone.enter_context, socket.socketpair())
            control, their_control = map(undone.enter_context, socket.socketpair())
            tickets = self._tickets.for_executor()
            undone.callback(os.close, tickets)
            output = Ends.new()
            undone.callback(output.close)
            their_output = [os.dup(end) for end in output.read]
            undone.callback(close_all, their_output)
            self._control, _ = await loop.create_unix_connection(lambda: _Control(self), sock=control)
            undone.callback(self._control.close)
            undone.callback(setattr, self, "_is_over", True)  # before the transport reports its end
            self._work, _ = await loop.create_unix_connection(lambda: self, sock=work)
            undone.pop_all()
        self._output = output.read
        self._work.write(frame(self.spec))
        return [their_work.detach(), their_control.detach(), tickets, *their_output, *output.write]

    def _give_up(self) -> None:
        """It was never started: closing its channels must not end it once more."""
        self._is_over = True
        self._tickets.close()

    @property
    def flow_count(self) -> int:
        """Queued flows, including the running one."""
        return len(self._flows)

    @property
    def is_usable(self) -> bool:
        """False also while it runs a long flow: nothing should queue behind that."""
        return not (self._is_slow or self._is_retired or self._has_exited or self._work.is_closing())

    def enqueue(self, flow: ProcessFlowHandle) -> None:
        self.runs += 1
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._send)
        self._to_send.append(flow.placed_at(self, self.runs))
        self._flows.append(flow)
        if len(self._flows) == 1:
            flow.came_first(self._pool.limits.grace_sec)
        if self._queue_check is None and len(self._flows) > 1:
            self._check_queue_later()
        if self._ping is None:
            self._ping_later()

    def _send(self) -> None:
        """Everything queued in one turn of the loop: the process wakes up once."""
        if self._to_send and not self._work.is_closing():
            jobs, self._to_send = self._to_send, []
            self._tickets.give(*(job.nth for job in jobs))
            for job in jobs:
                job.after, self._last_sent = self._last_sent, job.nth
            self._work.write(b"".join(map(frame, jobs)))

    def send(self, message: Struct) -> None:
        """On the control channel."""
        self._control.write(frame(message))

    def kill(self, flow: ProcessFlowHandle) -> None:
        """Kill one flow and no other: flows that have not started move elsewhere first."""
        self._move_queue(but=flow)
        # If one behind it has started, this one has ended, and the report is on the way.
        if self._flows and self._flows[-1] is flow:
            self.kill_process()

    def kill_process(self) -> None:
        """Including everything its runs have started."""
        if self.pid and not self._has_exited:  # otherwise the pid may have been reused
            end_group(self.pid)

    def retire(self) -> None:
        """Start no more flows; exit after the running one."""
        self._is_retired = True
        self._move_queue()
        if not self._flows:
            self.hang_up()

    def hang_up(self) -> None:
        """An idle executor exits when its channels are closed."""
        self._is_hung_up = True
        self._work.close()
        self._control.close()
        if not self._has_exited:
            asyncio.get_running_loop().call_later(EXIT_TIMEOUT_SEC, self.kill_process)

    # The queue

    def _take_back(self) -> list[ProcessFlowHandle]:
        """The flows that it has not started, and now never will."""
        numbers = self._tickets.take_back() | {job.nth for job in self._to_send}
        self._to_send.clear()
        return self._removed([flow for flow in self._flows if flow.nth in numbers])

    def _removed(self, flows: list[ProcessFlowHandle]) -> list[ProcessFlowHandle]:
        self._flows = deque(flow for flow in self._flows if flow not in flows)
        for flow in flows:
            flow.taken_back()
        return flows

    def _move_queue(self, but: ProcessFlowHandle | None = None) -> None:
        """Flows that have not started move to another executor, or back to this one if it is free."""
        taken = self._take_back()
        if taken and not self._flows and not self._is_retired:
            self._pool.freed(self)
        self._pool.take_back([flow for flow in taken if flow is not but])

    def _check_queue_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._queue_check = loop.call_later(
            self._pool.limits.queue_timeout_sec, self._check_queue, self._flows[0]
        )

    def _check_queue(self, first: ProcessFlowHandle) -> None:
        self._queue_check = None
        if len(self._flows) < 2:  # noqa: PLR2004 - nothing is queued behind the first
            return
        if self._flows[0] is first:
            self._move_queue()
            self._is_slow = bool(self._flows)  # if empty, even the first had not started
        else:
            self._check_queue_later()

    # Lost jobs: a task can read from the channel

    def _ping_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._ping = loop.call_later(self._pool.limits.ping_after_sec, self._ping_if_still, self._flows[0])

    def _ping_if_still(self, first: ProcessFlowHandle) -> None:
        """Once for each flow that runs for long."""
        self._ping = None
        if not self._flows or self._work.is_closing():
            return
        if self._flows[0] is first:
            self._work.write(frame(Ping(self._last_sent)))
        else:
            self._ping_later()

    # Messages

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= HEADER.size and self._fault is None:
                end = end_of_frame(buffer, start)
                if len(buffer) < end:
                    break
                self._received(decode_from_executor(bytes(buffer[start + HEADER.size : end])))
                start = end
        except BrokenFrame as error:
            self._distrust(str(error))
        del buffer[:start]

    def _received(self, message: FromExecutor) -> None:
        match message:
            case Ready():
                self.flow_names = message.flows
                self._set_ready(None)
            case Unusable():
                self._set_ready(message.error)
            case Skipped():
                # Usually the ticket was taken back. Otherwise a task has read it.
                self._not_started([flow for flow in self._flows if flow.nth == message.nth], "no ticket")
            case Lost():
                self._not_started([flow for flow in self._flows if flow.nth > message.after], "no job")
            case _:
                self._received_of_flow(message)

    def _set_ready(self, error: str | None) -> None:
        if not self.ready.done():
            self.ready.set_result(error)

    def _received_of_flow(self, message: OfFlow) -> None:
        """A message of one run never reaches another."""
        flow = self._flows[0] if self._flows else None
        if flow is None or message.nth != flow.nth:
            self._received_of_other_flow(message)
            return
        match message:
            case Progressed():
                flow.progressed(message.progress, message.spans)
            case Printed():
                flow.listener.printed(message.entries)
            case Asked():
                flow.asked(message.number, message.request)
            case TaskStarted():
                flow.task_started(message, min(self._pool.limits.grace_sec, message.timeout_sec))
            case TaskEnded():
                flow.task_ended(message)
            case Ended():
                self._ended(self._flows.popleft(), message)

    def _received_of_other_flow(self, message: OfFlow) -> None:
        """Late progress of an ended flow is ignored; anything else breaks the protocol."""
        first = self._flows[0].nth if self._flows else self.runs + 1
        if message.nth >= first or isinstance(message, Ended):
            self._distrust(f"a message of run {message.nth} during run {first}")

    def _not_started(self, lost: list[ProcessFlowHandle], lacking: str) -> None:
        """A task has read what was sent to its executor: the flows move elsewhere."""
        if not lost:
            return
        self._distrust(f"{lacking} for run {lost[0].nth}")
        self._pool.take_back(self._removed(lost))

    def _distrust(self, fault: str) -> None:
        """Protocol error: a task has used the channels. Nothing more is read from the executor."""
        if self._fault is None:
            self._fault = fault
            self._is_slow = True  # nothing may queue here
            self.kill_process()

    def _ended(self, flow: ProcessFlowHandle, message: Ended) -> None:
        self._is_slow = False
        if self._flows:
            self._flows[0].came_first(self._pool.limits.grace_sec)
        self.rss_bytes = message.rss_bytes
        self._pool.flow_ended(message.busy_sec)
        if self._flows and self._ping is None:
            self._ping_later()
        if message.entries:
            flow.listener.printed(message.entries)
        flow.end(message.outcome, message.spans)
        if message.leftovers:
            self._left_behind(message.leftovers)
        elif self._is_retired:
            if not self._flows:
                self.hang_up()
        else:
            self._pool.reuse(self)

    def _left_behind(self, leftovers: tuple[str, ...]) -> None:
        """It exits and starts nothing more: what is queued moves, even if a task has read its ticket."""
        log.info(
            "run left state behind; replacing its executor",
            action="executor.leftovers",
            pid=self.pid,
            leftovers=list(leftovers),
        )
        self._is_retired = True
        queued = self._take_back() + self._removed(list(self._flows))
        self.hang_up()
        self._pool.take_back(queued)

    # The end

    def started(self, pid: int) -> None:
        self.pid = pid

    def exited(self, code: int | None) -> None:
        """Its child processes ended before it. What it sent before its exit is read first."""
        self.read_arrived()
        self._has_exited = True
        self._finish(code)

    def read_arrived(self) -> None:
        """Read the channel now, without waiting for the loop's next turn."""
        if self._work.is_closing():
            return
        left = MAX_FRAME_BYTES
        with socket.socket(fileno=os.dup(self._work.get_extra_info("socket").fileno())) as arrived:
            try:
                while left > 0 and self._fault is None:
                    data = arrived.recv(1 << 16, socket.MSG_DONTWAIT)
                    if not data:
                        self.eof_received()
                        return
                    left -= len(data)
                    self.data_received(data)
            except (BlockingIOError, ConnectionResetError):
                return

    def eof_received(self) -> None:
        self._has_read_all = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.channel_lost()

    def channel_lost(self) -> None:
        """Either channel: an executor needs both. The other one is read until the process has exited."""
        if self._is_over or self._is_hung_up or self._has_exited:
            self._finish(None)
            return
        self._is_retired = True
        self.kill_process()
        asyncio.get_running_loop().call_later(EXIT_TIMEOUT_SEC, self._finish, None)

    def _finish(self, code: int | None) -> None:
        """The running flow ends with the process; queued ones move."""
        if self._is_over:
            return
        self._is_over = True
        self._work.close()
        self._control.close()
        not_started = self._take_back() + self._take_back_queued()
        self._tickets.close()
        self._last_output = unread_output(self._output)
        close_all(self._output)
        if not self.ready.done():
            self.ready.set_result(f"the process {how_it_ended(code)} while loading the flows")
            return
        self._pool.gone(self)
        for flow in self._flows:
            self._explain(flow, how_it_ended(code))
        self._flows.clear()
        self._pool.take_back(not_started)

    def _take_back_queued(self) -> list[ProcessFlowHandle]:
        """A flow starts only after the end of the one before it was reported, whoever has its ticket."""
        if self._fault is not None or not self._has_read_all:  # reports may be unread
            return []
        return self._removed(list(self._flows)[1:])

    def _explain(self, flow: ProcessFlowHandle, how: str) -> None:
        self._report_last_output(flow, how)
        fault = "" if self._fault is None else f": {self._fault}"
        log.error("executor died in a run", action="executor.died", pid=self.pid, how=how, fault=self._fault)
        ending = Ending.CANCELLED if flow.was_killed else Ending.EXECUTION_ERROR
        error = f"the executor process {how}{fault}"
        flow.end(FlowOutcome(ending=ending, error=error, failure_kind=FailureKind.CRASH))

    def _report_last_output(self, flow: ProcessFlowHandle, how: str) -> None:
        """Output that the executor could not report, such as the traceback of a crash."""
        if self._last_output or not flow.was_killed:
            mark = f"… the executor process {how}; the last lines before that may be missing …\n"
            output = [*self._last_output, ("stderr", mark)]
            flow.listener.printed([LogEntry(None, stream, text, time.time()) for stream, text in output])


class _Control(asyncio.Protocol):
    """The control channel: only its end matters here."""

    def __init__(self, executor: ExecutorProcess) -> None:
        self._executor = executor

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._executor.channel_lost()
