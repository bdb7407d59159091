"""An executor: a process that runs one flow at a time for its worker.

The main thread takes jobs from the work channel and runs those whose ticket it gets. A second thread reads
the control channel, because a cancel must arrive while a task runs. When the worker exits, both channels
close and the process exits; its run is repeated elsewhere.
"""

import contextvars
import gc
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyoco.core.models import Flow

from pyoco_server import otel
from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress, Job
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.task_requests import TaskRequest
from pyoco_server.engine.executors.process_state import ProcessState
from pyoco_server.engine.executors.protocol import (
    Answered,
    Asked,
    CancelFlow,
    Control,
    Ended,
    ExecutorSpec,
    ExecutorTickets,
    GoLive,
    Incoming,
    JobsLost,
    Lost,
    Printed,
    Progressed,
    Ready,
    RunFlow,
    SentRecords,
    Skipped,
    TaskEnded,
    TaskStarted,
    Unframable,
    Unusable,
    Written,
    frame,
    job_of,
)
from pyoco_server.engine.flow_run import OnTask
from pyoco_server.engine.output import OutputPipes
from pyoco_server.engine.print_capture import HostOutput
from pyoco_server.engine.resolve import (
    FindFlow,
    FlowOfJob,
    FlowResolver,
    LocalFlowHandle,
    flow_names,
    flow_of,
    load_resolver,
    why_unusable,
)
from pyoco_server.engine.tasks import end_fork, has_timeout

_WORKER_GONE = 3
"""Exit code."""
# Bound at import: a task may replace the functions of the module.
_getpid = os.getpid
_exit = os._exit

Send = Callable[[Any], None]


class Executor:
    def __init__(
        self,
        work: socket.socket,
        control: socket.socket,
        tickets: ExecutorTickets,
        pipes: OutputPipes | None = None,
    ) -> None:
        self._pipes = pipes
        self._own_threads: list[threading.Thread] = []
        self._work = work
        self._control = control
        self._tickets = tickets
        self._pid = _getpid()
        self._sendall = work.sendall
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._nth = 0
        self._flows: dict[int, ExecutorFlowHandle] = {}

    def keep_channels_from_forks(self) -> None:
        """A process that a task forks must not use the channels to the worker."""
        os.register_at_fork(after_in_child=self._close_channels)

    def _close_channels(self) -> None:
        for flow in self._flows.values():
            flow.renew_lock()
        self._work.close()
        self._control.close()
        self._tickets.close()

    def serve(self) -> None:
        jobs = Incoming(self._work)
        spec = jobs.spec()
        resolver = None if spec is None else self._load(spec)
        if spec is None or resolver is None:
            return
        otel.open_executor()
        gc.freeze()  # the flows are permanent
        threading.Thread(target=self._listen, daemon=True, name="pyoco-control").start()
        self._own_threads = threading.enumerate()
        state = ProcessState()
        self._send(Ready(flow_names(resolver)))
        try:
            self._serve(jobs, self._finder(resolver, spec), spec, state)
        except JobsLost as lost:
            self._send(Lost(lost.after))

    def _load(self, spec: ExecutorSpec) -> FlowResolver | None:
        sys.path[:0] = spec.path
        try:
            resolver = load_resolver(spec.flow_resolver)
        except BaseException as error:  # noqa: BLE001 - importing users' code may raise anything
            self._end_if_forked(error)
            self._send(Unusable(why_unusable(error)))
            return None
        self._end_if_forked()
        return resolver

    def _end_if_forked(self, error: BaseException | None = None) -> None:
        """Users' code outside of tasks (imports, resolvers) may fork, too."""
        if _getpid() != self._pid:
            end_fork(error)

    def _finder(self, resolver: FlowResolver, spec: ExecutorSpec) -> FindFlow:
        def find(job: Job) -> FlowOfJob | FlowOutcome:
            found = flow_of(job, resolver, spec.allowed_modules, spec.allowed_env)
            self._end_if_forked()
            return found

        return find

    def _serve(self, jobs: Incoming, find: FindFlow, spec: ExecutorSpec, state: ProcessState) -> None:
        """Raises JobsLost."""
        while (message := jobs.job()) is not None:
            if not self._tickets.take(message.nth):
                self._send(Skipped(message.nth))
                continue
            ended = self._done(message, find, spec, state)
            # Sent before the next run starts: if that one kills the process, this one has its end.
            self._send_end(ended)
            if ended.leftovers:
                return

    def _done(self, message: RunFlow, find: FindFlow, spec: ExecutorSpec, state: ProcessState) -> Ended:
        began = time.monotonic()
        flow = self._next_flow(message.nth)
        if message.is_live:
            flow.go_live()
        if message.is_cancelled:
            flow.cancel()
        # A copy, so that context variables set by a task end with the run.
        outcome = contextvars.copy_context().run(self._run, flow, job_of(message), find, spec)
        leftovers = state.restore()
        return Ended(
            message.nth,
            outcome,
            flow.unreported_output(),
            _rss_bytes() if spec.reports_memory else 0,
            time.monotonic() - began,
            leftovers,
            otel.collected(),
        )

    def _run(self, flow: "ExecutorFlowHandle", job: Job, find: FindFlow, spec: ExecutorSpec) -> FlowOutcome:
        return flow.run(
            job,
            find,
            self._pipes or HostOutput(),
            own_threads=self._own_threads,
            room=spec.room,
        )

    # Control

    def _listen(self) -> None:
        requests = Incoming(self._control)
        try:
            while (message := requests.control()) is not None:
                self._obey(message)
        finally:  # also when a task has closed or corrupted the channel: nothing could be cancelled any more
            _exit(_WORKER_GONE)

    def _obey(self, message: Control) -> None:
        flow = self._requested_flow(message.nth)
        if flow is None:
            return
        match message:
            case CancelFlow():
                flow.cancel()
            case GoLive():
                flow.go_live()
            case Written():
                flow.written()
            case Answered():
                flow.answered(message.number, message.answer)

    def _next_flow(self, nth: int) -> "ExecutorFlowHandle":
        with self._lock:
            for ended in [known for known in self._flows if known < nth]:
                del self._flows[ended]
            self._nth = nth
            return self._flows.setdefault(nth, self._new_handle(nth))

    def _requested_flow(self, nth: int) -> "ExecutorFlowHandle | None":
        """The running flow, or one whose job was not read yet; None if that flow has ended."""
        with self._lock:
            return None if nth < self._nth else self._flows.setdefault(nth, self._new_handle(nth))

    def _new_handle(self, nth: int) -> "ExecutorFlowHandle":
        return ExecutorFlowHandle(nth, self._send, self._pipes)

    # Sending

    def _send_end(self, ended: Ended) -> None:
        try:
            self._send(ended)
        except Unframable as error:
            outcome = FlowOutcome(
                ending=Ending.EXECUTION_ERROR, error=f"the run's outcome cannot be reported: {error}"
            )
            self._send(Ended(ended.nth, outcome, busy_sec=ended.busy_sec, leftovers=ended.leftovers))

    def _send(self, message: Any) -> None:
        if _getpid() != self._pid:  # a process that a task has forked, and that prints
            return
        data = frame(message)
        with self._sending:
            self._sendall(data)


class ExecutorFlowHandle(LocalFlowHandle):
    """Reports to the worker: one progress report in flight, the newest waiting, and output in batches."""

    def __init__(self, nth: int, send: Send, pipes: OutputPipes | None) -> None:
        super().__init__(pipes.call_later if pipes else None)
        self._nth = nth
        self._send = send
        self._is_in_flight = False
        self._waiting: FlowProgress | None = None
        self._sent: SentRecords | None = None

    def renew_lock(self) -> None:
        """In a process that a task has forked: the thread that held the lock does not exist there."""
        self._lock = threading.Lock()

    def progressed(self, progress: FlowProgress) -> None:
        with self._lock:
            if self._is_in_flight:
                self._waiting = progress
                return
            self._is_in_flight = True
        self._send_progress(progress)

    def written(self) -> None:
        """The worker has stored the last report."""
        with self._lock:
            progress, self._waiting = self._waiting, None
            self._is_in_flight = progress is not None
        if progress is not None:
            self._send_progress(progress)

    def _send_progress(self, progress: FlowProgress) -> None:
        if self._sent is None:
            self._sent = SentRecords()
        with suppress(Unframable):  # the end of the run will report the same problem
            self._send(Progressed(self._nth, self._sent.new_in(progress), otel.collected()))

    def printed(self, entries: list[LogEntry]) -> None:
        self._send(Printed(self._nth, entries))

    def asked(self, number: int, request: TaskRequest) -> None:
        self._send(Asked(self._nth, number, request))

    def _watched(self, flow: Flow, on_task: OnTask) -> OnTask:
        limited = {task.name: task for task in flow.tasks if has_timeout(task)}
        return _TimeoutReports(limited, self._nth, self._send, on_task).entered if limited else on_task


class _TimeoutReports:
    """Reports the start and end of tasks with a timeout. Flows without timeouts report nothing."""

    def __init__(self, limited: dict[str, Any], nth: int, send: Send, on_task: OnTask) -> None:
        self._limited = limited
        self._nth = nth
        self._send = send
        self._on_task = on_task
        self._started: dict[int, tuple[TaskStarted, float]] = {}
        """By thread: each is in one task at a time."""

    def entered(self, name: str | None) -> None:
        self._on_task(name)
        thread = threading.get_ident()
        if (last := self._started.pop(thread, None)) is not None:
            started, at = last
            self._send(TaskEnded(self._nth, started.task, time.monotonic() - at))
        if name in self._limited:
            started = _start_of(self._limited[name], self._nth)
            self._started[thread] = (started, time.monotonic())
            self._send(started)


def _start_of(task: Any, nth: int) -> TaskStarted:
    return TaskStarted(nth, task.name, float(task.timeout_sec), is_isolated=task.fail_policy == "isolate")


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _rss_bytes() -> int:
    """Resident memory of this process; on macOS, which does not report it, the most it has ever had."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - on every run: avoids a Path
            return int(statm.read().split()[1]) * _PAGE
    except OSError:  # a container without /proc
        return 0
