"""What a flow prints, caught as it is printed and attributed to its tasks."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from pyoco_server.domain.runs.logs import MAX_LINE_CHARS, LogEntry, RunOutput
from pyoco_server.engine.output import OutputStreams

_OF_CHILDREN = 0
"""In place of a thread: no thread has this number."""
LOOK_SEC = 0.0005
"""No child process starts, prints and ends in less: only a thread that was away for longer has to look."""
speaks_for: ContextVar[int | None] = ContextVar("speaks_for", default=None)
"""The thread that waits for an async task: what that prints is its own, whichever thread runs it."""


class OutputSource(Protocol):
    """Where the output of a run comes from."""

    def look(self) -> None:
        """Take what child processes have printed up to now."""
        ...

    def given_to(self, catcher: "PrintCapture") -> AbstractContextManager[None]:
        """While a run goes on, the catcher gets all output."""
        ...


class HostOutput:
    """A thread of somebody's program: only what Python prints, which also goes where it would have gone."""

    def __init__(self) -> None:
        self._streams = OutputStreams({"stdout": sys.stdout, "stderr": sys.stderr}, passes_through=True)

    def look(self) -> None:
        """Its descriptors are its own."""

    def given_to(self, catcher: "PrintCapture") -> AbstractContextManager[None]:
        return self._streams.catching(catcher)


class PrintCapture:
    """Takes what one run prints, from any thread.

    Each thread is in one task. What other threads and child processes print belongs to the task that runs; if
    there are several, to none.
    """

    def __init__(
        self, source: OutputSource, on_news: Callable[[], None], own_threads: Iterable[threading.Thread] = ()
    ) -> None:
        """`on_news` is called when there is something to take. `own_threads` belong to no run."""
        self._source = source
        self._on_news = on_news
        self._looked_at = 0.0
        self._output = RunOutput()
        self._lock = threading.RLock()  # a signal's handler may print in the middle of a print
        self._tasks: dict[int, str] = {}
        self._unended: dict[tuple[int, str], _Unended] = {}
        # A thread of a run that has ended has no business in this one.
        self._strangers = {*threading.enumerate()}.difference(own_threads)
        self._strangers.discard(threading.current_thread())
        self._has_undone_capture = False

    @property
    def is_strange(self) -> bool:
        """Whether the calling thread was there before the run."""
        return bool(self._strangers) and threading.current_thread() in self._strangers

    def entered(self, task: str | None) -> None:
        """The calling thread is in this task from now on."""
        if not self._has_undone_capture:
            self._has_undone_capture = True
            _undo_engine_capture()
        now = time.time()
        if now - self._looked_at > LOOK_SEC:
            self._look(now)
        thread = threading.get_ident()
        if self._output.is_empty and not self._unended:
            self._move(thread, task)
            return
        with self._lock:
            self._end_lines(thread, _OF_CHILDREN)
            before = self._move(thread, task)
            if before is not None:
                self._output.ended(before)
        self._report()

    def _move(self, thread: int, task: str | None) -> str | None:
        """The task that the thread was in."""
        before = self._tasks.pop(thread, None)
        if task is not None:
            self._tasks[thread] = task
        return before

    def printed(self, stream: str, text: str) -> None:
        thread = speaks_for.get() or threading.get_ident()
        if "\n" not in text:
            held = self._unended.get((thread, stream))
            if held is not None and held.length < MAX_LINE_CHARS:  # the next piece: nothing else to do
                held.pieces.append(text)
                held.length += len(text)
                return
        now = time.time()
        if now - self._looked_at > LOOK_SEC:
            self._look(now)
        self._add(thread, stream, text, now)

    def child_printed(self, stream: str, text: str) -> None:
        self._add(_OF_CHILDREN, stream, text, time.time())

    @contextmanager
    def catching(self) -> Iterator[None]:
        """While the run goes on. Lines that never ended are lines, too."""
        try:
            with self._source.given_to(self):
                yield
        finally:
            self._close()

    def _close(self) -> None:
        if self._output.is_empty and not self._unended:
            return
        with self._lock:
            self._end_lines(*{thread for thread, _ in self._unended})
            self._output.close()

    def take(self) -> list[LogEntry]:
        """What is to be stored, since the last time."""
        with self._lock:
            return self._output.take()

    @property
    def has_excerpt(self) -> bool:
        return self._output.has_excerpt

    def excerpt(self) -> list[LogEntry]:
        """What is not to be stored yet, but may be shown."""
        with self._lock:
            return self._output.excerpt()

    def _look(self, now: float) -> None:
        """What children have printed meanwhile came before what is printed now."""
        self._looked_at = now
        self._source.look()

    def _add(self, thread: int, stream: str, text: str, now: float) -> None:
        """Whole lines are taken, the rest waits for its end: `print` writes a line in several pieces."""
        with self._lock:
            if "\n" in text:
                *lines, text = self._with_held(thread, stream, text).split("\n")
                task = self._task_of(thread)
                for line in lines:
                    self._add_line(task, stream, line + "\n", now)
            if text:
                self._hold(thread, stream, text)
        self._report()

    def _with_held(self, thread: int, stream: str, text: str) -> str:
        held = self._unended.pop((thread, stream), None)
        return text if held is None else "".join((*held.pieces, text))

    def _hold(self, thread: int, stream: str, text: str) -> None:
        held = self._unended.get((thread, stream))
        if held is None:
            held = self._unended[thread, stream] = _Unended()
        held.pieces.append(text)
        held.length += len(text)
        if held.length > MAX_LINE_CHARS:
            self._end_line(thread, stream)

    def _end_lines(self, *threads: int) -> None:
        for thread, stream in [key for key in self._unended if key[0] in threads]:
            self._end_line(thread, stream)

    def _end_line(self, thread: int, stream: str) -> None:
        self._add_line(self._task_of(thread), stream, self._with_held(thread, stream, ""), time.time())

    def _add_line(self, task: str | None, stream: str, line: str, now: float) -> None:
        if len(line) <= MAX_LINE_CHARS:
            self._output.add(task, stream, line, now)
            return
        for start in range(0, len(line), MAX_LINE_CHARS):
            self._output.add(task, stream, line[start : start + MAX_LINE_CHARS], now)

    def _task_of(self, thread: int) -> str | None:
        task = self._tasks.get(thread)
        if task is not None:
            return task
        running = {*self._tasks.values()}
        return running.pop() if len(running) == 1 else None

    def _report(self) -> None:
        if self._output.has_ready or self._output.has_excerpt:
            self._on_news()


class _Unended:
    __slots__ = ("length", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0


def _undo_engine_capture() -> None:
    """The engine keeps all that a task prints in memory, behind a stream that lacks most of a stream."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if type(stream).__module__.startswith("pyoco.") and hasattr(stream, "original"):
            setattr(sys, name, stream.original)


# When what a run prints is sent to its worker.

REPORT_SEC = 0.1
"""The first line is sent at once, those that follow it sooner than this are sent together."""
EXCERPT_SEC = 0.5
"""How often those who watch see the newest of a task that prints more than is kept."""


class PrintFlushes:
    """Nothing before the run is live: most runs are over before anybody watches."""

    def __init__(
        self,
        send: Callable[[list[LogEntry]], None],
        call_later: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        """Without `call_later` nothing is held back."""
        self._send = send
        self._call_later = call_later
        self._lock = threading.RLock()
        self._catcher: PrintCapture | None = None
        self._is_live = False
        self._is_asked = False
        self._report_at = 0.0
        self._excerpt_at = 0.0

    def begin(self, catcher: PrintCapture) -> None:
        self._catcher = catcher

    def go_live(self) -> None:
        self._is_live = True
        self.on_news()

    def on_news(self) -> None:
        if not self._is_live or self._is_asked:
            return
        wait = self._report_at - time.monotonic()
        if wait <= 0 or self._call_later is None:
            self._report()
        else:
            self._ask(wait)

    def finish(self) -> list[LogEntry]:
        """What was not sent. Nothing is sent behind it."""
        with self._lock:
            catcher, self._catcher = self._catcher, None
            return [] if catcher is None else catcher.take()

    def _ask(self, seconds: float) -> None:
        if self._call_later is not None:
            self._is_asked = True
            self._call_later(seconds, self._report)

    def _report(self) -> None:
        with self._lock:  # until it is sent: the run's end must not overtake it
            self._is_asked = False
            if self._catcher is None:
                return
            now = time.monotonic()
            entries = self._catcher.take()
            if self._catcher.has_excerpt:
                if now >= self._excerpt_at:
                    entries += self._catcher.excerpt()
                    self._excerpt_at = now + EXCERPT_SEC
                else:
                    self._ask(self._excerpt_at - now)
            if entries:
                self._report_at = now + REPORT_SEC
                self._send(entries)
