"""The time as NATS has it: the server that leads a stream says it with every answer about that stream."""

from datetime import datetime

from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import NatsConnection


class JetStreamTime:
    def __init__(self, connection: NatsConnection, stream: str) -> None:
        self._connection = connection
        self._stream = stream

    async def now(self) -> float:
        answer = await self._connection.api(f"STREAM.INFO.{self._stream}")
        try:
            return datetime.fromisoformat(answer["ts"]).timestamp()
        except (KeyError, TypeError, ValueError) as error:
            raise NatsUnavailable(f"nats unavailable: no time in its answer about {self._stream}") from error
