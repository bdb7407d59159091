"""What flows print, in a stream with one subject per run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from nats.aio.msg import Msg

from pyoco_server.domain import wire
from pyoco_server.domain.task_logs import LogLine
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.scan import scan
from pyoco_server.logs import get_logger

log = get_logger(__name__)

Follower = Callable[[Sequence[LogLine]], None]


class LogStream:
    def __init__(self, connection: NatsConnection, stream: str, subject_prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix
        self._followers: dict[str, dict[object, Follower]] = {}
        self._stops: dict[str, Callable[[], Awaitable[None]]] = {}
        self._turn = asyncio.Lock()

    async def append(self, run_id: str, lines: Sequence[LogLine]) -> None:
        await self._connection.publish_acked(f"{self._prefix}.{run_id}", wire.encode(lines), {})

    async def read(self, run_id: str) -> AsyncIterator[LogLine]:
        async for message in scan(self._connection, self._stream, f"{self._prefix}.{run_id}"):
            for line in _lines(message):
                yield line

    async def follow(self, run_id: str, callback: Follower) -> Callable[[], Awaitable[None]]:
        """A plain subscription: what is published to the stream reaches it as well, without any consumer.

        One for all who follow a run: a crowd of them must not multiply what its flow prints.
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
            for tell in list(self._followers.get(run_id, {}).values()):
                tell(lines)

        return await self._connection.listen(f"{self._prefix}.{run_id}", received)


def _lines(message: Msg) -> Sequence[LogLine]:
    try:
        return wire.decode_log_lines(message.data)
    except wire.Unreadable as error:
        log.warning("an unreadable log record is passed over", action="logs.unreadable", exc_info=error)
        return []
