"""Requests for child runs, encoded as they are on the wire."""

from collections.abc import Awaitable, Callable

from pyoco_server.domain import codec
from pyoco_server.domain.runs.children import ChildAnswer, ChildOrder
from pyoco_server.errors import NobodyAnswers, RequestTooLarge
from pyoco_server.memory.queue import MEGABYTE


class MemoryChildRuns:
    def __init__(self) -> None:
        self._handlers: list[Callable[[ChildOrder], Awaitable[ChildAnswer]]] = []

    async def request(self, order: ChildOrder) -> ChildAnswer:
        if not self._handlers:
            raise NobodyAnswers("nats unavailable: no responders")
        payload = codec.encode(order)
        if len(payload) > MEGABYTE:
            raise RequestTooLarge("params: larger than a message of this NATS may be")
        answer = await self._handlers[0](codec.decode_child_order(payload))
        return codec.decode_child_answer(codec.encode(answer))

    async def serve(
        self, handler: Callable[[ChildOrder], Awaitable[ChildAnswer]]
    ) -> Callable[[], Awaitable[None]]:
        self._handlers.append(handler)

        async def stop() -> None:
            self._handlers.remove(handler)

        return stop
