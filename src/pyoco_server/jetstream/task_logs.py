"""What flows print, in a stream with one subject per run."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from nats.aio.msg import Msg

from pyoco_server.domain import wire
from pyoco_server.domain.task_logs import LogLine
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.scan import scan
from pyoco_server.logs import get_logger

log = get_logger(__name__)


class LogStream:
    def __init__(self, connection: NatsConnection, stream: str, subject_prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix

    async def append(self, run_id: str, lines: Sequence[LogLine]) -> None:
        await self._connection.publish_acked(f"{self._prefix}.{run_id}", wire.encode(lines), {})

    async def read(self, run_id: str) -> AsyncIterator[LogLine]:
        async for message in scan(self._connection, self._stream, f"{self._prefix}.{run_id}"):
            for line in _lines(message):
                yield line

    async def follow(
        self, run_id: str, callback: Callable[[Sequence[LogLine]], None]
    ) -> Callable[[], Awaitable[None]]:
        """A plain subscription: what is published to the stream reaches it as well, without any consumer."""

        async def received(message: Msg) -> None:
            callback(_lines(message))

        return await self._connection.listen(f"{self._prefix}.{run_id}", received)


def _lines(message: Msg) -> Sequence[LogLine]:
    try:
        return wire.decode_log_lines(message.data)
    except wire.Unreadable as error:
        log.warning("an unreadable log record is passed over", action="logs.unreadable", exc_info=error)
        return []
