"""What a worker counts for its metrics."""

import platform
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from pyoco_server.domain.fleet import WorkerFigures
from pyoco_server.domain.runs.model import RunStatus

OTHER = "OTHER"


class Usage(NamedTuple):
    """Of a process; None: unknown."""

    cpu_sec: float | None = None
    memory_bytes: int | None = None


def own_usage() -> Usage:
    """Of this process."""
    return Usage(time.process_time(), memory_bytes(Path("/proc/self/statm")))


def memory_bytes(statm: Path) -> int | None:
    """None: the file is missing, as on macOS and in a container without /proc."""
    try:
        pages = int(statm.read_text().split()[1])
    except OSError:
        return None
    import resource  # noqa: PLC0415 - not on every system

    return pages * resource.getpagesize()


def unknown_usage() -> Usage:
    return Usage()


class CountRuns:
    def __init__(self, started_at: float, usage: Callable[[], Usage] = unknown_usage) -> None:
        self._started_at = started_at
        self._usage = usage
        self._ended: Counter[str] = Counter()
        self._busy_sec = 0.0
        self._active = 0

    def started(self) -> None:
        self._active += 1

    def ended(self, status: RunStatus | None, took_sec: float) -> None:
        """`status`: None if the run has not ended here."""
        self._active -= 1
        self._ended[OTHER if status is None else status.value] += 1
        self._busy_sec += took_sec

    def now(self) -> WorkerFigures:
        usage = self._usage()
        return WorkerFigures(
            host=platform.node(),
            version=version("pyoco-server"),
            python=platform.python_version(),
            started_at=self._started_at,
            active=self._active,
            ended=dict(self._ended),
            busy_sec=round(self._busy_sec, 3),
            cpu_sec=None if usage.cpu_sec is None else round(usage.cpu_sec, 3),
            memory_bytes=usage.memory_bytes,
        )
