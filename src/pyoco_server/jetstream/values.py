"""Large values in a JetStream object store.

The content of a value is stored once; `$O.<bucket>.M.<tenant>.<sha256>.<owner>` describes each use of it. A
use is added only if the uses of this value are as they were read: it never names content that a sweep has
removed meanwhile. A use without content was withdrawn: a worker may write, but not remove.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from nats.aio.msg import Msg
from uuid_utils import uuid7

from pyoco_server.domain.executions.graph_versions import tenant_token
from pyoco_server.domain.large_values import StoredValue, ValueUse
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.kv import scan, sequence_of
from pyoco_server.jetstream.objects import ObjectChunks, timestamp
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.stores import WrongRevision

log = get_logger(__name__)

MAX_TRIES = 20
_OWNER_AT = 2
"""Tokens of a use's name before its owner: tenant and hash."""


class _Description(Struct, frozen=True):
    name: str
    bucket: str
    nuid: str
    size: int
    type: str


class _Use(NamedTuple):
    name: str
    sequence: int
    stored_at: str
    value: StoredValue

    @property
    def is_live(self) -> bool:
        return bool(self.value.content)


class ValueObjects:
    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket
        self._stream = f"OBJ_{bucket}"
        self._prefix = f"$O.{bucket}.M."
        self._chunks = ObjectChunks(connection, bucket)

    async def put(
        self, tenant_id: str | None, owner: str, kind: str, chunks: AsyncIterator[bytes]
    ) -> StoredValue:
        nuid = uuid7().hex
        try:
            written = await self._chunks.write(nuid, chunks)
            new = StoredValue(written.sha256.hex(), written.size, kind, nuid)
            value = await self._register(tenant_token(tenant_id), owner, new)
        except BaseException:
            await self._discard(nuid)
            raise
        if value.content != nuid:  # the tenant had it
            await self._discard(nuid)
        return value

    async def find(self, tenant_id: str | None, sha256: str, *, of_any: bool = False) -> StoredValue | None:
        tenant = "*" if of_any else tenant_token(tenant_id)
        async with aclosing(self._uses(f"{tenant}.{sha256}.>")) as uses:
            async for use in uses:
                if use.is_live:
                    return use.value
        return None

    async def use(self, tenant_id: str | None, owner: str, sha256: str) -> StoredValue | None:
        of_value = f"{tenant_token(tenant_id)}.{sha256}"
        for _ in range(MAX_TRIES):
            uses = await self._all_uses(f"{of_value}.>")
            live = {use.name: use.value for use in uses if use.is_live}
            if not live or f"{of_value}.{owner}" in live:
                return live.get(f"{of_value}.{owner}")
            value = next(iter(live.values()))
            try:
                await self._describe(of_value, owner, value, max(use.sequence for use in uses))
            except WrongRevision:
                continue
            return value
        raise NatsUnavailable(f"the value {sha256} could not be used: too many concurrent changes")

    async def read(self, value: StoredValue) -> AsyncGenerator[bytes, None]:
        size = 0
        async with aclosing(self._chunks.read(value.content)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                yield chunk
        if size != value.size:
            raise NatsUnavailable(f"the stored value {value.sha256} is damaged: {size} of {value.size} bytes")

    async def uses(self) -> list[ValueUse]:
        info = await self._connection.api(f"STREAM.INFO.{self._stream}")
        now = timestamp(info["ts"])
        async with aclosing(self._uses(">")) as uses:
            return [_as_use(use, now) async for use in uses]

    async def release(self, use: ValueUse) -> None:
        subject = self._prefix + ".".join(use.key)
        await self._connection.api(f"STREAM.PURGE.{self._stream}", {"filter": subject})

    async def withdraw(self, tenant_id: str | None, owner: str, sha256: str) -> None:
        of_value = f"{tenant_token(tenant_id)}.{sha256}"
        for _ in range(MAX_TRIES):
            uses = await self._all_uses(f"{of_value}.>")
            mine = [use for use in uses if use.name == f"{of_value}.{owner}" and use.is_live]
            if not mine:
                return
            last = max(use.sequence for use in uses)
            try:
                await self._describe(of_value, owner, replace(mine[0].value, content=""), last)
            except WrongRevision:
                continue
            content = mine[0].value.content
            if not any(use.value.content == content for use in uses if use.name != mine[0].name):
                await self._discard(content)
            return
        raise NatsUnavailable(f"the value {sha256} could not be given up: too many concurrent changes")

    async def bytes_used(self, tenant_id: str | None, owners: str) -> int:
        uses = await self._all_uses(f"{tenant_token(tenant_id)}.*.{owners}.>")
        return sum({use.value.sha256: use.value.size for use in uses if use.is_live}.values())

    async def collect(self, older_than: float) -> int:
        old = await self._chunks.stored(older_than)
        async with aclosing(self._uses(">")) as uses:
            used = {use.value.content async for use in uses}
        return await self._chunks.purge_unused(old, used)

    async def _register(self, tenant: str, owner: str, new: StoredValue) -> StoredValue:
        """The value with the content that the tenant has, if it has it."""
        for _ in range(MAX_TRIES):
            uses = await self._all_uses(f"{tenant}.{new.sha256}.>")
            known = [use.value.content for use in uses if use.is_live]
            value = replace(new, content=known[0]) if known else new
            last = max((use.sequence for use in uses), default=0)
            try:
                await self._describe(f"{tenant}.{new.sha256}", owner, value, last)
            except WrongRevision:
                continue
            return value
        raise NatsUnavailable(f"the value {new.sha256} could not be stored: too many concurrent changes")

    async def _describe(self, of_value: str, owner: str, value: StoredValue, last: int) -> None:
        name = f"{of_value}.{owner}"
        description = _Description(name, self._bucket, value.content, value.size, value.type)
        await self._connection.publish_acked(
            self._prefix + name,
            msgspec.json.encode(description),
            {
                "Nats-Rollup": "sub",
                "Nats-Expected-Last-Subject-Sequence": str(last),
                "Nats-Expected-Last-Subject-Sequence-Subject": f"{self._prefix}{of_value}.>",
            },
        )

    async def _all_uses(self, of: str) -> list[_Use]:
        async with aclosing(self._uses(of)) as found:
            return [use async for use in found]

    async def _uses(self, of: str) -> AsyncGenerator[_Use, None]:
        messages = scan(self._connection, self._stream, self._prefix + of)
        async with aclosing(messages):
            async for message in messages:
                use = self._read(message)
                if use is not None:
                    yield use

    def _read(self, message: Msg) -> _Use | None:
        headers = message.headers or {}
        try:
            found = msgspec.json.decode(message.data, type=_Description)
            sha256 = found.name.split(".")[1]
        except (msgspec.MsgspecError, IndexError) as error:
            log.warning("skipped an unreadable value record", action="value.unreadable", exc_info=error)
            return None
        value = StoredValue(sha256, found.size, found.type, found.nuid)
        return _Use(found.name, sequence_of(message), str(headers.get("Nats-Time-Stamp", "")), value)

    async def _discard(self, nuid: str) -> None:
        """A worker may lack the right; then a sweep does it."""
        with best_effort(log, "value.discard", NatsUnavailable):
            await self._chunks.purge(nuid)


def _as_use(use: _Use, now: float) -> ValueUse:
    tenant, sha256, owner = use.name.split(".", _OWNER_AT)
    return ValueUse(tenant, sha256, owner, use.value.content, now - timestamp(use.stored_at))
