"""What a flow prints, caught as it is printed and told apart by task."""

import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from pyoco_server.domain.task_logs import LogBudget, LogEntry

OnPrinted = Callable[[LogEntry], None]


class PrintCatcher:
    """Stands in for stdout and stderr of the process while one flow runs.

    pyoco writes what its tasks print through to whatever stdout was before; each thread is in one task.
    """

    def __init__(self, on_printed: OnPrinted, *, passes_through: bool = False) -> None:
        """`passes_through`: what is caught also goes where it would have gone."""
        self._on_printed = on_printed
        self._passes_through = passes_through
        self._budget = LogBudget()
        self._tasks = threading.local()

    def entered(self, task: str | None) -> None:
        """The calling thread is in this task from now on."""
        self._tasks.name = task

    @contextmanager
    def catching(self) -> Iterator[None]:
        before = sys.stdout, sys.stderr
        sys.stdout = _Stream(self, "stdout", before[0] if self._passes_through else None)
        sys.stderr = _Stream(self, "stderr", before[1] if self._passes_through else None)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before

    def printed(self, stream: str, text: str) -> None:
        task = getattr(self._tasks, "name", None)
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
