"""The server's side of the task helpers, in the process that runs the flow."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from pyoco.core.models import Flow

from pyoco_server import task_helpers
from pyoco_server.domain.runs.jobs import Job, ResolvedJob
from pyoco_server.domain.runs.model import RunProgress
from pyoco_server.domain.secrets.masking import Masks
from pyoco_server.engine.print_capture import CallLater, PrintCapture
from pyoco_server.engine.tasks import has_timeout
from pyoco_server.engine.values import RecordBudget
from pyoco_server.task_helpers import CurrentRun

ADVANCE_SEC = 0.2
"""A task may call `progress` in a tight loop; the newest is reported this often."""
MAX_FIELDS_BYTES = 8 * 1024
"""Of the fields of a log line; larger values are replaced by markers."""


class Paced:
    """Makes a call at once, and then at most every `interval_sec`. The last one is made in any case."""

    def __init__(
        self, call: Callable[[], None], interval_sec: float, call_later: CallLater | None = None
    ) -> None:
        """Without `call_later` every call is made at once."""
        self._call = call
        self._interval_sec = interval_sec
        self._call_later = call_later
        self._is_scheduled = False
        self._next_at = 0.0

    def soon(self) -> None:
        if self._is_scheduled:
            return
        wait = self._next_at - time.monotonic()
        if wait <= 0 or self._call_later is None:
            self._now()
        else:
            self._is_scheduled = True
            self._call_later(wait, self._now)

    def _now(self) -> None:
        self._is_scheduled = False
        self._next_at = time.monotonic() + self._interval_sec
        self._call()


class RunningFlow(Protocol):
    """The handle of the flow."""

    @property
    def is_cancelled(self) -> bool: ...
    def advanced(self, progress: RunProgress) -> None: ...


class LocalTaskHost:
    def __init__(self, flow: RunningFlow, job: Job, capture: PrintCapture, masks: Masks) -> None:
        self.pid = os.getpid()
        self._flow = flow
        self._job = job
        self._capture = capture
        self._masks = masks
        self._params: dict[str, Any] = {}
        self._timeouts: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._began = time.time()

    @contextmanager
    def open(self) -> Iterator[None]:
        """For the duration of the run."""
        before = task_helpers.entered.set(self)
        task_helpers.hosts.append(self)
        try:
            yield
        finally:
            task_helpers.hosts.remove(self)
            task_helpers.entered.reset(before)

    def begin(self, flow: Flow, params: dict[str, Any]) -> None:
        self._params = params
        self._timeouts = {task.name: float(task.timeout_sec) for task in flow.tasks if has_timeout(task)}

    def entered(self, task: str | None) -> None:
        """The calling thread is in this task; None: it leaves its task."""
        self._capture.entered(task)
        task_helpers.entered.set(self)
        if task in self._timeouts:
            self._started[task] = time.time()

    @property
    def is_cancelled(self) -> bool:
        return self._flow.is_cancelled

    @property
    def is_foreign(self) -> bool:
        return self._capture.is_strange

    def current(self) -> CurrentRun:
        job, task = self._job, self._capture.current_task
        return CurrentRun(
            run_id=job.run_id,
            flow_name=job.flow_name,
            tag=job.tag,
            task=task,
            params=self._params,
            attempt=job.attempt if isinstance(job, ResolvedJob) else 1,
            try_number=job.try_number,
            execution_id=job.execution_id,
            node_id=job.node_id,
            deadline=self._deadline(task),
            _host=self,
        )

    def _deadline(self, task: str | None) -> float | None:
        known = []
        if self._job.timeout_sec is not None:
            known.append(self._began + self._job.timeout_sec)
        if task in self._started:
            known.append(self._started[task] + self._timeouts[task])
        return min(known, default=None)

    def advance(self, value: float | None, message: str | None) -> None:
        self._flow.advanced(RunProgress(value, None if message is None else self._masks.text(message)))

    def log(self, text: str, level: str, fields: Mapping[str, Any]) -> None:
        budget = RecordBudget(MAX_FIELDS_BYTES)
        shown, _, _ = budget.values_of("", self._masks.value(dict(fields)), None, None)
        self._capture.logged(text, level, self._masks.value(shown) or None)
