"""Runs of each tag, counted as they change, so that a view of the queues costs the same with any history."""

import sqlite3
from collections import Counter, deque
from collections.abc import Iterable

from pyoco_server.domain.queues import QueueFigures
from pyoco_server.domain.runs.model import TERMINAL, RunStatus

MINUTE_SEC = 60
_ENDED = frozenset(status.value for status in TERMINAL)
_WAITING = "FROM runs WHERE scope = ? AND tag = ? AND status = 1"

Queue = tuple[str, str]
"""Scope and tag."""


class QueueCounts:
    def __init__(self, stored: Iterable[tuple[str, str, str, int]]) -> None:
        """`stored`: how many runs have a scope, a tag and a status."""
        self._counts: Counter[tuple[Queue, str]] = Counter(
            {((scope, tag), status): count for scope, tag, status, count in stored if status not in _ENDED}
        )
        self._ended: dict[Queue, deque[list[int]]] = {}

    def add(self, queue: Queue, status: str, by: int) -> None:
        if status in _ENDED:
            return
        self._counts[queue, status] += by
        if not self._counts[queue, status]:
            del self._counts[queue, status]

    def ended(self, queue: Queue, at: float) -> None:
        """A run of the queue has ended. In the order of the feed."""
        seconds = self._ended.setdefault(queue, deque())
        if not seconds or seconds[-1][0] < int(at):
            seconds.append([int(at), 0])
        seconds[-1][1] += 1
        while seconds[0][0] <= seconds[-1][0] - MINUTE_SEC:
            seconds.popleft()

    def figures(self, db: sqlite3.Connection, scope: str, now: float) -> dict[str, QueueFigures]:
        """Of the tags with runs that wait, run, or ended in the last minute."""
        tags = {tag for (of, tag), _ in self._counts if of == scope}
        tags |= {tag for of, tag in self._ended if of == scope and self._ended_since((of, tag), now)}
        return {tag: self._figures_of(db, (scope, tag), now) for tag in tags if tag}

    def _figures_of(self, db: sqlite3.Connection, queue: Queue, now: float) -> QueueFigures:
        """Those that wait for their time are not waiting for a worker yet."""
        (oldest,) = db.execute(f"SELECT min(waits_from) {_WAITING}", queue).fetchone()
        later = (*queue, now)
        (delayed,) = db.execute(f"SELECT count(*) {_WAITING} AND waits_from > ?", later).fetchone()
        return QueueFigures(
            waiting=self._count(queue, RunStatus.PENDING) - delayed,
            running=self._count(queue, RunStatus.RUNNING, RunStatus.CANCELLING),
            oldest_since=oldest if oldest is not None and oldest <= now else None,
            ended_last_minute=self._ended_since(queue, now),
        )

    def _count(self, queue: Queue, *statuses: RunStatus) -> int:
        return sum(self._counts[queue, status.value] for status in statuses)

    def _ended_since(self, queue: Queue, now: float) -> int:
        """In the last minute."""
        return sum(count for second, count in self._ended.get(queue, ()) if second > now - MINUTE_SEC)


def runs_before(db: sqlite3.Connection, queue: Queue, waits_from: float, most: int) -> int:
    """Runs of the queue that wait longer, up to `most`."""
    walk = f"SELECT 1 {_WAITING} AND waits_from < ? LIMIT ?"
    return len(db.execute(walk, (*queue, waits_from, most)).fetchall())
