"""Periodic calls for many runs, with one timer for all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from pyoco_server.errors import PyocoServerError
from pyoco_server.logs import get_logger, surviving

log = get_logger(__name__)

LONGEST_SLEEP_SEC = 1.0
"""A shorter interval takes effect within this time."""

Call = Callable[[], Awaitable[None]]


class PeriodicCalls:
    """Makes the registered calls every `interval()` seconds. A failed call does not affect the others."""

    def __init__(self, interval: Callable[[], float], action: str, error: type[PyocoServerError]) -> None:
        self._interval = interval
        self._action = action
        self._error = error
        self._calls: dict[object, Call] = {}

    @contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """Most runs end before their first call, so registration must be cheap."""
        token = object()
        self._calls[token] = call
        try:
            yield
        finally:
            del self._calls[token]

    async def run(self) -> None:
        while True:
            await self._sleep()
            for token in list(self._calls):
                call = self._calls.get(token)  # its run may have ended during another call
                if call is not None:
                    with surviving(log, self._action, self._error):
                        await call()

    async def _sleep(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (  # noqa: ASYNC110 - only time to wait for
            left := began + self._interval() - loop.time()
        ) > 0:
            await asyncio.sleep(min(left, LONGEST_SLEEP_SEC))
