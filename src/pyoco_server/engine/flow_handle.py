"""The handle of a flow in the process that runs it: an executor, or a worker that runs flows in a thread."""

import threading
from collections.abc import Callable, Iterable

from pyoco.core.models import Flow

from pyoco_server.domain.runs.jobs import FlowOutcome, FlowProgress, Job
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.engine.flow_run import FlowRun, OnTask
from pyoco_server.engine.print_capture import CallLater, OutputSource, PrintCapture, PrintReports
from pyoco_server.engine.resolve import FlowOfJob
from pyoco_server.engine.results import MAX_VALUE_BYTES

FindFlow = Callable[[Job], FlowOfJob | FlowOutcome]


class LocalFlowHandle:
    """`run` blocks the calling thread; other threads may call `cancel` and `go_live`, even before it.

    Most flows end before anyone watches: nothing is reported until `go_live`. Subclasses deliver the reports
    (`progressed`, `printed`).
    """

    def __init__(self, call_later: CallLater | None) -> None:
        self._lock = threading.Lock()
        self._flow_run: FlowRun | None = None
        self._is_live = False
        self._is_cancelled = False
        self._prints = PrintReports(self.printed, call_later)

    def run(
        self,
        job: Job,
        find: FindFlow,
        output: OutputSource,
        *,
        own_threads: Iterable[threading.Thread] = (),
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> FlowOutcome:
        capture = PrintCapture(output, self._output_added, own_threads)
        self._prints.begin(capture)
        with capture:
            found = find(job)
            if isinstance(found, FlowOutcome):
                return found
            on_task = self._watched(found.flow, capture.entered)
            return self._run(
                FlowRun(
                    found.flow,
                    job.run_id,
                    found.params,
                    on_task,
                    max_value_bytes=max_value_bytes,
                    kept=job.kept,
                )
            )

    def _run(self, run: FlowRun) -> FlowOutcome:
        with self._lock:
            self._flow_run = run
            is_cancelled, is_live = self._is_cancelled, self._is_live
        if is_cancelled:
            run.cancel()
        if is_live:
            run.follow(self.progressed)
        try:
            return run.run()
        finally:
            with self._lock:
                self._flow_run = None

    def cancel(self) -> None:
        """Stop at the next task."""
        with self._lock:
            self._is_cancelled = True
            run = self._flow_run
        if run is not None:
            run.cancel()

    def go_live(self) -> None:
        """Report the progress now and after every step, and output as it is printed."""
        with self._lock:
            self._is_live = True
            run = self._flow_run
        self._prints.flush_soon()
        if run is not None:
            run.follow(self.progressed)

    def unreported_output(self) -> list[LogEntry]:
        """At the end: what was printed and not reported. Nothing is reported after it."""
        return self._prints.finish()

    def progressed(self, progress: FlowProgress) -> None:
        raise NotImplementedError

    def printed(self, entries: list[LogEntry]) -> None:
        raise NotImplementedError

    def _watched(self, flow: Flow, on_task: OnTask) -> OnTask:  # noqa: ARG002 - for subclasses
        """Called with every start and end of a task."""
        return on_task

    def _output_added(self) -> None:
        if self._is_live:
            self._prints.flush_soon()
