"""The worker's handle of a flow that runs in an executor process, or waits for one."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Raw, Struct
from msgspec.structs import replace

from pyoco_server.domain.runs.jobs import Ending, FlowListener, FlowOutcome, FlowProgress, Job
from pyoco_server.domain.runs.model import CodeWheel
from pyoco_server.engine.executors.protocol import (
    CancelFlow,
    ExecutorSpec,
    GoLive,
    KnownRecords,
    RunFlow,
    TaskEnded,
    TaskStarted,
    Unframable,
    Written,
    encode_job,
)
from pyoco_server.logs import get_logger

log = get_logger(__name__)


class FlowExecutor(Protocol):
    """The executor that has the flow."""

    @property
    def spec(self) -> ExecutorSpec: ...
    def send(self, message: Struct) -> None: ...
    def read_arrived(self) -> None: ...
    def kill(self, flow: "ProcessFlowHandle") -> None: ...


class ProcessFlowHandle:
    """Remembers the requests, because the flow may move to another executor before it starts."""

    def __init__(self, job: Job, listener: FlowListener) -> None:
        self._job = job
        self.listener = listener
        self.ended: asyncio.Future[FlowOutcome | None] = asyncio.get_running_loop().create_future()
        """None: it never started."""
        self.was_killed = False
        self.nth = 0
        self.wheels: tuple[CodeWheel, ...] = ()
        self._executor: FlowExecutor | None = None
        self._encoded = Raw()
        self._placed: asyncio.Future[bool] | None = None
        self._wait_timer: asyncio.TimerHandle | None = None
        self._is_live = False
        self._is_cancelled = False
        self._deadlines: dict[str, _Deadline] = {}
        self._timed_out: str | None = None
        self._records = KnownRecords()

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
        """End the flow together with its process."""
        if not self.ended.done():
            self.was_killed = True
            if self._executor is not None:
                self._executor.kill(self)
            if self._executor is None:
                self.end(FlowOutcome(ending=Ending.CANCELLED, error="cancelled before it started"))
        return True

    def _send(self, message: Struct) -> None:
        if self._executor is not None and not self.ended.done():
            self._executor.send(message)

    # Finding an executor

    def is_sendable(self) -> bool:
        """Encode the job, once. A job that cannot be encoded fails here, without harm to others."""
        try:
            self._encoded = encode_job(self._job)
        except Unframable as error:
            text = f"the job cannot be sent to an executor: {error}"
            self.end(FlowOutcome(ending=Ending.EXECUTION_ERROR, error=text))
            return False
        return True

    async def is_placed(self) -> bool:
        """Wait for the first executor. False: `give_up` came first."""
        self._placed = asyncio.get_running_loop().create_future()
        return await self._placed

    def start_waiting(self, timeout_sec: float, on_timeout: Callable[["ProcessFlowHandle"], None]) -> None:
        self._wait_timer = asyncio.get_running_loop().call_later(timeout_sec, on_timeout, self)

    def stop_waiting(self) -> bool:
        """Whether the flow is still to be run."""
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        return not (self.ended.done() or (self._placed is not None and self._placed.cancelled()))

    def give_up(self) -> None:
        """No executor became free in time."""
        if self._placed is not None and not self._placed.done():
            self._placed.set_result(False)
        else:
            self.end(None)

    def placed_at(self, executor: FlowExecutor, nth: int) -> RunFlow:
        """The message for the executor, including what was requested so far."""
        self._executor = executor
        self.nth = nth
        self.wheels = executor.spec.wheels
        if self._placed is not None and not self._placed.done():
            self._placed.set_result(True)
        return RunFlow(nth, self._encoded, is_live=self._is_live, is_cancelled=self._is_cancelled)

    def taken_back(self) -> None:
        self._executor = None

    # Reports from the executor

    def progressed(self, progress: FlowProgress) -> None:
        self.listener.progressed(self._records.completed(progress))

    def end(self, outcome: FlowOutcome | None) -> None:
        for deadline in self._deadlines.values():
            deadline.timer.cancel()
        self._deadlines.clear()
        if not self.ended.done():
            if self._timed_out is not None and outcome is not None:
                outcome = replace(outcome, ending=Ending.EXECUTION_ERROR, error=self._timed_out, result=None)
            self.ended.set_result(outcome)

    # Task timeouts

    def task_started(self, started: TaskStarted, grace: float) -> None:
        """The engine continues without an isolated task, so that one only gets a hard limit."""
        delay = started.timeout_sec + (grace if started.is_isolated else 0.0)
        on_timeout = self._kill_overdue if started.is_isolated else self._cancel_overdue
        self._set_deadline(started, delay, on_timeout, grace)

    def task_ended(self, ended: TaskEnded) -> None:
        deadline = self._deadlines.pop(ended.task, None)
        if deadline is None:
            return
        deadline.timer.cancel()
        started = deadline.started
        if ended.took_sec > started.timeout_sec and not started.is_isolated:
            self._time_out(started)  # the worker was too busy to notice
            self.cancel()

    def _set_deadline(
        self,
        started: TaskStarted,
        delay: float,
        on_timeout: Callable[[TaskStarted, float], None],
        grace: float,
    ) -> None:
        timer = asyncio.get_running_loop().call_later(delay, self._check, started, on_timeout, grace)
        self._deadlines[started.task] = _Deadline(started, timer)

    def _check(
        self, started: TaskStarted, on_timeout: Callable[[TaskStarted, float], None], grace: float
    ) -> None:
        """Read what has arrived first: the task may have ended while the worker was busy."""
        if self._executor is not None:
            self._executor.read_arrived()
        if started.task in self._deadlines and not self.ended.done():
            on_timeout(started, grace)

    def _cancel_overdue(self, started: TaskStarted, grace: float) -> None:
        """Before the process is killed, a task may notice `ctx.is_cancelled`."""
        self._time_out(started)
        self.cancel()
        # The engine has the same deadline and may set FAILED over our request: repeat it.
        asyncio.get_running_loop().call_later(grace / 2, self.cancel)
        self._set_deadline(started, grace, self._kill_overdue, grace)

    def _kill_overdue(self, started: TaskStarted, _grace: float) -> None:
        self._time_out(started)
        if self._executor is not None:
            self._executor.kill(self)

    def _time_out(self, started: TaskStarted) -> None:
        if self._timed_out is None:
            self._timed_out = f"task {started.task!r} timed out after {started.timeout_sec:g} s"
            log.warning("task timed out", action="task.timeout", run_id=self._job.run_id, task=started.task)


class _Deadline(Struct, frozen=True):
    started: TaskStarted
    timer: asyncio.TimerHandle
