"""What a flow prints: lines by task, within limits, the first and the last of them kept."""

from collections import deque
from collections.abc import Iterable, Iterator

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

MAX_TASK_BYTES = 64 * 1024
"""Kept of one task: half of it from the start, half of it from the end."""
MAX_RUN_BYTES = 1024 * 1024
"""Kept of a run: a quarter of it is for what comes last, however much the first tasks print."""
MAX_LINE_CHARS = 8 * 1024
"""A longer line is kept in pieces: a program may print for ever without ending its line."""
MIN_LINE_BYTES = 16
"""What a line counts at least: an empty one takes room, too."""
EXCERPT_BYTES = 4 * 1024


class LogEntry(Struct, frozen=True, gc=False):
    """A line, or a piece of one that is very long or was never ended."""

    task: str | None
    """None: printed by no task, or while several ran."""
    stream: str
    """`stdout`, `stderr` or `logging`."""
    text: str
    ts: float
    n: int = -1
    """Its place in the run's output; -1: at the end of what is known so far."""
    cut_lines: int = 0
    cut_bytes: int = 0
    """Set on a mark: this many were cut at this place."""
    is_excerpt: bool = False
    """For those who watch now; it is stored later, or never."""


class LogLine(Struct, frozen=True, kw_only=True):
    """An entry as it is stored: `attempt` and `n` are its place, whatever order it arrives in."""

    attempt: int
    n: int
    task: str | None
    stream: str
    text: str
    ts: float
    cut_lines: int | UnsetType = UNSET
    cut_bytes: int | UnsetType = UNSET
    is_excerpt: bool | UnsetType = UNSET


class LogRecord(Struct, frozen=True):
    """Lines that were stored together."""

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
    )


def place(line: LogLine) -> tuple[int, int]:
    return line.attempt, line.n


def in_order(lines: Iterable[LogLine]) -> list[LogLine]:
    """Each once: a write whose answer was lost may have been repeated."""
    by_place = {place(line): line for line in lines}
    return [by_place[at] for at in sorted(by_place)]


def cut_text(lines: int, size: int) -> str:
    what = f"{lines:,} {'line' if lines == 1 else 'lines'} ({size:,} bytes)" if lines else f"{size:,} bytes"
    return f"… {what} were cut here …\n"


class _TaskOutput:
    """What is kept of one task: its first lines are handed on at once, its last ones are held."""

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
        """The oldest held line is gone; how many bytes that frees."""
        entry, size = self.held.popleft()
        self.held_bytes -= size
        self.cut_first = self.cut_first or entry
        self.cut_lines += entry.text.endswith("\n")
        self.cut_bytes += len(entry.text) if entry.text.isascii() else len(entry.text.encode())
        return size

    def release(self) -> list[LogEntry]:
        """What is held, behind a mark of what was cut before it."""
        entries = [entry for entry, _ in self.held]
        if self.cut_first is not None:
            text = cut_text(self.cut_lines, self.cut_bytes)
            mark = replace(self.cut_first, text=text, cut_lines=self.cut_lines, cut_bytes=self.cut_bytes)
            entries.insert(0, mark)
        self.held.clear()
        self.held_bytes, self.cut_first, self.cut_lines, self.cut_bytes = 0, None, 0, 0
        return entries


class RunOutput:
    """How much of what a run prints is kept: a task that prints without end must not fill the store.

    The first lines of a task are to be stored at once. Later ones are held, the oldest of them cut where
    there are too many, and are to be stored when the task has ended; when the run has ended, if by then too
    much of its room was taken.
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
        """Nothing has been printed."""
        return self._n == 0

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def has_excerpt(self) -> bool:
        """Lines are held that those who watch have not seen."""
        return self._held_bytes > 0 and self._shown < self._n - 1

    def add(self, task: str | None, stream: str, text: str, ts: float) -> None:
        """One line, or a piece of one."""
        size = len(text)
        if not text.isascii():
            text, size = _encodable(text)
        size = max(size, MIN_LINE_BYTES)
        entry = LogEntry(task, stream, text, ts, self._n)
        self._n += 1
        output = self._tasks.get(task)
        if output is None:
            output = self._tasks[task] = _TaskOutput(self._task_limit)
        if output.head_left >= size and self._run_left >= size:
            output.head_left -= size
            self._run_left -= size
            self._ready.append(entry)
        else:
            output.head_left = 0  # or a short line would be stored in front of a long one before it
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
        """Who has to give way: the task that ended first, or who prints."""
        while self._over:
            if self._over[0].held:
                return self._over[0]
            self._over.popleft().is_over = False
        return current

    def ended(self, task: str | None) -> None:
        """Its last lines are to be stored now if there is room; if not, the run's last ones come first."""
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
        """What is to be stored since the last time."""
        ready, self._ready = self._ready, []
        return ready

    def excerpt(self, limit: int = EXCERPT_BYTES) -> list[LogEntry]:
        """The newest of the held lines, each once, for those who watch."""
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
    """With what no encoding has, such as a file name that was never text, escaped; and its size."""
    try:
        return text, len(text.encode())
    except UnicodeEncodeError:
        escaped = text.encode("utf-8", "backslashreplace")
        return escaped.decode(), len(escaped)
