"""API keys, in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pyoco_server.domain import wire
from pyoco_server.domain.api_keys import ApiKeyRecord, record_key
from pyoco_server.testing.memory_store import MemoryStore


class MemoryApiKeys(MemoryStore[ApiKeyRecord]):
    def __init__(self) -> None:
        super().__init__(wire.encode, wire.decode_api_key)

    async def list_keys(self) -> list[ApiKeyRecord]:
        by_change = sorted(self._values.values(), key=lambda stored: stored[1])
        return [self._decode(data) for data, _ in by_change]

    @asynccontextmanager
    async def follow_keys(self) -> AsyncIterator["MemoryApiKeyFeed"]:
        yield MemoryApiKeyFeed(self)

    def now(self, key_id: str) -> ApiKeyRecord | None:
        found = self._values.get(record_key(key_id))
        return None if found is None else self._decode(found[0])


class MemoryApiKeyFeed:
    """Never behind. A test that needs a feed which fell silent says so with `is_current`."""

    def __init__(self, keys: MemoryApiKeys) -> None:
        self._keys = keys
        self.is_current = True

    def known(self, key_id: str) -> ApiKeyRecord | None:
        return self._keys.now(key_id)
