"""Jobs that were delivered as often as they may be, in memory."""

import asyncio
from collections.abc import AsyncIterator

from pyoco_server.testing.memory_queue import MemoryMessage, MemoryQueue
from pyoco_server.usecases.ports import QueuedMessage


class MemoryUndeliverableJob:
    def __init__(self, queue: MemoryQueue, message: MemoryMessage) -> None:
        self._queue = queue
        self._message = message
        self.deliveries = message.num_delivered

    async def read(self) -> QueuedMessage | None:
        if not self._queue.holds(self._message):
            return None
        return QueuedMessage(self._message.payload, self._message.subject)

    async def remove(self) -> None:
        self._queue.forget(self._message)

    async def settle(self) -> None:
        self._queue.settle(self._message)


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
                yield MemoryUndeliverableJob(self._queue, message)
