"""Jobs that were delivered as often as they may be, in memory."""

import asyncio
from collections.abc import AsyncIterator

from pyoco_server.testing.memory_queue import MemoryQueue
from pyoco_server.usecases.ports import QueuedMessage


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
    _LOOK_SEC = 0.02

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def follow(self) -> AsyncIterator[MemoryUndeliverableJob]:
        while True:
            message = self._queue.take_undeliverable()
            if message is None:
                await asyncio.sleep(self._LOOK_SEC)
            else:
                yield self.at(message.sequence, message.num_delivered)

    def at(self, sequence: int, deliveries: int) -> MemoryUndeliverableJob:
        return MemoryUndeliverableJob(self._queue, sequence, deliveries)
