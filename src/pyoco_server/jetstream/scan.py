"""Read a stream from its first to its last message without a consumer, a thousand messages a request."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from nats.aio.msg import Msg

from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import REQUEST_TIMEOUT_SEC, NatsConnection

BATCH = 1000


async def scan(
    connection: NatsConnection,
    stream: str,
    subjects: str,
    batch: int = BATCH,
    start: int = 1,
    since: str | None = None,
) -> AsyncGenerator[Msg, None]:
    """The messages stored now under `subjects`, from sequence `start` on. The stream must allow direct gets.

    At most `batch` messages are in memory at once. `since`: only those that were stored then or later.
    """
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, arrived.put)
    try:
        begin: dict[str, Any] = {"seq": start} if since is None else {"start_time": since}
        while True:
            body = {**begin, "batch": batch, "next_by_subj": subjects}
            await connection.publish(
                connection.api_subject(f"DIRECT.GET.{stream}"), msgspec.json.encode(body), reply=inbox
            )
            count = 0
            async for message in _batch(arrived):
                count += 1
                begin = {"seq": int((message.headers or {})["Nats-Sequence"]) + 1}
                yield message
            if count < batch:
                return
    finally:
        if connection.is_connected:
            await subscription.unsubscribe()


async def _batch(arrived: asyncio.Queue[Msg]) -> AsyncIterator[Msg]:
    """The messages of one request, up to the status that ends it."""
    while True:
        message = await _next(arrived)
        headers = message.headers or {}
        if "Status" not in headers:
            yield message
        elif headers["Status"] in ("204", "404"):
            return
        else:
            raise NatsUnavailable(f"reading a stream failed: {headers.get('Description', headers['Status'])}")


async def _next(arrived: asyncio.Queue[Msg]) -> Msg:
    waiting = asyncio.ensure_future(arrived.get())
    done, _ = await asyncio.wait({waiting}, timeout=REQUEST_TIMEOUT_SEC)
    if not done:
        waiting.cancel()
        raise NatsUnavailable("reading a stream was not answered")
    return waiting.result()
