"""An executor: a process that runs one flow at a time for its worker.

The main thread takes jobs from the work channel and runs those whose ticket it gets; a second thread listens
on the control channel, because a cancel must be heard while a task runs. When the worker goes away, both
channels end and so does the process: what it was doing will be done again elsewhere.
"""

import gc
import os
import socket
import sys
import threading
import time
from typing import Any

from pyoco_server.domain.jobs import Job
from pyoco_server.domain.outcomes import FlowOutcome, FlowProgress
from pyoco_server.domain.task_logs import LogEntry
from pyoco_server.engine.executor_messages import (
    CancelFlow,
    Control,
    Ended,
    ExecutorSpec,
    GoLive,
    Incoming,
    Printed,
    Progressed,
    Ready,
    RunFlow,
    Unusable,
    Written,
    frame,
)
from pyoco_server.engine.flow_of_job import flow_of
from pyoco_server.engine.flow_resolving import FlowResolver, load_resolver
from pyoco_server.engine.flow_run import FlowRun
from pyoco_server.engine.flow_seat import FlowSeat
from pyoco_server.engine.printing import PrintCatcher
from pyoco_server.engine.record_changes import SentRecords
from pyoco_server.engine.tickets import ExecutorTickets
from pyoco_server.engine.values import described

_WORKER_GONE = 3


class Executor:
    def __init__(self, work: socket.socket, control: socket.socket, tickets: ExecutorTickets) -> None:
        self._work = work
        self._control = control
        self._tickets = tickets
        self._sending = threading.Lock()
        self._placing = threading.Lock()
        self._nth = 0
        self._places: dict[int, _Place] = {}

    def serve(self) -> None:
        jobs = Incoming(self._work)
        spec = jobs.spec()
        resolver = None if spec is None else self._load(spec)
        if spec is None or resolver is None:
            return
        gc.freeze()  # the flows stay, too
        threading.Thread(target=self._listen, daemon=True, name="pyoco-control").start()
        self._send(Ready())
        while (message := jobs.run()) is not None:
            if self._tickets.take(message.nth):
                # Told before the next one begins: if that one ends the process, this one has its end.
                self._send(self._done(message, resolver, spec))

    def _done(self, message: RunFlow, resolver: FlowResolver, spec: ExecutorSpec) -> Ended:
        began = time.monotonic()
        place = self._next_place(message.nth)
        if message.is_live:
            place.go_live()
        if message.is_cancelled:
            place.seat.cancel()
        outcome = self._run(place, resolver, message.job, spec)
        return Ended(
            outcome,
            place.teller.take_printed(),
            _rss_bytes() if spec.tells_memory else 0,
            time.monotonic() - began,
        )

    def _load(self, spec: ExecutorSpec) -> FlowResolver | None:
        sys.path[:0] = spec.path
        try:
            return load_resolver(spec.flow_resolver)
        except BaseException as error:  # noqa: BLE001 - importing users' code may raise anything
            self._send(Unusable(described(error)))
            return None

    def _next_place(self, nth: int) -> "_Place":
        with self._placing:
            for over in [known for known in self._places if known < nth]:
                del self._places[over]
            self._nth = nth
            return self._places.setdefault(nth, _Place(self._send))

    def _place_of(self, nth: int) -> "_Place | None":
        """Of the run at hand, or of one whose job has not been read yet; None if that run is over."""
        with self._placing:
            return None if nth < self._nth else self._places.setdefault(nth, _Place(self._send))

    def _run(self, place: "_Place", resolver: FlowResolver, job: Job, spec: ExecutorSpec) -> FlowOutcome:
        catcher = PrintCatcher(place.teller.printed)
        with catcher.catching():
            found = flow_of(job, resolver, spec.allowed_modules, spec.allowed_env)
            if isinstance(found, FlowOutcome):
                return found
            run = FlowRun(
                found.flow,
                job.run_id,
                found.params,
                place.teller.progressed,
                catcher.entered,
                max_value_bytes=spec.max_value_bytes,
            )
            place.seat.take(run)
            try:
                return run.run()
            finally:
                place.seat.leave()

    def _listen(self) -> None:
        orders = Incoming(self._control)
        while (message := orders.control()) is not None:
            self._hear(message)
        os._exit(_WORKER_GONE)

    def _hear(self, message: Control) -> None:
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

    def _send(self, message: Any) -> None:
        data = frame(message)
        with self._sending:
            self._work.sendall(data)


class _Place:
    """What belongs to one run: nothing that is asked of it may reach another."""

    def __init__(self, send: Any) -> None:
        self.teller = _Teller(send)
        self.seat = FlowSeat()

    def go_live(self) -> None:
        self.teller.go_live()
        self.seat.go_live()


class _Teller:
    """What one run tells: one step in flight, the newest waiting; printed lines at once, when it is live."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._is_live = False
        self._may_tell = True
        self._waiting: FlowProgress | None = None
        self._sent = SentRecords()
        self._printed: list[LogEntry] = []

    def progressed(self, progress: FlowProgress) -> None:
        with self._lock:
            if not self._may_tell:
                self._waiting = progress
                return
            self._may_tell = False
        self._send(Progressed(self._sent.new_in(progress)))

    def written(self) -> None:
        with self._lock:
            progress, self._waiting = self._waiting, None
            self._may_tell = progress is None
        if progress is not None:
            self._send(Progressed(self._sent.new_in(progress)))

    def go_live(self) -> None:
        self._is_live = True
        self._send_printed()

    def printed(self, entry: LogEntry) -> None:
        with self._lock:
            self._printed.append(entry)
        if self._is_live:
            self._send_printed()

    def take_printed(self) -> list[LogEntry]:
        with self._lock:
            printed, self._printed = self._printed, []
        return printed

    def _send_printed(self) -> None:
        printed = self.take_printed()
        if printed:
            self._send(Printed(printed))


def _rss_bytes() -> int:
    """The memory of this process now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - once per run, so no Path is made
            return int(statm.read().split()[1]) * _PAGE
    except OSError:
        return 0


_PAGE = os.sysconf("SC_PAGE_SIZE")
