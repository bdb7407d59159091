"""The storage behind all ports: a check with a test write, sizes, and the clock of the server."""

import asyncio
from datetime import datetime

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.streams import ensure_streams, resources, stream_info
from pyoco_server.logs import get_logger

log = get_logger(__name__)

STORAGE_KEY = "storage"


class JetStreamStorage:
    def __init__(self, connection: NatsConnection, config: NatsBackendConfig) -> None:
        self._connection = connection
        self._config = config
        self._wanted = [spec.name for spec in resources(config)]
        self.sizes: dict[str, int] = {}

    async def check(self) -> None:
        found = await asyncio.gather(*(stream_info(self._connection, name) for name in self._wanted))
        streams = dict(zip(self._wanted, found, strict=True))
        self.sizes = {name: info["state"]["bytes"] for name, info in streams.items() if info is not None}
        missing = [name for name, info in streams.items() if info is None]
        if missing:
            log.error("streams were deleted; recreating them", action="storage.restore", streams=missing)
            await ensure_streams(self._connection, self._config)
        await self._connection.publish_acked(f"$KV.{self._config.leases_kv_bucket}.{STORAGE_KEY}", b"{}", {})


# Server time, from the stream leader's replies.


class JetStreamTime:
    def __init__(self, connection: NatsConnection, stream: str) -> None:
        self._connection = connection
        self._stream = stream

    async def now(self) -> float:
        answer = await self._connection.api(f"STREAM.INFO.{self._stream}")
        try:
            return datetime.fromisoformat(answer["ts"]).timestamp()
        except (KeyError, TypeError, ValueError) as error:
            raise NatsUnavailable(f"nats unavailable: no timestamp in the info of {self._stream}") from error
