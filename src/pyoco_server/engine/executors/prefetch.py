"""How much work is taken ahead of free executors, from one moving average of how long flows take.

Claiming a run takes a round trip to NATS, and waking an idle process takes about as long: both cost more than
a tiny flow. So while flows are tiny, a worker claims a few runs ahead and queues several at one executor.
Otherwise a run is claimed only when it can start.

The average counts the time an executor is busy with a flow. Time spent in the queue would grow with the
prefetch itself.

A flow that has not ended says nothing about its duration. So nothing is claimed ahead while none of the
active flows ends: runs behind a long flow would be returned and claimed again until the queue has delivered
them as often as it may.
"""

from collections.abc import Callable

HORIZON_SEC = 0.02
"""Claimed runs should start within this time."""
STALLED_SEC = 0.1
"""If no flow has ended for this long, flows are not tiny."""
MAX_AHEAD = 32
WAKE_UP_SEC = 0.002
"""A flow waits this long for a busy executor rather than wake an idle one."""
_WEIGHT = 0.2
"""Weight of the newest duration in the moving average."""


class Prefetch:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._average: float | None = None
        self._last_end = 0.0

    def ended(self, busy_sec: float) -> None:
        """A flow has just ended; its executor was busy with it for `busy_sec`."""
        average = busy_sec if self._average is None else self._average
        self._average = average + _WEIGHT * (busy_sec - average)
        self._last_end = self._clock()

    def ahead(self, active: int, capacity: int) -> int:
        """How many runs to claim beyond `capacity` while `active` runs are in progress."""
        if self._average is None or (active and self._clock() - self._last_end > STALLED_SEC):
            return 0
        return min(MAX_AHEAD, int(HORIZON_SEC / max(self._average, 1e-6) * capacity))

    def queue_length(self) -> int:
        """How many flows to queue at a busy executor before an idle one is woken."""
        return 0 if self._average is None else int(WAKE_UP_SEC / max(self._average, 1e-6))
