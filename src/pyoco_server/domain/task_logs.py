"""What a flow prints: entries by task, within limits."""

from msgspec import Struct

MAX_TASK_BYTES = 64 * 1024
MAX_RUN_BYTES = 1024 * 1024
DROPPED = "… (more was printed; only the first {limit} bytes are kept)\n"


class LogEntry(Struct, frozen=True):
    task: str | None
    """None: printed by no task, say while the flow was loaded."""
    stream: str
    text: str
    ts: float


class LogLine(Struct, frozen=True, kw_only=True):
    """An entry as it is stored: `attempt` and `n` tell its place, whatever order it arrives in."""

    attempt: int
    n: int
    task: str | None
    stream: str
    text: str
    ts: float


class LogBudget:
    """How much of what a run prints is kept: a task that prints without end must not fill the store."""

    def __init__(self, task_limit: int = MAX_TASK_BYTES, run_limit: int = MAX_RUN_BYTES) -> None:
        self._task_limit = task_limit
        self._run_left = run_limit
        self._task_left: dict[str | None, int] = {}

    def take(self, task: str | None, text: str) -> str:
        """What may be kept of `text`; at the limit a note once, then nothing."""
        left = min(self._task_left.get(task, self._task_limit), self._run_left)
        if left <= 0:
            return ""
        size = len(text.encode("utf-8", errors="replace"))
        kept = text if size <= left else text.encode("utf-8", errors="replace")[:left].decode(errors="ignore")
        self._task_left[task] = left - size
        self._run_left -= min(size, left)
        return kept if size <= left else f"{kept}\n{DROPPED.format(limit=self._task_limit)}"
