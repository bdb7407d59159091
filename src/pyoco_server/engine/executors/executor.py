"""An executor: a process that runs one flow at a time for its worker.

The main thread takes jobs from the work channel and runs those whose ticket it gets; a second thread reads
the control channel, because a cancel must arrive while a task runs. When the worker goes away, both
channels end and so does the process: what it was doing will be done again elsewhere.
"""

import contextvars
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyoco.core.models import Flow

from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress, Job
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.engine.executors.process_state import ProcessState
from pyoco_server.engine.executors.protocol import (
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
from pyoco_server.engine.flow_run import FlowRun
from pyoco_server.engine.output import OutputPipes
from pyoco_server.engine.print_capture import HostOutput, PrintCapture, PrintFlushes
from pyoco_server.engine.resolve import FlowResolver, flow_of, load_resolver
from pyoco_server.engine.results import described
from pyoco_server.engine.tasks import end_fork

# Where a running flow sits: what is asked of it may come before it is there, and after it is gone.


class FlowSeat:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: FlowRun | None = None
        self._is_cancelled = False
        self._is_live = False

    def take(self, run: FlowRun) -> None:
        """The flow is there: what was asked for before is asked of it now."""
        with self._lock:
            self._run = run
            is_cancelled, is_live = self._is_cancelled, self._is_live
        if is_cancelled:
            run.cancel()
        if is_live:
            run.go_live()

    def leave(self) -> None:
        with self._lock:
            self._run = None

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            run = self._run
        if run is not None:
            run.cancel()

    def go_live(self) -> None:
        with self._lock:
            self._is_live = True
            run = self._run
        if run is not None:
            run.go_live()


# Timeouts of tasks, reported to the worker as tasks start and end. Flows without timeouts report nothing.

OnTask = Callable[[str | None], None]


def reporting_deadlines(flow: Flow, nth: int, send: Callable[[Any], None], on_task: OnTask) -> OnTask:
    """`on_task`, with the start and end of every task that has a timeout sent to the worker."""
    limited = {task.name: task for task in flow.tasks if _has_timeout(task)}
    return _Deadlines(limited, nth, send, on_task).entered if limited else on_task


def _has_timeout(task: Any) -> bool:
    return isinstance(task.timeout_sec, (int, float)) and task.timeout_sec > 0


class _Deadlines:
    def __init__(
        self, limited: dict[str, Any], nth: int, send: Callable[[Any], None], on_task: OnTask
    ) -> None:
        self._limited = limited
        self._nth = nth
        self._send = send
        self._on_task = on_task
        self._started: dict[int, tuple[TaskStarted, float]] = {}
        """By thread: each is in one task at a time."""

    def entered(self, name: str | None) -> None:
        """The calling thread is in this task from now on; None: in none."""
        self._on_task(name)
        thread = threading.get_ident()
        if (over := self._started.pop(thread, None)) is not None:
            started, at = over
            self._send(TaskEnded(self._nth, started.task, time.monotonic() - at))
        if name in self._limited:
            started = _start_of(self._limited[name], self._nth)
            self._started[thread] = (started, time.monotonic())
            self._send(started)


def _start_of(task: Any, nth: int) -> TaskStarted:
    return TaskStarted(nth, task.name, float(task.timeout_sec), is_isolated=task.fail_policy == "isolate")


_WORKER_GONE = 3
# Bound now: a task may replace what the module has.
_getpid = os.getpid
_exit = os._exit


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
        self._placing = threading.Lock()
        self._nth = 0
        self._places: dict[int, _Place] = {}

    def keep_channels_from_forks(self) -> None:
        """A process that a task forks has no part in what the executor and its worker exchange."""
        os.register_at_fork(after_in_child=self._close_channels)

    def _close_channels(self) -> None:
        for place in self._places.values():
            place.teller.unlock()
        self._work.close()
        self._control.close()
        self._tickets.close()

    def serve(self) -> None:
        jobs = Incoming(self._work)
        spec = jobs.spec()
        resolver = None if spec is None else self._load(spec)
        if spec is None or resolver is None:
            return
        gc.freeze()  # the flows stay, too
        threading.Thread(target=self._listen, daemon=True, name="pyoco-control").start()
        self._own_threads = threading.enumerate()
        state = ProcessState()
        self._send(Ready())
        try:
            self._serve(jobs, resolver, spec, state)
        except JobsLost as lost:
            self._send(Lost(lost.after))

    def _serve(self, jobs: Incoming, resolver: FlowResolver, spec: ExecutorSpec, state: ProcessState) -> None:
        """Raises JobsLost."""
        while (message := jobs.job()) is not None:
            if not self._tickets.take(message.nth):
                self._send(Skipped(message.nth))
                continue
            ended = self._done(message, resolver, spec, state)
            # Sent before the next one begins: if that one ends the process, this one has its end.
            self._send_end(ended)
            if ended.leftovers:
                return

    def _done(
        self, message: RunFlow, resolver: FlowResolver, spec: ExecutorSpec, state: ProcessState
    ) -> Ended:
        began = time.monotonic()
        place = self._next_place(message.nth)
        if message.is_live:
            place.go_live()
        if message.is_cancelled:
            place.seat.cancel()
        # Context variables that a task sets end with their run.
        outcome = contextvars.copy_context().run(self._run, place, resolver, job_of(message), spec)
        leftovers = state.restore()
        return Ended(
            message.nth,
            outcome,
            place.teller.prints.finish(),
            _rss_bytes() if spec.tells_memory else 0,
            time.monotonic() - began,
            leftovers,
        )

    def _load(self, spec: ExecutorSpec) -> FlowResolver | None:
        sys.path[:0] = spec.path
        try:
            resolver = load_resolver(spec.flow_resolver)
        except BaseException as error:  # noqa: BLE001 - importing users' code may raise anything
            self._end_if_forked(error)
            self._send(Unusable(described(error)))
            return None
        self._end_if_forked()
        return resolver

    def _end_if_forked(self, error: BaseException | None = None) -> None:
        """Users' code outside of tasks (imports, resolvers) may fork, too."""
        if _getpid() != self._pid:
            end_fork(error)

    def _next_place(self, nth: int) -> "_Place":
        with self._placing:
            for over in [known for known in self._places if known < nth]:
                del self._places[over]
            self._nth = nth
            return self._places.setdefault(nth, self._new_place(nth))

    def _new_place(self, nth: int) -> "_Place":
        return _Place(nth, self._send, self._pipes)

    def _place_of(self, nth: int) -> "_Place | None":
        """Of the run at hand, or of one whose job has not been read yet; None if that run is over."""
        with self._placing:
            return None if nth < self._nth else self._places.setdefault(nth, self._new_place(nth))

    def _run(self, place: "_Place", resolver: FlowResolver, job: Job, spec: ExecutorSpec) -> FlowOutcome:
        prints = place.teller.prints
        catcher = PrintCapture(self._pipes or HostOutput(), prints.on_news, self._own_threads)
        prints.begin(catcher)
        with catcher.catching():
            found = flow_of(job, resolver, spec.allowed_modules, spec.allowed_env)
            self._end_if_forked()
            if isinstance(found, FlowOutcome):
                return found
            run = FlowRun(
                found.flow,
                job.run_id,
                found.params,
                place.teller.progressed,
                reporting_deadlines(found.flow, place.nth, self._send, catcher.entered),
                max_value_bytes=spec.max_value_bytes,
            )
            place.seat.take(run)
            try:
                return run.run()
            finally:
                place.seat.leave()

    def _listen(self) -> None:
        orders = Incoming(self._control)
        try:
            while (message := orders.control()) is not None:
                self._obey(message)
        finally:  # also when a task has closed or spoilt the channel: nobody could cancel it any more
            _exit(_WORKER_GONE)

    def _obey(self, message: Control) -> None:
        place = self._place_of(message.nth)
        if place is None:
            return
        match message:
            case CancelFlow():
                place.seat.cancel()
            case GoLive():
                place.go_live()
            case Written():
                place.teller.written()

    def _send_end(self, ended: Ended) -> None:
        try:
            self._send(ended)
        except Unframable as error:
            outcome = FlowOutcome(
                ending=Ending.EXECUTION_ERROR, error=f"the run's outcome cannot be reported: {error}"
            )
            self._send(Ended(ended.nth, outcome, busy_sec=ended.busy_sec, leftovers=ended.leftovers))

    def _send(self, message: Any) -> None:
        if _getpid() != self._pid:  # a process that a task has forked, which prints perhaps
            return
        data = frame(message)
        with self._sending:
            self._sendall(data)


class _Place:
    """What belongs to one run: no request may reach another."""

    def __init__(self, nth: int, send: Callable[[Any], None], pipes: OutputPipes | None) -> None:
        self.nth = nth
        self.teller = _Teller(nth, send, pipes)
        self.seat = FlowSeat()

    def go_live(self) -> None:
        self.teller.prints.go_live()
        self.seat.go_live()


class _Teller:
    """What one run reports: one step in flight, the newest waiting; printed lines by their own rule."""

    def __init__(self, nth: int, send: Callable[[Any], None], pipes: OutputPipes | None) -> None:
        self._nth = nth
        self._send = send
        self._lock = threading.Lock()
        self._may_tell = True
        self._waiting: FlowProgress | None = None
        self._sent = SentRecords()
        self.prints = PrintFlushes(self._printed, pipes.call_later if pipes else None)

    def unlock(self) -> None:
        """In a process that a task has forked: whoever held the lock does not exist there."""
        self._lock = threading.Lock()

    def progressed(self, progress: FlowProgress) -> None:
        with self._lock:
            if not self._may_tell:
                self._waiting = progress
                return
            self._may_tell = False
        self._send_progress(progress)

    def written(self) -> None:
        with self._lock:
            progress, self._waiting = self._waiting, None
            self._may_tell = progress is None
        if progress is not None:
            self._send_progress(progress)

    def _send_progress(self, progress: FlowProgress) -> None:
        with suppress(Unframable):  # the run's end will say so
            self._send(Progressed(self._nth, self._sent.new_in(progress)))

    def _printed(self, entries: list[LogEntry]) -> None:
        self._send(Printed(self._nth, entries))


def _rss_bytes() -> int:
    """The memory of this process now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - once per run, so no Path is made
            return int(statm.read().split()[1]) * _PAGE
    except OSError:
        return 0


_PAGE = os.sysconf("SC_PAGE_SIZE")
