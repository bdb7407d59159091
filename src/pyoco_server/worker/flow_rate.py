"""How many runs may be claimed ahead of a free executor.

Claiming takes a round trip to NATS, in which a tiny flow would have been run. So while flows are tiny, a few
runs are claimed ahead; as soon as they are not, none is, and a run is claimed only when it can start. What
counts is how long an executor is busy with a flow: the time a run has waited for it would only tell of the
runs that were claimed ahead, and shorten the queue that makes writes travel together.
"""

HORIZON_SEC = 0.02
"""Claimed runs should start within this time."""
MAX_AHEAD = 32
_WEIGHT = 0.2
"""Of the newest duration in the moving average."""


class FlowRate:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._average: float | None = None

    def took(self, seconds: float) -> None:
        """An executor was busy for so long with one flow."""
        known = seconds if self._average is None else self._average
        self._average = known + _WEIGHT * (seconds - known)

    @property
    def ahead(self) -> int:
        if self._average is None:
            return 0
        return min(MAX_AHEAD, int(HORIZON_SEC / max(self._average, 1e-6) * self._capacity))
