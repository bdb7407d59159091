"""What a flow prints, caught as it is printed and told apart by task."""

import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

from pyoco_server.domain.task_logs import LogBudget, LogEntry

speaks_for: ContextVar[int | None] = ContextVar("speaks_for", default=None)
"""The thread that waits for an async task: what that prints is its own, whichever thread runs it."""
OnPrinted = Callable[[LogEntry], None]

MAX_LINE = 8 * 1024
"""A longer line is told in pieces: something may print for ever without ending its line."""


class PrintCatcher:
    """Stands in for stdout and stderr of the process while one flow runs.

    pyoco writes what its tasks print through to whatever stdout was before; each thread is in one task.
    """

    def __init__(self, on_printed: OnPrinted, *, passes_through: bool = False) -> None:
        """`passes_through`: what is caught also goes where it would have gone."""
        self._on_printed = on_printed
        self._passes_through = passes_through
        self._budget = LogBudget()
        self._lock = threading.Lock()
        self._tasks: dict[int, str | None] = {}
        self._unended: dict[tuple[int, str], str] = {}

    def entered(self, task: str | None) -> None:
        """The calling thread is in this task from now on."""
        thread = threading.get_ident()
        self._end_lines(thread)
        self._tasks[thread] = task

    @contextmanager
    def catching(self) -> Iterator[None]:
        before = sys.stdout, sys.stderr
        sys.stdout = _Stream(self, "stdout", before[0] if self._passes_through else None)
        sys.stderr = _Stream(self, "stderr", before[1] if self._passes_through else None)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for thread, _ in list(self._unended):
                self._end_lines(thread)

    def printed(self, stream: str, text: str) -> None:
        """Whole lines are told, the rest waits for its end: `print` writes a line in several pieces."""
        thread = speaks_for.get() or threading.get_ident()
        with self._lock:
            held = self._unended.get((thread, stream), "") + text
            end = len(held) if len(held) > MAX_LINE else held.rfind("\n") + 1
            self._unended[thread, stream] = held[end:]
        if end:
            self._tell(thread, stream, held[:end])

    def _end_lines(self, thread: int) -> None:
        for stream in ("stdout", "stderr"):
            with self._lock:
                held = self._unended.pop((thread, stream), "")
            if held:
                self._tell(thread, stream, held)

    def _tell(self, thread: int, stream: str, text: str) -> None:
        task = self._tasks.get(thread)
        with self._lock:
            kept = self._budget.take(task, text)
        if kept:
            self._on_printed(LogEntry(task, stream, kept, time.time()))


class _Stream(io.TextIOBase):
    encoding = "utf-8"
    errors = "replace"

    def __init__(self, catcher: PrintCatcher, name: str, original: TextIO | None) -> None:
        self._catcher = catcher
        self._name = name
        self._original = original

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._catcher.printed(self._name, text)
        if self._original is not None:
            self._original.write(text)
        return len(text)
