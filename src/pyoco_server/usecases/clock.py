"""One clock for all gateways: that of NATS.

Deadlines, retries and grace periods are stored as times, and another gateway than the one that stored them
may have to act on them. Two hosts' clocks may be minutes apart; both can read that of the store they share.
Between two readings this host's monotonic clock goes on, so that a jump of its wall clock changes nothing.
"""

import asyncio
import time

from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.stores import Clock, ServerTime

log = get_logger(__name__)

INTERVAL_SEC = 30.0
SAMPLES = 3
"""The quickest answer is the most exact: it is at most half its round trip old."""
MAX_ROUND_TRIP_SEC = 2.0
"""An answer that took longer (this process was frozen, say) tells less than what is known already."""


class SharedClock:
    """Until it is measured it shows this host's time."""

    def __init__(
        self, server: ServerTime, *, wall: Clock = time.time, monotonic: Clock = time.monotonic
    ) -> None:
        """`wall` and `monotonic` are the clocks of this host."""
        self._server = server
        self._monotonic = monotonic
        self._ahead = wall() - monotonic()

    def __call__(self) -> float:
        return self._monotonic() + self._ahead

    async def measure(self) -> None:
        """Raises NatsUnavailable."""
        took, ahead = min([await self._sample() for _ in range(SAMPLES)])
        if took > MAX_ROUND_TRIP_SEC:
            raise NatsUnavailable(f"nats unavailable: it took {took:.1f} s to tell the time")
        self._ahead = ahead

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SEC)
            with best_effort(log, "clock.measure", NatsUnavailable):
                await self.measure()

    async def _sample(self) -> tuple[float, float]:
        """How long it took, and how far the server's clock is ahead of our monotonic one."""
        asked = self._monotonic()
        shown = await self._server.now()
        took = self._monotonic() - asked
        return took, shown - asked - took / 2
