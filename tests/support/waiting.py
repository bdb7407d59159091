"""Wait for what must become true: as short as it takes, and not for ever."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SEC = 60.0
LOOK_SEC = 0.005


async def until(look: Callable[[], Awaitable[T]], is_so: Callable[[T], bool] = bool) -> T:
    """What `look` answers, once it is so."""
    deadline = time.monotonic() + PATIENCE_SEC
    while not is_so(found := await look()):
        assert time.monotonic() < deadline, f"it never became true; the last look saw {found!r}"
        await asyncio.sleep(LOOK_SEC)
    return found


def until_now(look: Callable[[], T], is_so: Callable[[T], bool] = bool) -> T:
    """The same, where nothing else goes on in this process."""
    deadline = time.monotonic() + PATIENCE_SEC
    while not is_so(found := look()):
        assert time.monotonic() < deadline, f"it never became true; the last look saw {found!r}"
        time.sleep(LOOK_SEC)
    return found
