"""What processes take, read from /proc, and how it goes on over time."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MB = 1e6
HOUR_SEC = 3600.0


@dataclass(frozen=True)
class Taken:
    rss_mb: float
    files: int
    processes: int


def taken_by(pids: Sequence[int]) -> Taken:
    """Of processes that may end while we look at them."""
    rss, files, processes = 0.0, 0, 0
    for pid in pids:
        try:
            rss += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / MB
            files += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            continue
        processes += 1
    return Taken(rss, files, processes)


def descendants_of(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may have blanks in it.
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found, todo = [], [pid]
    while todo:
        mine = children.get(todo.pop(), [])
        found += mine
        todo += mine
    return found


@dataclass(frozen=True)
class Slope:
    per_hour: float
    error: float
    """Its standard error."""

    def __str__(self) -> str:
        return f"{self.per_hour:+.2f} ± {self.error:.2f} MB/h"


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """The straight line through (seconds, MB) that fits best."""
    if len(points) < 3:
        return Slope(0.0, float("inf"))
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    residual = sum((y - mean_y - rise * (x - mean_x)) ** 2 for x, y in points)
    return Slope(rise * HOUR_SEC, (residual / (count - 2) / spread) ** 0.5 * HOUR_SEC)
