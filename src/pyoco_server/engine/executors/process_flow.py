"""The worker's handle of a flow that runs in an executor process, or waits for one."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Raw, Struct
from msgspec.structs import replace

from pyoco_server import tracing
from pyoco_server.domain.runs.jobs import Ending, FlowListener, FlowOutcome, FlowProgress, Job
from pyoco_server.domain.runs.model import CodeWheel, FailureKind, TaskRecord, TaskState
from pyoco_server.domain.runs.task_requests import TaskRequest
from pyoco_server.domain.traces import Span
from pyoco_server.engine.executors.protocol import (
    Answered,
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
        self._deadlines: dict[str | None, _Deadline] = {}
        """By task; None: of the whole flow."""
        self._timed_out: _Limit | None = None
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
        self._remove_deadline(None)

    # Reports from the executor

    def progressed(self, progress: FlowProgress, spans: Sequence[Span] = ()) -> None:
        tracing.emit(spans)
        self.listener.progressed(self._records.completed(progress))

    def asked(self, number: int, request: TaskRequest) -> None:
        self.listener.asked(request, lambda answer: self._send(Answered(self.nth, number, answer)))

    def end(self, outcome: FlowOutcome | None, spans: Sequence[Span] = ()) -> None:
        tracing.emit(spans)
        for deadline in self._deadlines.values():
            deadline.timer.cancel()
        self._deadlines.clear()
        if not self.ended.done():
            if self._timed_out is not None and outcome is not None:
                outcome = _overdue(outcome, self._timed_out, self._records.latest)
            self.ended.set_result(outcome)

    # Timeouts of the flow and of its tasks

    def came_first(self, grace: float) -> None:
        """No other flow of its executor is before it: it starts now."""
        if self._job.timeout_sec is not None:
            limit = _Limit(None, self._job.timeout_sec, grace)
            self._set_deadline(limit, limit.timeout_sec, self._cancel_overdue)

    def task_started(self, started: TaskStarted, grace: float) -> None:
        """The engine continues without an isolated task, so that one only gets a hard limit."""
        limit = _Limit(started.task, started.timeout_sec, grace, started.is_isolated)
        delay = limit.timeout_sec + (grace if limit.is_isolated else 0.0)
        self._set_deadline(limit, delay, self._kill_overdue if limit.is_isolated else self._cancel_overdue)

    def task_ended(self, ended: TaskEnded) -> None:
        limit = self._remove_deadline(ended.task)
        if limit is not None and ended.took_sec > limit.timeout_sec and not limit.is_isolated:
            self._time_out(limit)  # the worker was too busy to notice
            self.cancel()

    def _set_deadline(self, limit: "_Limit", delay: float, on_timeout: Callable[["_Limit"], None]) -> None:
        timer = asyncio.get_running_loop().call_later(delay, self._check, limit, on_timeout)
        self._deadlines[limit.task] = _Deadline(limit, timer)

    def _remove_deadline(self, task: str | None) -> "_Limit | None":
        deadline = self._deadlines.pop(task, None)
        if deadline is None:
            return None
        deadline.timer.cancel()
        return deadline.limit

    def _check(self, limit: "_Limit", on_timeout: Callable[["_Limit"], None]) -> None:
        """Read what has arrived first: the task may have ended while the worker was busy."""
        if self._executor is not None:
            self._executor.read_arrived()
        if limit.task in self._deadlines and not self.ended.done():
            on_timeout(limit)

    def _cancel_overdue(self, limit: "_Limit") -> None:
        """Before the process is killed, a task may notice `ctx.is_cancelled`."""
        self._time_out(limit)
        self.cancel()
        # The engine has the same deadline and may set FAILED over our request: repeat it.
        asyncio.get_running_loop().call_later(limit.grace_sec / 2, self.cancel)
        self._set_deadline(limit, limit.grace_sec, self._kill_overdue)

    def _kill_overdue(self, limit: "_Limit") -> None:
        self._time_out(limit)
        if self._executor is not None:
            self._executor.kill(self)

    def _time_out(self, limit: "_Limit") -> None:
        if self._timed_out is None:
            self._timed_out = limit
            if limit.task is None:
                log.warning("run timed out", action="run.timeout", run_id=self._job.run_id)
            else:
                log.warning("task timed out", action="task.timeout", run_id=self._job.run_id, task=limit.task)


def timeout_text(task: str | None, timeout_sec: float) -> str:
    what = "" if task is None else f"task {task!r} "
    return f"{what}timed out after {timeout_sec:g} s"


def timed_out(outcome: FlowOutcome, error: str) -> FlowOutcome:
    """Whatever the flow returned after its timeout."""
    return replace(
        outcome,
        ending=Ending.EXECUTION_ERROR,
        error=error,
        failure_kind=FailureKind.TIMEOUT,
        result=None,
    )


class _Limit(Struct, frozen=True):
    task: str | None
    """None: the whole flow."""
    timeout_sec: float
    grace_sec: float
    is_isolated: bool = False


class _Deadline(Struct, frozen=True):
    limit: _Limit
    timer: asyncio.TimerHandle


def _overdue(outcome: FlowOutcome, limit: _Limit, latest: FlowProgress) -> FlowOutcome:
    """`latest`: the progress of a flow whose process was killed, which returns none."""
    error = timeout_text(limit.task, limit.timeout_sec)
    progress = outcome.progress if outcome.progress.tasks else latest
    if limit.task is not None:
        progress = _with_failed(progress, limit.task, error)
    return timed_out(replace(outcome, progress=progress), error)


def _with_failed(progress: FlowProgress, task: str, error: str) -> FlowProgress:
    """A task that held the interpreter could not report that it started."""
    if progress.tasks.get(task) in (TaskState.SUCCEEDED, TaskState.FAILED):
        return progress
    record = progress.task_records.get(task) or TaskRecord(state=TaskState.FAILED)
    failed = replace(record, state=TaskState.FAILED, error=record.error or error)
    return replace(
        progress,
        tasks={**progress.tasks, task: TaskState.FAILED},
        task_records={**progress.task_records, task: failed},
    )
