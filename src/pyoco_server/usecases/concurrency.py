"""Wait for an event, but not for ever."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


# Computing that would hold up the event loop: in one thread, one piece after the other.
#
# Python runs one thread at a time. A single thread beside the loop costs a request some milliseconds; one
# per
# execution would add up to seconds.

T = TypeVar("T")


class HeavyWork:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pyoco-heavy")

    async def __call__(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(work, *args, **named))


# Read something that is answered in batches, to its end.


class Batch(Struct, Generic[T], frozen=True):
    items: Sequence[T]
    next_start: int
    left: int
    """How many are behind it. A short batch is not the last one: a server cuts them by size as well."""


async def read_all(read: Callable[[int], Awaitable[Batch[T]]], start: int) -> AsyncGenerator[T, None]:
    """Everything from `start` on; one batch at a time is in memory."""
    while True:
        batch = await read(start)
        for item in batch.items:
            yield item
        if not batch.left or not batch.items:
            return
        start = batch.next_start


# Work on large values: off the event loop, since others wait for it.


LIGHT_BYTES = 32 * 1024
"""Of JSON: even one that has to be parsed twice takes some 10 ms."""


async def off_loop(size: int, work: Callable[..., T], *args: Any) -> T:
    """`work` in a thread if `size` bytes are many; in a thread the interpreter changes hands every 5 ms."""
    if size <= LIGHT_BYTES:
        return work(*args)
    return await asyncio.to_thread(work, *args)


# Values by key, the least recently used ones forgotten: bounded by number and by what they take.

V = TypeVar("V")


class _Kept(NamedTuple, Generic[V]):
    value: V
    size: int


class BoundedMemory(Generic[V]):
    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, _Kept[V]] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> V | None:
        found = self._kept.get(key)
        return None if found is None else found.value

    def used(self, key: str) -> V | None:
        """Like `get`, and it is the last to be forgotten."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self.get(key)

    def size(self, key: str) -> int:
        found = self._kept.get(key)
        return 0 if found is None else found.size

    def keep(self, key: str, value: V, size: int) -> None:
        """In the place of what was kept. One that is too large for itself is not kept."""
        self.forget(key)
        self._kept[key] = _Kept(value, size)
        self._bytes += size
        while len(self._kept) > self._max_count or (self._kept and self._bytes > self._max_bytes):
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size

    def forget(self, key: str) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._bytes -= found.size

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0
