"""Requests of workers for child runs: plain requests, of which any one gateway answers each.

Nothing is stored: the task waits for its answer, and a repeated request is the same child.
"""

import asyncio
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg

from pyoco_server.domain import codec
from pyoco_server.domain.runs.children import ChildAnswer, ChildOrder
from pyoco_server.errors import NatsUnavailable, RequestTooLarge
from pyoco_server.jetstream.connection import NatsConnection, PayloadTooLarge
from pyoco_server.logs import best_effort, get_logger

log = get_logger(__name__)

AT_ONCE = 50
QUEUE_GROUP = "gateways"
ANSWER_SEC = 10.0
"""A gateway has as long for an answer; a child may need several writes."""
Handler = Callable[[ChildOrder], Awaitable[ChildAnswer]]


class NatsChildRuns:
    def __init__(self, connection: NatsConnection, subject_prefix: str) -> None:
        self._connection = connection
        self._subject = f"{subject_prefix}.child"

    async def request(self, order: ChildOrder) -> ChildAnswer:
        try:
            reply = await self._connection.request(self._subject, codec.encode(order), timeout=ANSWER_SEC)
            return codec.decode_child_answer(reply.data)
        except PayloadTooLarge as error:
            raise RequestTooLarge("params: larger than a message of this NATS may be") from error
        except codec.Unreadable as error:
            raise NatsUnavailable("the answer of a gateway is unreadable") from error

    async def serve(self, handler: Handler) -> Callable[[], Awaitable[None]]:
        turns, answering = asyncio.Semaphore(AT_ONCE), set[asyncio.Task[None]]()

        async def answer(message: Msg) -> None:
            with best_effort(log, "children.answer", NatsUnavailable):
                try:
                    found = await handler(codec.decode_child_order(message.data))
                except codec.Unreadable as error:
                    found = ChildAnswer(error=str(error))
                finally:
                    turns.release()
                await self._connection.publish(message.reply, codec.encode(found))

        async def received(message: Msg) -> None:
            await turns.acquire()
            task = asyncio.ensure_future(answer(message))
            answering.add(task)
            task.add_done_callback(answering.discard)

        return await self._connection.listen(self._subject, received, QUEUE_GROUP)
