"""Computing that would hold up the event loop: in one thread, one piece after the other.

Python runs one thread at a time. A single thread beside the loop costs a request some milliseconds; one per
execution would add up to seconds.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class HeavyWork:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pyoco-heavy")

    async def __call__(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(work, *args, **named))
