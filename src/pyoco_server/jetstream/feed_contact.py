"""Whether a feed is up to date: what was read last is worth less with every second without contact."""

import time
from collections.abc import Callable

HEARTBEAT_SEC = 2.0
CONTACT_SEC = 2 * HEARTBEAT_SEC + 1.0
"""Without a sign for this long, the feed is out of date although its connection looks healthy."""


class FeedContact:
    def __init__(self, is_connected: Callable[[], bool], now: Callable[[], float] = time.monotonic) -> None:
        self._is_connected = is_connected
        self._now = now
        self._confirmed_at: float | None = None
        self._was_interrupted = False
        self.missed_sec = 0.0
        """How long the feed was out of date, in all."""

    def confirm(self) -> None:
        """The server has sent everything that it has, or nearly."""
        now = self._now()
        if self._confirmed_at is not None and (self._was_interrupted or self._is_over(now)):
            self.missed_sec += now - self._confirmed_at
        self._confirmed_at = now
        self._was_interrupted = False

    def interrupt(self) -> None:
        """The connection was lost: nothing is known until the next confirmation."""
        self._was_interrupted = True

    @property
    def stale_sec(self) -> float:
        """Seconds since the feed was up to date; 0: it is, or it was not read to its end yet."""
        if self._confirmed_at is None:
            return 0.0
        now = self._now()
        if self._is_connected() and not self._was_interrupted and not self._is_over(now):
            return 0.0
        return max(now - self._confirmed_at, 0.001)

    def _is_over(self, now: float) -> bool:
        return self._confirmed_at is not None and now - self._confirmed_at > CONTACT_SEC
