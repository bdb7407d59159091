"""Timeouts of tasks, reported to the worker as tasks start and end. Flows without timeouts report nothing."""

import threading
import time
from collections.abc import Callable
from typing import Any

from pyoco.core.models import Flow

from pyoco_server.engine.executor_messages import TaskEnded, TaskStarted

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
