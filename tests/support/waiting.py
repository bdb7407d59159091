"""Wait for what must become true: as short as it takes, and not for ever."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def load_factor() -> float:
    """How much slower than on a quiet machine things may be."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


LONGEST_SEC = 600.0
"""The longest that a client may ask the server to keep a watch open."""


def patience_sec() -> float:
    """How long to wait for what must happen. Only a failing test uses it up."""
    return min(120.0 * load_factor(), LONGEST_SEC)


PATIENCE_SEC = patience_sec()
"""Where a figure is needed that stays the same."""


def pause_sec(waited_sec: float) -> float:
    """Until the next look: a twentieth of the wait so far. Looks take processor time from what is awaited."""
    return min(max(waited_sec / 20, 0.005), 0.05)


async def until(look: Callable[[], Awaitable[T]], is_so: Callable[[T], bool] = bool) -> T:
    """What `look` answers, once it is so."""
    began, patience = time.monotonic(), patience_sec()
    while not is_so(found := await look()):
        waited = time.monotonic() - began
        assert waited < patience, f"it never became true; the last look saw {found!r}"
        await asyncio.sleep(pause_sec(waited))
    return found


def until_now(look: Callable[[], T], is_so: Callable[[T], bool] = bool) -> T:
    """The same, where nothing else goes on in this process."""
    began, patience = time.monotonic(), patience_sec()
    while not is_so(found := look()):
        waited = time.monotonic() - began
        assert waited < patience, f"it never became true; the last look saw {found!r}"
        time.sleep(pause_sec(waited))
    return found
