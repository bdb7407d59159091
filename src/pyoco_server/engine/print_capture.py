"""Output of a flow: captured as it is printed, attributed to tasks, and reported in batches."""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol, Self

from pyoco_server.domain.runs.logs import MAX_LINE_CHARS, LogEntry, RunOutput
from pyoco_server.domain.secrets.masking import NO_MASKS, LineMask, Masks
from pyoco_server.engine.output import LOGGING, OutputStreams

_OF_CHILDREN = 0
"""Used instead of a thread id; no thread has this one."""
POLL_SEC = 0.0005
"""No child process starts, prints and ends in less, so its pipes are not read more often."""
REPORT_SEC = 0.1
"""The first line is reported immediately; lines that follow within this time are reported together."""
EXCERPT_SEC = 0.5
"""How often watchers get the newest lines of a task that prints more than is kept."""
CallLater = Callable[[float, Callable[[], None]], None]
speaks_for: ContextVar[int | None] = ContextVar("speaks_for", default=None)
"""The thread that waits for an async task: its output counts as printed there, whichever thread runs it."""


class OutputSource(Protocol):
    """Where the output of a run comes from."""

    def read_pipes(self) -> None:
        """Read what child processes have printed so far."""
        ...

    def begin_run(self, capture: "PrintCapture") -> None:
        """The capture gets all output from now on."""
        ...

    def end_run(self) -> None:
        """Until now. The capture has got everything."""
        ...


class HostOutput:
    """Output of a thread in another program: only what Python prints, which still reaches its destination."""

    def __init__(self) -> None:
        self._streams = OutputStreams({"stdout": sys.stdout, "stderr": sys.stderr}, passes_through=True)

    def read_pipes(self) -> None:
        """The descriptors belong to that program."""

    def begin_run(self, capture: "PrintCapture") -> None:
        self._streams.begin_run(capture)

    def end_run(self) -> None:
        self._streams.end_run()


class PrintCapture:
    """The output of one run, from any thread.

    Each thread of the engine is in one task. Output of other threads and of child processes belongs to the
    running task, or to none if several run.
    """

    def __init__(
        self,
        source: OutputSource,
        on_output: Callable[[], None],
        own_threads: Iterable[threading.Thread] = (),
        masks: Masks = NO_MASKS,
    ) -> None:
        """`on_output` is called when there is something to take. `own_threads` belong to no run."""
        self._masks = masks
        self._masked_lines: dict[tuple[str | None, str], LineMask[float]] = {}
        """By task and stream."""
        self._source = source
        self._on_output = on_output
        self._polled_at = time.time()
        self._output = RunOutput()
        self._lock = threading.RLock()  # a signal handler may print during a print
        self._tasks: dict[int, str] = {}
        self._unended: dict[tuple[int, str], _Unended] = {}
        # Threads left over from an earlier run do not belong to this one.
        self._strangers = {*threading.enumerate()}.difference(own_threads)
        self._strangers.discard(threading.current_thread())

    @property
    def is_strange(self) -> bool:
        """Whether the calling thread is older than the run."""
        return bool(self._strangers) and threading.current_thread() in self._strangers

    def entered(self, task: str | None) -> None:
        """The calling thread is in this task from now on; None: in none."""
        now = time.time()
        if now - self._polled_at > POLL_SEC:
            self._poll(now)
        thread = threading.get_ident()
        if self._is_empty:
            self._move(thread, task)
            return
        with self._lock:
            self._end_lines(thread, _OF_CHILDREN)
            before = self._move(thread, task)
            if before is not None:
                self._keep_held(before)
                self._output.ended(before)
        self._report()

    def _move(self, thread: int, task: str | None) -> str | None:
        """Returns the task that the thread was in."""
        before = self._tasks.pop(thread, None)
        if task is not None:
            self._tasks[thread] = task
        return before

    def printed(self, stream: str, text: str) -> None:
        thread = speaks_for.get() or threading.get_ident()
        if "\n" not in text:
            held = self._unended.get((thread, stream))
            if held is not None and held.length < MAX_LINE_CHARS:  # fast path: one more piece of a line
                held.pieces.append(text)
                held.length += len(text)
                return
        now = time.time()
        if now - self._polled_at > POLL_SEC:
            self._poll(now)
        self._add(thread, stream, text, now)

    def child_printed(self, stream: str, text: str) -> None:
        self._add(_OF_CHILDREN, stream, text, time.time())

    def logged(self, text: str, level: str, fields: dict[str, Any] | None) -> None:
        """A line with a level and fields; of several lines, the first has the fields."""
        now = time.time()
        if now - self._polled_at > POLL_SEC:
            self._poll(now)
        with self._lock:
            task = self.current_task
            for line in self._masks.text(text).split("\n"):
                for start in range(0, max(1, len(line)), MAX_LINE_CHARS):
                    part = line[start : start + MAX_LINE_CHARS] + "\n"
                    self._output.add_entry(LogEntry(task, LOGGING, part, now, level=level, fields=fields))
                    fields = None
        self._report()

    @property
    def current_task(self) -> str | None:
        """The task of the calling thread; of a thread without one: the only running task."""
        return self._task_of(speaks_for.get() or threading.get_ident())

    def __enter__(self) -> Self:
        """For the duration of the run. An unterminated line is kept as a line."""
        self._source.begin_run(self)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._source.end_run()
        finally:
            self._close()

    def _close(self) -> None:
        if self._is_empty:
            return
        with self._lock:
            self._end_lines(*{thread for thread, _ in self._unended})
            self._keep_held(*{task for task, _ in self._masked_lines})
            self._output.close()

    @property
    def _is_empty(self) -> bool:
        return self._output.is_empty and not self._unended and not self._masked_lines

    def masked(self, text: str) -> str:
        return self._masks.text(text)

    def take(self) -> list[LogEntry]:
        """New entries to store, since the last call."""
        with self._lock:
            return self._output.take()

    @property
    def has_excerpt(self) -> bool:
        return self._output.has_excerpt

    def excerpt(self) -> list[LogEntry]:
        """Entries that may be shown but are not stored yet."""
        with self._lock:
            return self._output.excerpt()

    def _poll(self, now: float) -> None:
        """Keep the order: what children have printed so far comes before what is printed now."""
        self._polled_at = now
        self._source.read_pipes()

    def _add(self, thread: int, stream: str, text: str, now: float) -> None:
        """Add whole lines and hold the rest: `print` writes a line in several pieces."""
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
        """Secrets are masked before long lines are split."""
        if not self._masks:
            self._keep_line(task, stream, line, now)
            return
        lines = self._masked_lines.setdefault((task, stream), LineMask(self._masks))
        for text, at in lines.add(line, now):
            self._keep_line(task, stream, text, at)

    def _keep_held(self, *tasks: str | None) -> None:
        """Lines that waited for the rest of a secret, which does not come."""
        for task, stream in [key for key in self._masked_lines if key[0] in tasks]:
            for text, at in self._masked_lines.pop((task, stream)).rest():
                self._keep_line(task, stream, text, at)

    def _keep_line(self, task: str | None, stream: str, line: str, now: float) -> None:
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
            self._on_output()


class _Unended:
    __slots__ = ("length", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0


class PrintReports:
    """Reports the output of a live run, in batches."""

    def __init__(self, report: Callable[[list[LogEntry]], None], call_later: CallLater | None = None) -> None:
        """Without `call_later` output is reported immediately."""
        self._report = report
        self._call_later = call_later
        self._lock = threading.RLock()
        self._capture: PrintCapture | None = None
        self._is_scheduled = False
        self._report_at = 0.0
        self._excerpt_at = 0.0

    def begin(self, capture: PrintCapture) -> None:
        self._capture = capture

    def flush_soon(self) -> None:
        if self._is_scheduled:
            return
        wait = self._report_at - time.monotonic()
        if wait <= 0 or self._call_later is None:
            self._flush()
        else:
            self._schedule(wait)

    def finish(self) -> list[LogEntry]:
        """Entries that were not reported. Nothing is reported after it."""
        with self._lock:
            capture, self._capture = self._capture, None
            return [] if capture is None else capture.take()

    def _schedule(self, seconds: float) -> None:
        if self._call_later is not None:
            self._is_scheduled = True
            self._call_later(seconds, self._flush)

    def _flush(self) -> None:
        with self._lock:  # held until it is sent: the end of the run must not overtake it
            self._is_scheduled = False
            if self._capture is None:
                return
            now = time.monotonic()
            entries = self._capture.take()
            if self._capture.has_excerpt:
                if now >= self._excerpt_at:
                    entries += self._capture.excerpt()
                    self._excerpt_at = now + EXCERPT_SEC
                else:
                    self._schedule(self._excerpt_at - now)
            if entries:
                self._report_at = now + REPORT_SEC
                self._report(entries)
