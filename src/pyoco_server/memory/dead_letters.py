"""Dead letters in memory, and jobs that are not delivered any more."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from pyoco_server.domain.dead_letters import DeadLetter, StoredLetter
from pyoco_server.memory.queue import MemoryQueue
from pyoco_server.usecases.ports.queues import QueuedMessage
from pyoco_server.usecases.ports.runs import LetterWindow
from pyoco_server.usecases.ports.stores import Change, FeedBatch, FeedPosition, Revision


class MemoryDeadLetters:
    def __init__(self) -> None:
        self._stored: dict[int, StoredLetter] = {}
        self._last = 0
        self._published = asyncio.Event()

    stale_sec = 0.0
    missed_sec = 0.0

    async def end(self) -> FeedPosition:
        return FeedPosition("memory", Revision(self._last))

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[StoredLetter], None]:
        """The feed of these letters, from the first."""
        seen = 0 if position is None else position.last_revision
        at = FeedPosition("memory", Revision(seen))
        yield FeedBatch([], at, is_reset=position is None, is_caught_up=not self._last)
        while True:
            news = [one for number, one in self._stored.items() if number > seen]
            if not news:
                self._published.clear()
                await self._published.wait()
                continue
            seen = news[-1].number
            changes = [Change(one.id, Revision(one.number), one, None) for one in news]
            yield FeedBatch(
                changes, FeedPosition("memory", Revision(seen)), is_reset=False, is_caught_up=True
            )

    @property
    def letters(self) -> list[tuple[str, DeadLetter]]:
        return [(stored.tag, stored.letter) for stored in self._stored.values()]

    async def publish(self, letter: DeadLetter, tag: str, tenant_id: str | None = None) -> None:
        self._last += 1
        self._stored[self._last] = StoredLetter(
            number=self._last, tag=tag, tenant_id=tenant_id, letter=letter
        )
        self._published.set()

    async def count(self) -> int:
        return len(self._stored)

    async def before(self, number: int | None, limit: int) -> LetterWindow:
        first, end = min(self._stored, default=self._last + 1), self._last + 1
        end = end if number is None else min(end, number)
        start = max(first, end - limit)
        found = [self._stored[one] for one in range(end - 1, start - 1, -1) if one in self._stored]
        return LetterWindow(found, start, first)

    async def get(self, number: int) -> StoredLetter | None:
        return self._stored.get(number)

    async def remove(self, number: int) -> bool:
        return self._stored.pop(number, None) is not None


class MemoryUndeliverableJob:
    def __init__(self, queue: MemoryQueue, sequence: int, deliveries: int) -> None:
        self._queue = queue
        self.sequence = sequence
        self.deliveries = deliveries

    async def read(self) -> QueuedMessage | None:
        message = self._queue.at(self.sequence)
        return None if message is None else QueuedMessage(message.payload, message.subject)

    async def remove(self) -> None:
        message = self._queue.at(self.sequence)
        if message is not None:
            self._queue.forget(message)

    async def settle(self) -> None:
        self._queue.settle(self.sequence)


class MemoryUndeliverable:
    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def follow(self) -> AsyncIterator[MemoryUndeliverableJob]:
        while True:
            message = self._queue.take_undeliverable()
            if message is None:
                await self._queue.change(self._queue.next_advisory())
            else:
                yield self.at(message.sequence, message.num_delivered)

    def at(self, sequence: int, deliveries: int) -> MemoryUndeliverableJob:
        return MemoryUndeliverableJob(self._queue, sequence, deliveries)
