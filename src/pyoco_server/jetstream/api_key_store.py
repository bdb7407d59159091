"""API key records in their bucket, by `record_key(key_id)`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pyoco_server.domain import wire
from pyoco_server.domain.api_keys import ApiKeyRecord
from pyoco_server.jetstream.api_key_feed import JetStreamApiKeyFeed
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.kv_store import KvStore


class JetStreamApiKeys(KvStore[ApiKeyRecord]):
    def __init__(self, connection: NatsConnection, bucket: str, stream_config: dict[str, Any]) -> None:
        super().__init__(connection, bucket, stream_config, wire.encode, wire.decode_api_key)
        self._bucket = bucket

    async def list_keys(self) -> list[ApiKeyRecord]:
        """Read from the bucket's stream: listing a bucket's keys does not scale and breaks at random."""
        async with self.follow_keys() as feed:
            return await feed.all_records()

    @asynccontextmanager
    async def follow_keys(self) -> AsyncIterator[JetStreamApiKeyFeed]:
        feed = JetStreamApiKeyFeed(self._connection, self._bucket)
        await feed.open()
        try:
            yield feed
        finally:
            await feed.close()
