"""Whether JetStream stores what is written, and has all that is needed."""

import asyncio

from pyoco_server.config import NatsBackendConfig
from pyoco_server.jetstream import topology
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.streams import stream_config
from pyoco_server.logs import get_logger

log = get_logger(__name__)

KEY = "storage"


class JetStreamStorage:
    def __init__(self, connection: NatsConnection, config: NatsBackendConfig) -> None:
        self._connection = connection
        self._config = config
        self._wanted = [spec.name for spec in topology.resources(config)]

    async def check(self) -> None:
        found = await asyncio.gather(*(stream_config(self._connection, name) for name in self._wanted))
        missing = [name for name, config in zip(self._wanted, found, strict=True) if config is None]
        if missing:
            log.error("streams were deleted; creating them again", action="storage.restore", streams=missing)
            await topology.ensure_resources(self._connection, self._config)
        await self._connection.publish_acked(f"$KV.{self._config.leases_kv_bucket}.{KEY}", b"{}", {})
