"""The pace of a worker's heartbeats, from the revisions of what it writes to the bucket of runs."""

from pyoco_server.domain.runs.heartbeats import LONGEST_SEC, interval_sec
from pyoco_server.usecases.ports.stores import Revision

WINDOW_SEC = 1.0
"""Writes are counted for at least this long."""
MAX_WINDOW_SEC = 2 * LONGEST_SEC
"""A worker that wrote nothing for longer knows nothing of the load now."""


class HeartbeatPace:
    def __init__(self, base_sec: float) -> None:
        self._base = base_sec
        self.interval_sec = base_sec
        self._began: tuple[float, Revision] | None = None
        self._own_writes = 0

    def wrote(self, revision: Revision, at: float, running: int, *, is_beat: bool) -> None:
        """`revision`: of the write, counted by the bucket. `running`: the worker's runs now."""
        self._own_writes += not is_beat
        if self._began is None:
            self._begin(at, revision)
            return
        seconds, writes = at - self._began[0], revision - self._began[1]
        if seconds < WINDOW_SEC:
            return
        if seconds <= MAX_WINDOW_SEC and writes > 0:  # fewer than none: the bucket is a new one
            self.interval_sec = interval_sec(
                self._base,
                self.interval_sec,
                running=running,
                own_writes=self._own_writes / seconds,
                all_writes=writes / seconds,
            )
        self._begin(at, revision)

    def _begin(self, at: float, revision: Revision) -> None:
        self._began = (at, revision)
        self._own_writes = 0
