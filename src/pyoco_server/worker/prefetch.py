"""How many runs may be claimed ahead of a free executor.

Claiming takes a round trip to NATS, in which a tiny flow would have been run. So while flows are tiny, a few
runs are claimed ahead; as soon as they are not, none is, and a run is claimed only when it can start. What
counts is how long an executor is busy with a flow: the time a run has waited for it would only tell of the
runs that were claimed ahead, and shorten the queue that makes writes travel together.

A flow that has not ended yet tells nothing of how long it takes. So nothing is claimed ahead, either, while
none of those in hand ends: behind a long one the runs would wait, be given back, and be claimed again, until
the queue has delivered them as often as it may.
"""

from collections.abc import Callable

HORIZON_SEC = 0.02
"""Claimed runs should start within this time."""
STUCK_SEC = 0.1
"""Flows of which none ends for so long are not tiny."""
MAX_AHEAD = 32
_WEIGHT = 0.2
"""Of the newest duration in the moving average."""


class PrefetchRate:
    def __init__(self, capacity: int, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._clock = clock
        self._average: float | None = None
        self._last_end = 0.0

    def took(self, seconds: float) -> None:
        """An executor was busy for so long with one flow, which has just ended."""
        known = seconds if self._average is None else self._average
        self._average = known + _WEIGHT * (seconds - known)
        self._last_end = self._clock()

    def ahead(self, in_hand: int) -> int:
        if self._average is None or (in_hand and self._clock() - self._last_end > STUCK_SEC):
            return 0
        return min(MAX_AHEAD, int(HORIZON_SEC / max(self._average, 1e-6) * self._capacity))
