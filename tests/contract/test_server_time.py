"""F9: the time as the store has it, and the clock that follows it."""

import time

from support.backends import World

CLOSE_SEC = 5.0
"""Here the store is on this host; what is tested is that it is its time, and unix seconds."""


async def test_the_clock_that_all_share_shows_the_time(world: World) -> None:
    clock = world.backend.shared_clock
    await clock.measure()
    assert abs(clock() - time.time()) < CLOSE_SEC
