"""Run logs in a stream with one subject per run, and signals for foreign writes of run snapshots."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from nats.aio.msg import Msg

from pyoco_server.domain import codec
from pyoco_server.domain.runs.logs import LogLine, LogRecord
from pyoco_server.jetstream.connection import NatsConnection, PayloadTooLarge
from pyoco_server.jetstream.kv import scan
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.runs import TooManyLines

log = get_logger(__name__)

RECORDS_AT_ONCE = 50
"""Records have up to 128 KiB of text; a page rarely needs more than a few."""
_NO_STREAM = "-"

Follower = Callable[[Sequence[LogLine]], None]


class LogStream:
    def __init__(self, connection: NatsConnection, stream: str, subject_prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix
        self._followers: dict[str, dict[object, Follower]] = {}
        self._stops: dict[str, Callable[[], Awaitable[None]]] = {}
        self._turn = asyncio.Lock()

    async def append(self, run_id: str, lines: Sequence[LogLine], write_id: str) -> None:
        subject = f"{self._prefix}.{run_id}"
        try:
            await self._connection.publish_acked(subject, codec.encode(lines), {"Nats-Msg-Id": write_id})
        except PayloadTooLarge as error:
            raise TooManyLines from error

    async def show(self, run_id: str, lines: Sequence[LogLine]) -> None:
        """Publish on the same subject, which needs no other permission; the stream refuses to store it."""
        await self._connection.publish(
            f"{self._prefix}.{run_id}", codec.encode(lines), headers={"Nats-Expected-Stream": _NO_STREAM}
        )

    async def read(self, run_id: str, after: int = 0) -> AsyncGenerator[LogRecord, None]:
        subject = f"{self._prefix}.{run_id}"
        async with aclosing(
            scan(self._connection, self._stream, subject, batch=RECORDS_AT_ONCE, start=after + 1)
        ) as messages:
            async for message in messages:
                yield LogRecord(int((message.headers or {})["Nats-Sequence"]), list(_lines(message)))

    async def follow(self, run_id: str, callback: Follower) -> Callable[[], Awaitable[None]]:
        """A plain subscription, which needs no consumer to receive what is published to the stream.

        All followers of a run share it, so that their number does not multiply the traffic.
        """
        token = object()
        async with self._turn:
            if run_id not in self._followers:
                self._stops[run_id] = await self._listen(run_id)
                self._followers[run_id] = {}
            self._followers[run_id][token] = callback

        async def stop() -> None:
            async with self._turn:
                del self._followers[run_id][token]
                if not self._followers[run_id]:
                    del self._followers[run_id]
                    await self._stops.pop(run_id)()

        return stop

    async def _listen(self, run_id: str) -> Callable[[], Awaitable[None]]:
        async def received(message: Msg) -> None:
            lines = _lines(message)
            for callback in list(self._followers.get(run_id, {}).values()):
                callback(lines)

        return await self._connection.listen(f"{self._prefix}.{run_id}", received)


def _lines(message: Msg) -> Sequence[LogLine]:
    try:
        return codec.decode_log_lines(message.data)
    except codec.Unreadable as error:
        log.warning("skipped an unreadable log record", action="logs.unreadable", exc_info=error)
        return []


# Write signals, so that a cancel does not wait for the next heartbeat.


class BucketSignals:
    """A write to a bucket is a message on the key's subject and can be subscribed to.

    The connection does not receive its own messages, so every message is a foreign write.
    """

    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection = connection
        self._prefix = f"$KV.{bucket}."

    async def on_foreign_write(
        self, run_id: str, callback: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        async def received(_message: Msg) -> None:
            callback()

        return await self._connection.listen(self._prefix + run_id, received)
