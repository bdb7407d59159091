"""Read something that is answered in batches, to its end."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Batch(Struct, Generic[T], frozen=True):
    items: Sequence[T]
    next_start: int
    left: int
    """How many are behind it. A short batch is not the last one: a server cuts them by size as well."""


async def whole(read: Callable[[int], Awaitable[Batch[T]]], start: int) -> AsyncGenerator[T, None]:
    """Everything from `start` on; one batch at a time is in memory."""
    while True:
        batch = await read(start)
        for item in batch.items:
            yield item
        if not batch.left or not batch.items:
            return
        start = batch.next_start
