"""Read a stream from its first to its last message without a consumer, a thousand messages a request."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from nats.aio.msg import Msg

from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import REQUEST_TIMEOUT_SEC, NatsConnection
from pyoco_server.usecases.batches import Batch, whole

BATCH = 1000
BATCH_BYTES = 8 * 1024 * 1024
"""Of a batch at the most, and so of memory. Without it the server cuts a batch at 64 MB."""


async def scan(
    connection: NatsConnection,
    stream: str,
    subjects: str,
    batch: int = BATCH,
    start: int = 1,
    since: str | None = None,
) -> AsyncGenerator[Msg, None]:
    """The messages stored now under `subjects`, from sequence `start` on. The stream must allow direct gets.

    `since`: only those that were stored then or later. On a stream with replicas one that is behind may
    answer: whoever concludes something from what is absent has to ask the leader
    for what is behind the last message.
    """
    reader = _BatchReader(connection, stream, {"batch": batch, "next_by_subj": subjects}, since)
    await reader.open()
    try:
        async with aclosing(whole(reader.read, start)) as messages:
            async for message in messages:
                yield message
    finally:
        await reader.close()


class _BatchReader:
    def __init__(
        self, connection: NatsConnection, stream: str, wanted: dict[str, Any], since: str | None
    ) -> None:
        self._connection = connection
        self._subject = connection.api_subject(f"DIRECT.GET.{stream}")
        self._wanted = {**wanted, "max_bytes": BATCH_BYTES}
        self._since = since
        self._inbox = connection.new_inbox()
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()

    async def open(self) -> None:
        self._subscription = await self._connection.subscribe(self._inbox, self._arrived.put)

    async def close(self) -> None:
        if self._connection.is_connected:
            await self._subscription.unsubscribe()

    async def read(self, start: int) -> Batch[Msg]:
        begin: dict[str, Any] = {"seq": start} if self._since is None else {"start_time": self._since}
        self._since = None
        body = msgspec.json.encode({**self._wanted, **begin})
        await self._connection.publish(self._subject, body, reply=self._inbox)
        messages: list[Msg] = []
        while "Status" not in (headers := (message := await self._next()).headers or {}):
            messages.append(message)
        if headers["Status"] not in ("204", "404"):
            raise NatsUnavailable(f"reading a stream failed: {headers.get('Description', headers['Status'])}")
        following = sequence_of(messages[-1]) + 1 if messages else start
        return Batch(messages, following, int(headers.get("Nats-Num-Pending", 0)))

    async def _next(self) -> Msg:
        if not self._arrived.empty():
            return self._arrived.get_nowait()
        waiting = asyncio.ensure_future(self._arrived.get())
        done, _ = await asyncio.wait({waiting}, timeout=REQUEST_TIMEOUT_SEC)
        if not done:
            waiting.cancel()
            raise NatsUnavailable("reading a stream was not answered")
        return waiting.result()


def sequence_of(message: Msg) -> int:
    """Of a message that was read directly."""
    return int((message.headers or {})["Nats-Sequence"])
