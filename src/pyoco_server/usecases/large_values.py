"""Work on large values: off the event loop, since others wait for it."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

LIGHT_BYTES = 32 * 1024
"""Of JSON: even one that has to be parsed twice takes some 10 ms."""


async def off_loop(size: int, work: Callable[..., T], *args: Any) -> T:
    """`work` in a thread if `size` bytes are many; in a thread the interpreter changes hands every 5 ms."""
    if size <= LIGHT_BYTES:
        return work(*args)
    return await asyncio.to_thread(work, *args)
