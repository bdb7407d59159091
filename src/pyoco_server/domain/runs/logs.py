"""Run logs: the output lines of tasks within limits, which keep the first and the last lines."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

MAX_TASK_BYTES = 64 * 1024
"""Limit per task: half for its first lines, half for its last."""
MAX_RUN_BYTES = 1024 * 1024
"""Limit per run: a quarter is reserved for the last lines, however much the first tasks print."""
MAX_LINE_CHARS = 8 * 1024
"""Longer lines are split, because a program may print without ever ending its line."""
MIN_LINE_BYTES = 16
"""Minimum size of a line, because an empty one takes space, too."""
EXCERPT_BYTES = 4 * 1024


class LogEntry(Struct, frozen=True, gc=False):
    """A line, or a part of a very long or unterminated one."""

    task: str | None
    """None: printed outside of a task, or while several tasks ran."""
    stream: str
    """`stdout`, `stderr` or `logging`."""
    text: str
    ts: float
    n: int = -1
    """Position in the run's output; -1: at the current end."""
    cut_lines: int = 0
    cut_bytes: int = 0
    """Set on a marker: the amount cut at this place."""
    is_excerpt: bool = False
    """For current watchers; stored later, or never."""
    level: str | None = None
    fields: dict[str, Any] | None = None
    """Both of a line that a task has logged with the helper `log`."""


class LogLine(Struct, frozen=True, kw_only=True):
    """A stored entry; `attempt` and `n` are its position, whatever its order of arrival."""

    attempt: int
    n: int
    task: str | None
    stream: str
    text: str
    ts: float
    cut_lines: int | UnsetType = UNSET
    cut_bytes: int | UnsetType = UNSET
    is_excerpt: bool | UnsetType = UNSET
    level: str | UnsetType = UNSET
    fields: dict[str, Any] | UnsetType = UNSET


class LogRecord(Struct, frozen=True):
    """Lines stored together."""

    seq: int
    lines: list[LogLine]


def line_of(entry: LogEntry, attempt: int, n: int) -> LogLine:
    return LogLine(
        attempt=attempt,
        n=n,
        task=entry.task,
        stream=entry.stream,
        text=entry.text,
        ts=entry.ts,
        cut_lines=entry.cut_lines if entry.cut_bytes else UNSET,
        cut_bytes=entry.cut_bytes or UNSET,
        is_excerpt=entry.is_excerpt or UNSET,
        level=entry.level or UNSET,
        fields=entry.fields or UNSET,
    )


def place(line: LogLine) -> tuple[int, int]:
    return line.attempt, line.n


def in_order(lines: Iterable[LogLine]) -> list[LogLine]:
    """Sorted and without duplicates, because a write may have been repeated after a timeout."""
    by_place = {place(line): line for line in lines}
    return [by_place[at] for at in sorted(by_place)]


def cut_text(lines: int, size: int) -> str:
    what = f"{lines:,} {'line' if lines == 1 else 'lines'} ({size:,} bytes)" if lines else f"{size:,} bytes"
    return f"… {what} were cut here …\n"


class _TaskOutput:
    """The output of one task: first lines are passed on immediately, last ones are held."""

    __slots__ = (
        "cut_bytes",
        "cut_first",
        "cut_lines",
        "head_left",
        "held",
        "held_bytes",
        "is_over",
        "tail_left",
    )

    def __init__(self, limit: int) -> None:
        self.head_left = limit // 2
        self.tail_left = limit - self.head_left
        self.held: deque[tuple[LogEntry, int]] = deque()
        self.held_bytes = 0
        self.cut_first: LogEntry | None = None
        self.cut_lines = 0
        self.cut_bytes = 0
        self.is_over = False

    def hold(self, entry: LogEntry, size: int) -> None:
        self.held.append((entry, size))
        self.held_bytes += size

    def cut(self) -> int:
        """Drop the oldest held line; the bytes freed."""
        entry, size = self.held.popleft()
        self.held_bytes -= size
        self.cut_first = self.cut_first or entry
        self.cut_lines += entry.text.endswith("\n")
        self.cut_bytes += len(entry.text) if entry.text.isascii() else len(entry.text.encode())
        return size

    def release(self) -> list[LogEntry]:
        """The held lines, after a marker for the lines cut before them."""
        entries = [entry for entry, _ in self.held]
        if self.cut_first is not None:
            text = cut_text(self.cut_lines, self.cut_bytes)
            mark = replace(self.cut_first, text=text, cut_lines=self.cut_lines, cut_bytes=self.cut_bytes)
            entries.insert(0, mark)
        self.held.clear()
        self.held_bytes, self.cut_first, self.cut_lines, self.cut_bytes = 0, None, 0, 0
        return entries


class RunOutput:
    """Limits the stored output of a run, so that a task with endless output does not fill the store.

    The first lines of a task are stored immediately. Later ones are held, with the oldest cut beyond the
    limit, and stored when the task ends, or when the run ends if its space is nearly used up.
    """

    def __init__(self, task_limit: int = MAX_TASK_BYTES, run_limit: int = MAX_RUN_BYTES) -> None:
        self._task_limit = task_limit
        self._last_limit = run_limit // 4
        self._run_left = run_limit - self._last_limit
        self._tasks: dict[str | None, _TaskOutput] = {}
        self._held_bytes = 0
        self._over: deque[_TaskOutput] = deque()
        self._ready: list[LogEntry] = []
        self._n = 0
        self._shown = -1

    @property
    def is_empty(self) -> bool:
        """No output so far."""
        return self._n == 0

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def has_excerpt(self) -> bool:
        """There are held lines that watchers have not seen."""
        return self._held_bytes > 0 and self._shown < self._n - 1

    def add(self, task: str | None, stream: str, text: str, ts: float) -> None:
        """Add a line, or a part of one."""
        self.add_entry(LogEntry(task, stream, text, ts))

    def add_entry(self, entry: LogEntry) -> None:
        task, text = entry.task, entry.text
        size = len(text)
        if not text.isascii():
            text, size = _encodable(text)
        if entry.fields is not None:
            size += len(msgspec.json.encode(entry.fields))
        size = max(size, MIN_LINE_BYTES)
        entry = replace(entry, text=text, n=self._n)
        self._n += 1
        output = self._tasks.get(task)
        if output is None:
            output = self._tasks[task] = _TaskOutput(self._task_limit)
        if output.head_left >= size and self._run_left >= size:
            output.head_left -= size
            self._run_left -= size
            self._ready.append(entry)
        else:
            output.head_left = 0  # otherwise a short line could be stored before an earlier long one
            self._hold(output, entry, size)

    def _hold(self, output: _TaskOutput, entry: LogEntry, size: int) -> None:
        output.hold(entry, size)
        self._held_bytes += size
        while output.held_bytes > self._task_limit - self._task_limit // 2:
            self._held_bytes -= output.cut()
        while self._held_bytes > self._last_limit:
            oldest = self._oldest(output)
            if oldest is output and len(output.held) == 1:
                return
            self._held_bytes -= oldest.cut()

    def _oldest(self, current: _TaskOutput) -> _TaskOutput:
        """The task whose lines are cut: the one that ended first, or the current one."""
        while self._over:
            if self._over[0].held:
                return self._over[0]
            self._over.popleft().is_over = False
        return current

    def ended(self, task: str | None) -> None:
        """Store the task's last lines if there is space; otherwise the run's last lines take precedence."""
        output = self._tasks.get(task)
        if output is None or not output.held:
            return
        size = output.held_bytes
        if size <= output.tail_left and size <= self._run_left:
            output.tail_left -= size
            self._run_left -= size
            self._release(output)
        elif not output.is_over:
            output.is_over = True
            self._over.append(output)

    def close(self) -> None:
        """The run has ended."""
        for output in self._tasks.values():
            self._release(output)

    def _release(self, output: _TaskOutput) -> None:
        self._held_bytes -= output.held_bytes
        self._ready += output.release()

    def take(self) -> list[LogEntry]:
        """The lines to store since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def excerpt(self, limit: int = EXCERPT_BYTES) -> list[LogEntry]:
        """The newest held lines for watchers, each once."""
        found = sorted(self._newest(limit), key=lambda entry: entry.n)
        self._shown = self._n - 1
        return [replace(entry, is_excerpt=True) for entry in found]

    def _newest(self, limit: int) -> Iterator[LogEntry]:
        holding = [output for output in self._tasks.values() if output.held]
        for output in holding:
            left = limit // len(holding)
            for entry, size in reversed(output.held):
                left -= size
                if entry.n <= self._shown or left < 0:
                    break
                yield entry


def _encodable(text: str) -> tuple[str, int]:
    """The text with lone surrogates (e.g. from file names) escaped, and its size."""
    try:
        return text, len(text.encode())
    except UnicodeEncodeError:
        escaped = text.encode("utf-8", "backslashreplace")
        return escaped.decode(), len(escaped)
