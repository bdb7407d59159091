"""Waiting with a timeout, work off the event loop, batched reads, room for large values, a bounded cache."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from pyoco_server.errors import GatewayOverloaded

T = TypeVar("T")


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def cancelled(task: "asyncio.Future[T]") -> None:
    """Returns when the task has ended, however it did."""
    task.cancel()
    await asyncio.wait({task})


# Heavy computations run one after the other in one thread. Because of the GIL, a single thread beside the
# event loop costs a request some milliseconds; one per execution would add up to seconds.


class HeavyWork:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pyoco-heavy")

    async def __call__(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(work, *args, **named))


# Batched reads


class Batch(Struct, Generic[T], frozen=True):
    items: Sequence[T]
    next_start: int
    left: int
    """Number of items after this batch. A short batch need not be the last: servers limit its size."""


async def read_all(read: Callable[[int], Awaitable[Batch[T]]], start: int) -> AsyncGenerator[T, None]:
    """All items from `start`, with one batch in memory at a time."""
    while True:
        batch = await read(start)
        for item in batch.items:
            yield item
        if not batch.left or not batch.items:
            return
        start = batch.next_start


# Work on large values, off the event loop.


parse_in_thread = HeavyWork()
"""For requests and graphs: a thread of its own, so that they do not wait for heavy executions."""
LIGHT_BYTES = 32 * 1024
"""Size of JSON that takes some 10 ms, even if parsed twice."""


async def off_loop(size: int, work: Callable[..., T], *args: Any) -> T:
    """Run `work` in a thread if `size` is large; the interpreter switches threads every 5 ms."""
    if size <= LIGHT_BYTES:
        return work(*args)
    return await parse_in_thread(work, *args)


# Room for large values that are decoded at the same time.

ROOM_WAIT_SEC = 30.0
"""Longer than any request to NATS, so that an unavailable NATS does not cause a refusal."""


class Room:
    """A number of bytes, handed out in order. A request for more than all of them waits for all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, wanted: int, within_sec: float | None = None) -> int:
        """The amount to give back. Raises GatewayOverloaded."""
        size = min(wanted, self._size)
        if not self._waiting and size <= self._left:
            self._left -= size
            return size
        try:
            async with asyncio.timeout(within_sec):
                await self._turn(size)
        except TimeoutError as error:
            raise GatewayOverloaded(f"too many large requests: no room in {within_sec:.0f} s") from error
        return size

    async def _turn(self, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted, but no longer needed
                self.give_back(size)
            raise

    @asynccontextmanager
    async def holding(self, wanted: int, within_sec: float | None = None) -> AsyncGenerator[None, None]:
        taken = await self.take(wanted, within_sec)
        try:
            yield
        finally:
            self.give_back(taken)

    def give_back(self, size: int) -> None:
        self._left += size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # cancelled while waiting
                self._waiting.popleft()
                continue
            if wanted > self._left:
                return
            self._waiting.popleft()
            self._left -= wanted
            turn.set_result(None)


# An LRU cache, bounded by number and memory.

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
        """Like `get`, and mark the value as recently used."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self.get(key)

    def size(self, key: str) -> int:
        found = self._kept.get(key)
        return 0 if found is None else found.size

    def keep(self, key: str, value: V, size: int) -> None:
        """Replace the value. A value above the limit is not kept."""
        self.forget(key)
        if size > self._max_bytes:
            return
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
