"""Something that has to be done again and again for each of many runs: one timer for all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from pyoco_server.errors import PyocoServerError
from pyoco_server.logs import get_logger, surviving

log = get_logger(__name__)

Beat = Callable[[], Awaitable[None]]


LONGEST_SLEEP_SEC = 1.0
"""An interval that becomes shorter is noticed within that time."""


class PeriodicCalls:
    """Calls everybody who is registered every `interval()` seconds. One failed call concerns nobody else."""

    def __init__(self, interval: Callable[[], float], action: str, error: type[PyocoServerError]) -> None:
        self._interval = interval
        self._action = action
        self._error = error
        self._beats: dict[object, Beat] = {}

    @contextmanager
    def calling(self, beat: Beat) -> Iterator[None]:
        """Most runs are over before their first beat: registering must cost next to nothing."""
        token = object()
        self._beats[token] = beat
        try:
            yield
        finally:
            del self._beats[token]

    async def run(self) -> None:
        while True:
            await self._sleep()
            for token in list(self._beats):
                beat = self._beats.get(token)  # it may have ended while we were at another
                if beat is not None:
                    with surviving(log, self._action, self._error):
                        await beat()

    async def _sleep(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (  # noqa: ASYNC110 - there is nothing to wait for but time
            left := began + self._interval() - loop.time()
        ) > 0:
            await asyncio.sleep(min(left, LONGEST_SLEEP_SEC))
