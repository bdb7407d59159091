"""The server's side of the task helpers, in the process that runs the flow."""

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace
from pyoco.core.models import Flow

from pyoco_server import task_helpers
from pyoco_server.domain.runs.jobs import Job, ResolvedJob
from pyoco_server.domain.runs.model import RunProgress
from pyoco_server.domain.runs.task_requests import ArtifactRequest, ChildRequest, TaskAnswer, TaskRequest
from pyoco_server.domain.secrets.masking import Masks
from pyoco_server.domain.values import MAX_PARAMS_BYTES, from_caller
from pyoco_server.engine.print_capture import CallLater, PrintCapture
from pyoco_server.engine.tasks import has_timeout
from pyoco_server.engine.values import RecordBudget, ValueRoom
from pyoco_server.errors import InvalidRequest
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


class Questions:
    """Requests of tasks that wait for their answer. Each blocks the thread that asks."""

    def __init__(self, send: Callable[[int, TaskRequest], None]) -> None:
        self._send = send
        self._numbers = count(1)
        self._waiting: dict[int, Future[TaskAnswer]] = {}
        self._is_closed = False

    def ask(self, request: TaskRequest) -> TaskAnswer:
        number, answer = next(self._numbers), Future[TaskAnswer]()
        self._waiting[number] = answer
        try:
            if self._is_closed:
                return _CANCELLED
            self._send(number, request)
            return answer.result()
        finally:
            self._waiting.pop(number, None)

    def answered(self, number: int, answer: TaskAnswer) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.set_result(answer)

    def close(self) -> None:
        """The run is cancelled: its tasks are not to wait."""
        self._is_closed = True
        for number in list(self._waiting):
            self.answered(number, _CANCELLED)


_CANCELLED = TaskAnswer(error="the run was cancelled")


class RunningFlow(Protocol):
    """The handle of the flow."""

    @property
    def is_cancelled(self) -> bool: ...
    def advanced(self, progress: RunProgress) -> None: ...
    def ask(self, request: TaskRequest) -> TaskAnswer: ...


class LocalTaskHost:
    def __init__(
        self, flow: RunningFlow, job: Job, capture: PrintCapture, masks: Masks, room: ValueRoom
    ) -> None:
        self._room = room
        self.pid = os.getpid()
        self._flow = flow
        self._job = job
        self._capture = capture
        self._masks = masks
        self._params: dict[str, Any] = {}
        self._timeouts: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._began = time.time()
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        """How often a task has asked for the same child."""

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
            parent_run_id=job.parent_run_id,
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

    def submit(self, flow_name: str, params: Mapping[str, Any], key: str | None, **options: Any) -> str:
        what = f"submit({flow_name!r})"
        try:
            plain = from_caller(dict(params), "params", MAX_PARAMS_BYTES)
            child = msgspec.convert(
                {"type": "child", "key": "", "flow_name": flow_name, "params": plain, **options},
                ChildRequest,
            )
        except (InvalidRequest, msgspec.ValidationError) as error:
            raise ValueError(f"{what}: {error}") from None
        if self._masks and self._masks.value(plain) is not plain:
            raise ValueError(f"{what}: params contain a secret of this run, and would be stored")
        answer = self._flow.ask(replace(child, key=self._key_of(child) if key is None else f"={key}"))
        if answer.error is not None:
            raise RuntimeError(f"{what} was refused: {answer.error}")
        return answer.run_id

    def _key_of(self, child: ChildRequest) -> str:
        """The same for the same request at the next attempt, whatever the order of threads."""
        content = msgspec.json.encode(child, order="sorted")
        name = f"{self._capture.current_task or ''}:{hashlib.sha256(content).hexdigest()}"
        with self._lock:
            self._asked[name] += 1
            return f"{name}:{self._asked[name]}"

    def save(self, name: str, content: bytes | str, media_type: str) -> None:
        """`content`: or the path of a file."""
        if not self._room.directory:
            raise RuntimeError(f"artifact.save({name!r}): this worker keeps no artifacts")
        is_temporary = isinstance(content, bytes)
        path = self._room.write(name, content).path if isinstance(content, bytes) else content
        try:
            request = ArtifactRequest(
                name=name,
                path=path,
                media_type=media_type,
                task=self._capture.current_task,
                is_temporary=is_temporary,
            )
            answer = self._flow.ask(request)
        finally:
            if is_temporary:
                Path(path).unlink(missing_ok=True)  # the worker has not got it if the run was cancelled
        if answer.error is not None:
            raise RuntimeError(f"artifact.save({name!r}): {answer.error}")

    def log(self, text: str, level: str, fields: Mapping[str, Any]) -> None:
        budget = RecordBudget(MAX_FIELDS_BYTES)
        shown, _, _ = budget.values_of("", self._masks.value(dict(fields)), None, None)
        self._capture.logged(text, level, self._masks.value(shown) or None)
