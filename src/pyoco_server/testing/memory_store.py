"""Values by key, in memory, and the feed of their changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from pyoco_server.usecases.ports import Change, FeedBatch, FeedPosition, Revision, Versioned, WrongRevision

T = TypeVar("T")


class MemoryStore(Generic[T]):
    """Values are kept as bytes: what JSON would lose is lost here too."""

    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self._encode = encode
        self._decode = decode
        self._values: dict[str, tuple[bytes, Revision]] = {}
        self._sequence = 0
        self._history: list[tuple[str, bytes | None, Revision]] = []
        self._written = asyncio.Event()

    async def create(self, key: str, value: T) -> Revision:
        if key in self._values:
            raise WrongRevision(key)
        return self._put(key, value)

    async def get(self, key: str) -> Versioned[T] | None:
        found = self._values.get(key)
        return None if found is None else Versioned(self._decode(found[0]), found[1])

    async def update(self, key: str, value: T, expected: Revision) -> Revision:
        self._expect(key, expected)
        return self._put(key, value)

    async def remove(self, key: str, expected: Revision | None) -> None:
        if expected is not None:
            self._expect(key, expected)
        self._values.pop(key, None)
        self._sequence += 1
        self._remember(key, None)

    def _expect(self, key: str, expected: Revision) -> None:
        found = self._values.get(key)
        if found is None or found[1] != expected:
            raise WrongRevision(key)

    def _put(self, key: str, value: T) -> Revision:
        self._sequence += 1
        data = self._encode(value)
        self._values[key] = (data, Revision(self._sequence))
        self._remember(key, data)
        return Revision(self._sequence)

    def _remember(self, key: str, data: bytes | None) -> None:
        self._history.append((key, data, Revision(self._sequence)))
        self._written.set()

    stale_sec = 0.0
    missed_sec = 0.0

    async def follow(self, position: FeedPosition | None) -> AsyncIterator[FeedBatch[T]]:
        """The feed of this store."""
        seen = 0 if position is None else position.last_revision
        yield FeedBatch([], FeedPosition("memory", Revision(seen)), position is None, not self._history)
        while True:
            news = [entry for entry in self._history if entry[2] > seen]
            if not news:  # nothing is awaited in between, so that no other follower clears what is news here
                self._written.clear()
                await self._written.wait()
                continue
            seen = news[-1][2]
            yield FeedBatch(
                [self._change(*entry) for entry in news], FeedPosition("memory", seen), False, True
            )

    def _change(self, key: str, data: bytes | None, revision: Revision) -> Change[T]:
        return Change(key, revision, None if data is None else self._decode(data), None)
