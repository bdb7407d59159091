"""One executor process as the worker sees it, and the flows in its line."""

import asyncio
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from msgspec import Raw, Struct
from msgspec.structs import replace

from pyoco_server.domain.runs.jobs import Ending, FlowListener, FlowOutcome, FlowProgress, Job
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.model import CodeWheel
from pyoco_server.engine.executors.protocol import (
    HEADER,
    MAX_FRAME_BYTES,
    BrokenFrame,
    CancelFlow,
    Ended,
    ExecutorSpec,
    FromExecutor,
    GoLive,
    KnownRecords,
    Lost,
    Ping,
    Printed,
    Progressed,
    Ready,
    RunFlow,
    Skipped,
    TaskEnded,
    TaskStarted,
    Tickets,
    Unframable,
    Unusable,
    Written,
    decode_from_executor,
    encode_job,
    end_of_frame,
    frame,
)
from pyoco_server.engine.output import Ends, close_all, what_is_left
from pyoco_server.logs import get_logger
from pyoco_server.processes import end_group

log = get_logger(__name__)

EXIT_PATIENCE_SEC = 5.0
"""How long to wait for the exit code of a process that cannot be reached."""
LINE_PATIENCE_SEC = 0.01
"""Flows that stand behind one that takes longer are taken back: another executor may be free for them."""
PING_AFTER_SEC = 1.0
"""After so long in one flow an executor is to check that it has all its jobs."""


class ProcessFlow:
    """One flow: in an executor, or waiting for one."""

    def __init__(self, job: Job, listener: FlowListener) -> None:
        self._job = job
        self.listener = listener
        self.ended: asyncio.Future[FlowOutcome | None] = asyncio.get_running_loop().create_future()
        """None: it was never begun."""
        self.busy_sec = 0.0
        self.was_killed = False
        self._executor: ExecutorProcess | None = None
        self._encoded = Raw()
        self.nth = 0
        self._is_live = False
        self._is_cancelled = False
        self._deadlines: dict[str, _Deadline] = {}
        self._timed_out: str | None = None
        self.wheels: tuple[CodeWheel, ...] = ()
        self._records = KnownRecords()

    def is_sendable(self) -> bool:
        """Encoded once, before an executor has it. A job that cannot be encoded fails here, and alone."""
        try:
            self._encoded = encode_job(self._job)
        except Unframable as error:
            text = f"the job cannot be sent to an executor: {error}"
            self.end(FlowOutcome(ending=Ending.EXECUTION_ERROR, error=text))
            return False
        return True

    def handed_to(self, executor: "ExecutorProcess", nth: int) -> RunFlow:
        """The message for it, with what was asked of the flow while it stood elsewhere."""
        self._executor = executor
        self.nth = nth
        self.wheels = executor.spec.wheels
        return RunFlow(nth, self._encoded, is_live=self._is_live, is_cancelled=self._is_cancelled)

    def taken_back(self) -> None:
        self._executor = None

    def progressed(self, progress: FlowProgress) -> None:
        self.listener.progressed(self._records.completed(progress))

    async def outcome(self) -> FlowOutcome | None:
        return await self.ended

    def cancel(self) -> None:
        self._is_cancelled = True
        self._send(CancelFlow(self.nth))

    def go_live(self) -> None:
        self._is_live = True
        self._send(GoLive(self.nth))

    def written(self) -> None:
        self._send(Written(self.nth))

    def kill(self) -> bool:
        """End the flow with its process."""
        if not self.ended.done():
            self.was_killed = True
            if self._executor is not None:
                self._executor.kill(self)
            if self._executor is None:
                self.end(FlowOutcome(ending=Ending.CANCELLED, error="cancelled before it started"))
        return True

    def end(self, outcome: FlowOutcome | None) -> None:
        for deadline in self._deadlines.values():
            deadline.timer.cancel()
        self._deadlines.clear()
        if not self.ended.done():
            if self._timed_out is not None and outcome is not None:
                outcome = replace(outcome, ending=Ending.EXECUTION_ERROR, error=self._timed_out, result=None)
            self.ended.set_result(outcome)

    # Timeouts of its tasks

    def task_started(self, started: TaskStarted, grace: float) -> None:
        """An isolated one is left to the engine, which goes on without it; but not for ever."""
        pause = started.timeout_sec + (grace if started.is_isolated else 0.0)
        overdue = self._end_overdue if started.is_isolated else self._stop_overdue
        self._set_deadline(started, pause, overdue, grace)

    def task_ended(self, ended: TaskEnded) -> None:
        deadline = self._deadlines.pop(ended.task, None)
        if deadline is None:
            return
        deadline.timer.cancel()
        started = deadline.started
        if ended.took_sec > started.timeout_sec and not started.is_isolated:
            self._time_out(started)  # we were too busy to notice
            self.cancel()

    def _set_deadline(
        self, started: TaskStarted, pause: float, overdue: Callable[[TaskStarted, float], None], grace: float
    ) -> None:
        timer = asyncio.get_running_loop().call_later(pause, self._check, started, overdue, grace)
        self._deadlines[started.task] = _Deadline(started, timer)

    def _check(
        self, started: TaskStarted, overdue: Callable[[TaskStarted, float], None], grace: float
    ) -> None:
        """What has arrived is read first: we may have been busy with something else when the task ended."""
        if self._executor is not None:
            self._executor.read_arrived()
        if started.task in self._deadlines and not self.ended.done():
            overdue(started, grace)

    def _stop_overdue(self, started: TaskStarted, grace: float) -> None:
        """Asked first: a task may look at `ctx.is_cancelled`."""
        self._time_out(started)
        self.cancel()
        # At the same deadline the engine may mark the run as failed, over our request: it is asked again.
        asyncio.get_running_loop().call_later(grace / 2, self.cancel)
        self._set_deadline(started, grace, self._end_overdue, grace)

    def _end_overdue(self, started: TaskStarted, _grace: float) -> None:
        self._time_out(started)
        if self._executor is not None:
            self._executor.kill(self)

    def _time_out(self, started: TaskStarted) -> None:
        if self._timed_out is None:
            self._timed_out = f"task {started.task!r} timed out after {started.timeout_sec:g} s"
            log.warning(
                "a task has timed out", action="task.timeout", run_id=self._job.run_id, task=started.task
            )

    def _send(self, message: Struct) -> None:
        if self._executor is not None and not self.ended.done():
            self._executor.send(message)


class _Deadline(Struct, frozen=True):
    started: TaskStarted
    timer: asyncio.TimerHandle


class Pool(Protocol):
    """Who is notified of what becomes of an executor."""

    @property
    def grace_sec(self) -> float:
        """How long a task that has timed out may take to stop."""
        ...

    def is_free(self, executor: "ExecutorProcess") -> None: ...
    def has_ended_one(self, executor: "ExecutorProcess", flow: ProcessFlow) -> None: ...
    def is_gone(self, executor: "ExecutorProcess") -> None: ...
    def take_back(self, flows: list[ProcessFlow]) -> None: ...


class ExecutorProcess(asyncio.Protocol):
    """The worker's end of its channels. Flows are run in the order in which they were handed over.

    It has ended when the zygote reports its exit. The end of a channel is no proof: processes that a task has
    started may hold it open, or the task has closed it; then the process is ended.
    """

    def __init__(self, pool: Pool, spec: ExecutorSpec) -> None:
        self._pool = pool
        self.spec = spec
        self._buffer = bytearray()
        self._flows: deque[ProcessFlow] = deque()
        """Those that have not reported their end: the first has begun, or its end is on the way."""
        self._to_send: list[RunFlow] = []
        self._last_sent = 0
        self._tickets = Tickets()
        self._output: Sequence[int] = ()
        self._last_output: list[tuple[str, str]] = []
        self._look: asyncio.TimerHandle | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._is_slow = False
        self._is_retired = False
        self._is_hung_up = False
        self._has_exited = False
        self._has_read_all = False
        self._is_over = False
        self._fault: str | None = None
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

    @property
    def in_line(self) -> int:
        """How many flows it has, with the one that runs."""
        return len(self._flows)

    @property
    def is_usable(self) -> bool:
        """Not if its flow has turned out to be a long one: nobody should stand behind that."""
        return not (self._is_slow or self._is_retired or self._has_exited or self._work.is_closing())

    def begin(self, flow: ProcessFlow) -> None:
        """Now, or after those that it has."""
        self.runs += 1
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._send)
        self._to_send.append(flow.handed_to(self, self.runs))
        self._flows.append(flow)
        if self._look is None and len(self._flows) > 1:
            self._look_again()
        if self._ping is None:
            self._ping_later()

    def _send(self) -> None:
        """All that came in one turn of the loop: the process is woken up once for them."""
        if self._to_send and not self._work.is_closing():
            jobs, self._to_send = self._to_send, []
            self._tickets.give(*(job.nth for job in jobs))
            for job in jobs:
                job.after, self._last_sent = self._last_sent, job.nth
            self._work.write(b"".join(map(frame, jobs)))

    def send(self, message: Struct) -> None:
        """On the control channel."""
        self._control.write(frame(message))

    def kill(self, flow: ProcessFlow) -> None:
        """End a flow by force, and no other: those that have not begun go elsewhere first."""
        self._send_line_away(but=flow)
        # Has one behind it begun, then it has ended, and that is on its way to us.
        if self._flows and self._flows[-1] is flow:
            self.kill_process()

    def kill_process(self) -> None:
        """With all that its runs have started."""
        if self.pid and not self._has_exited:  # else its number may be another's by now
            end_group(self.pid)

    def retire(self) -> None:
        """No more flows: it ends after the one that it has begun."""
        self._is_retired = True
        self._send_line_away()
        if not self._flows:
            self.hang_up()

    def hang_up(self) -> None:
        """An idle executor ends when its channels do."""
        self._is_hung_up = True
        self._work.close()
        self._control.close()
        if not self._has_exited:
            asyncio.get_running_loop().call_later(EXIT_PATIENCE_SEC, self.kill_process)

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

    # Jobs that got lost: a task can read the channel, too

    def _ping_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._ping = loop.call_later(PING_AFTER_SEC, self._ping_if_still, self._flows[0])

    def _ping_if_still(self, first: ProcessFlow) -> None:
        """Once for each that is first for long. Only a task of its own could read it from the channel."""
        self._ping = None
        if not self._flows or self._work.is_closing():
            return
        if self._flows[0] is first:
            self._work.write(frame(Ping(self._last_sent)))
        else:
            self._ping_later()

    # What it reports

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
                self._is_ready(None)
            case Unusable():
                self._is_ready(message.error)
            case Skipped():
                # As a rule we had taken its ticket back. If not, somebody has stolen it.
                self._not_begun([flow for flow in self._flows if flow.nth == message.nth], "no ticket")
            case Lost():
                self._not_begun([flow for flow in self._flows if flow.nth > message.after], "no job")
            case _:
                self._received_of_flow(message)

    def _is_ready(self, error: str | None) -> None:
        if not self.ready.done():
            self.ready.set_result(error)

    def _received_of_flow(self, message: Progressed | Printed | TaskStarted | TaskEnded | Ended) -> None:
        """Messages of one run never reach another."""
        flow = self._flows[0] if self._flows else None
        if flow is None or message.nth != flow.nth:
            self._received_of_another(message)
            return
        match message:
            case Progressed():
                flow.progressed(message.progress)
            case Printed():
                flow.listener.printed(message.entries)
            case TaskStarted():
                flow.task_started(message, min(self._pool.grace_sec, message.timeout_sec))
            case TaskEnded():
                flow.task_ended(message)
            case Ended():
                self._ended(self._flows.popleft(), message)

    def _received_of_another(self, message: Progressed | Printed | TaskStarted | TaskEnded | Ended) -> None:
        """A late step of one that has ended is of no interest; anything else cannot be."""
        first = self._flows[0].nth if self._flows else self.runs + 1
        if message.nth >= first or isinstance(message, Ended):
            self._distrust(f"a message of run {message.nth} while it had run {first}")

    def _not_begun(self, lost: list[ProcessFlow], lacking: str) -> None:
        """A task has read what was meant for its executor: the flows go elsewhere."""
        if not lost:
            return
        self._flows = deque(flow for flow in self._flows if flow not in lost)
        for flow in lost:
            flow.taken_back()
        self._distrust(f"{lacking} for run {lost[0].nth}")
        self._pool.take_back(lost)

    def _distrust(self, fault: str) -> None:
        """It does not follow the protocol: a task has got at its channels. Nothing more is read from it."""
        if self._fault is None:
            self._fault = fault
            self._is_slow = True  # nobody is to stand behind
            self.kill_process()

    def _ended(self, flow: ProcessFlow, message: Ended) -> None:
        self._is_slow = False
        self.rss_bytes = message.rss_bytes
        flow.busy_sec = message.busy_sec
        if self._flows and self._ping is None:
            self._ping_later()
        if message.entries:
            flow.listener.printed(message.entries)
        flow.end(message.outcome)
        if message.leftovers and not self._is_retired:
            log.info(
                "a run has left something behind; its executor is replaced",
                action="executor.leftovers",
                pid=self.pid,
                leftovers=list(message.leftovers),
            )
            self.retire()
        elif self._is_retired:
            if not self._flows:
                self.hang_up()
        else:
            self._pool.has_ended_one(self, flow)

    # Its end

    def started(self, pid: int) -> None:
        self.pid = pid

    def exited(self, code: int | None) -> None:
        """All that it had started has ended before it. What it sent before its end is read first."""
        self.read_arrived()
        self._has_exited = True
        self._finish(code)

    def read_arrived(self) -> None:
        """What is in the channel now, without waiting for the loop's next turn."""
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
        if self._is_over:
            return
        if self._is_hung_up or self._has_exited:
            self._finish(None)
            return
        self._is_retired = True
        self.kill_process()
        asyncio.get_running_loop().call_later(EXIT_PATIENCE_SEC, self._finish, None)

    def _finish(self, code: int | None) -> None:
        """Its run ends with it, and only its run."""
        if self._is_over:
            return
        self._is_over = True
        self._work.close()
        self._control.close()
        not_begun = self._take_back() + self._behind_the_first()
        self._tickets.close()
        self._last_output = what_is_left(self._output)
        close_all(self._output)
        if not self.ready.done():
            self.ready.set_result(f"the process {_how_it_ended(code)} while it loaded the flows")
            return
        self._pool.is_gone(self)
        for flow in self._flows:
            self._explain(flow, _how_it_ended(code))
        self._flows.clear()
        self._pool.take_back(not_begun)

    def _behind_the_first(self) -> list[ProcessFlow]:
        """A flow is begun when the one before it has ended, and been reported. Also without its ticket."""
        if self._fault is not None or not self._has_read_all:  # else reports may be unread
            return []
        taken = list(self._flows)[1:]
        self._flows = deque(list(self._flows)[:1])
        for flow in taken:
            flow.taken_back()
        return taken

    def _explain(self, flow: ProcessFlow, how: str) -> None:
        self._report_last_output(flow, how)
        fault = "" if self._fault is None else f": {self._fault}"
        log.error(
            "an executor has ended in the middle of a run",
            action="executor.died",
            pid=self.pid,
            how=how,
            fault=self._fault,
        )
        ending = Ending.CANCELLED if flow.was_killed else Ending.EXECUTION_ERROR
        flow.end(FlowOutcome(ending=ending, error=f"the executor process {how}{fault}"))

    def _report_last_output(self, flow: ProcessFlow, how: str) -> None:
        """What the executor could not report itself any more, such as where its code has crashed."""
        if self._last_output or not flow.was_killed:
            mark = f"… the executor process {how}; the last lines before that may be missing …\n"
            output = [*self._last_output, ("stderr", mark)]
            flow.listener.printed([LogEntry(None, stream, text, time.time()) for stream, text in output])


class _Control(asyncio.Protocol):
    """Nothing is read from it; its end is of interest."""

    def __init__(self, executor: ExecutorProcess) -> None:
        self._executor = executor

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._executor.channel_lost()


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
