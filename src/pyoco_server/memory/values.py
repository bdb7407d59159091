"""Large values in memory, like the object store of JetStream."""

import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import count

from msgspec.structs import replace

from pyoco_server.domain.executions.graph_versions import tenant_token
from pyoco_server.domain.large_values import StoredValue, ValueUse
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.ports.stores import Clock

VALUE_CHUNK_BYTES = 128 * 1024


class MemoryValues:
    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._contents: dict[str, tuple[float, bytes]] = {}
        self._uses: dict[tuple[str, str, str], tuple[float, StoredValue]] = {}
        self._names = count(1)

    async def put(
        self, tenant_id: str | None, owner: str, kind: str, chunks: AsyncIterator[bytes]
    ) -> StoredValue:
        name = str(next(self._names))
        data = b"".join([chunk async for chunk in chunks])
        new = StoredValue(hashlib.sha256(data).hexdigest(), len(data), kind, name)
        known = await self.find(tenant_id, new.sha256)
        if known is None:
            self._contents[name] = self._clock(), data
        value = new if known is None else replace(new, content=known.content)
        self._uses[tenant_token(tenant_id), new.sha256, owner] = self._clock(), value
        return value

    async def find(self, tenant_id: str | None, sha256: str, *, of_any: bool = False) -> StoredValue | None:
        for (tenant, found, _), (_, value) in self._uses.items():
            if found == sha256 and (of_any or tenant == tenant_token(tenant_id)):
                return value
        return None

    async def use(self, tenant_id: str | None, owner: str, sha256: str) -> StoredValue | None:
        value = await self.find(tenant_id, sha256)
        if value is not None:
            self._uses[tenant_token(tenant_id), sha256, owner] = self._clock(), value
        return value

    async def read(self, value: StoredValue) -> AsyncGenerator[bytes, None]:
        if value.content not in self._contents:
            raise NatsUnavailable(f"the stored value {value.sha256} is damaged")
        data = self._contents[value.content][1]
        for start in range(0, len(data), VALUE_CHUNK_BYTES):
            yield data[start : start + VALUE_CHUNK_BYTES]

    async def uses(self) -> list[ValueUse]:
        now = self._clock()
        return [ValueUse(*key, value.content, now - at) for key, (at, value) in self._uses.items()]

    async def release(self, use: ValueUse) -> None:
        self._uses.pop(use.key, None)

    async def withdraw(self, tenant_id: str | None, owner: str, sha256: str) -> None:
        _, value = self._uses.pop((tenant_token(tenant_id), sha256, owner), (0.0, None))
        used = {one.content for _, one in self._uses.values()}
        if value is not None and value.content not in used:
            self._contents.pop(value.content, None)

    async def bytes_used(self, tenant_id: str | None, owners: str) -> int:
        found = {
            sha256: value.size
            for (tenant, sha256, owner), (_, value) in self._uses.items()
            if tenant == tenant_token(tenant_id) and owner.startswith(f"{owners}.")
        }
        return sum(found.values())

    async def collect(self, older_than: float) -> int:
        used = {value.content for _, value in self._uses.values()}
        before = self._clock() - older_than
        gone = [name for name, (at, _) in self._contents.items() if name not in used and at < before]
        for name in gone:
            del self._contents[name]
        return len(gone)
