"""Wheels in a JetStream object store with the standard NATS layout.

The description of an object is stored under `$O.<bucket>.M.<name>`. It is written only if no other wheel was
registered or removed since the check.
"""

import base64
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from nats.aio.msg import Msg
from uuid_utils import uuid7

from pyoco_server.domain import codec
from pyoco_server.domain.wheels import Wheel, WheelEvent
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.kv import scan
from pyoco_server.jetstream.objects import CHUNK_BYTES, ObjectChunks, Written, timestamp
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.stores import WrongRevision

log = get_logger(__name__)

MAX_TRIES = 20
TAGS_HEADER = "x-pyoco-wheel-tags"
_DIGEST = "SHA-256="


class _Description(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Object metadata as defined by the NATS object store."""

    name: str
    bucket: str
    nuid: str
    size: int = msgspec.field(default=-1)
    mtime: str = ""
    chunks: int = msgspec.field(default=-1)
    digest: str = ""
    deleted: bool = False
    headers: dict[str, Any] | None = None
    options: dict[str, Any] | None = None


class WheelObjects:
    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket
        self._stream = f"OBJ_{bucket}"
        self._chunks = ObjectChunks(connection, bucket)

    async def list_wheels(self) -> list[Wheel]:
        return (await self._listed())[0]

    async def get(self, name: str) -> Wheel | None:
        return next((wheel for wheel in await self.list_wheels() if wheel.name == name), None)

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        tags: Sequence[str],
        check: Callable[[list[Wheel]], None],
    ) -> Wheel:
        wheels, last = await self._listed()
        check(wheels)
        nuid = uuid7().hex
        try:
            written = await self._chunks.write(nuid, chunks)
            description = self._describe(name, nuid, written, tags)
            await self._register(description, check, last)
        except BaseException:
            with best_effort(log, "wheel.discard", NatsUnavailable, wheel=name):
                await self._chunks.purge(nuid)
            raise
        return _wheel(description)

    async def read(self, wheel: Wheel) -> AsyncIterator[bytes]:
        digest, size = hashlib.sha256(), 0
        async for chunk in self._chunks.read(wheel.nuid):
            digest.update(chunk)
            size += len(chunk)
            yield chunk
        if size != wheel.size_bytes or (wheel.sha256 is not None and digest.digest() != wheel.sha256):
            raise NatsUnavailable(f"the stored wheel {wheel.name} is damaged: upload a new version")

    async def delete(self, name: str) -> Wheel | None:
        for _ in range(MAX_TRIES):
            wheels, last = await self._listed()
            wheel = next((wheel for wheel in wheels if wheel.name == name), None)
            if wheel is None:
                return None
            gone = _Description(
                name=name, bucket=self._bucket, nuid=wheel.nuid, size=0, chunks=0, mtime=_now(), deleted=True
            )
            try:
                await self._write_description(gone, last)
            except WrongRevision:
                continue
            await self._chunks.purge(wheel.nuid)
            return wheel
        raise NatsUnavailable(f"the wheel {name} could not be removed: too many concurrent changes")

    async def collect(self, older_than: float) -> int:
        """Remove old chunks without a description, left by a crashed gateway; by the server's clock."""
        old = await self._chunks.stored(older_than)
        return await self._chunks.purge_unused(old, {wheel.nuid for wheel in await self.list_wheels()})

    async def _listed(self) -> tuple[list[Wheel], int]:
        """All wheels, and the sequence of the newest description, on which a change is conditional."""
        found, last = [], 0
        async for message in scan(self._connection, self._stream, f"$O.{self._bucket}.M.>"):
            last = max(last, int((message.headers or {})["Nats-Sequence"]))
            description = _read_description(message)
            if description is not None and not description.deleted:
                found.append(_wheel(description))
        return sorted(found, key=lambda wheel: wheel.name), last

    async def _register(
        self, description: _Description, check: Callable[[list[Wheel]], None], last: int
    ) -> None:
        for _ in range(MAX_TRIES):
            try:
                await self._write_description(description, last)
            except WrongRevision:  # another wheel was registered meanwhile; check again
                wheels, last = await self._listed()
                check(wheels)
            else:
                return
        raise NatsUnavailable(
            f"the wheel {description.name} could not be registered: too many concurrent changes"
        )

    async def _write_description(self, description: _Description, last: int) -> None:
        await self._connection.publish_acked(
            self._description_subject(description.name),
            msgspec.json.encode(description),
            {
                "Nats-Rollup": "sub",
                "Nats-Expected-Last-Subject-Sequence": str(last),
                "Nats-Expected-Last-Subject-Sequence-Subject": f"$O.{self._bucket}.M.>",
            },
        )

    def _describe(self, name: str, nuid: str, written: Written, tags: Sequence[str]) -> _Description:
        return _Description(
            name=name,
            bucket=self._bucket,
            nuid=nuid,
            size=written.size,
            mtime=_now(),
            chunks=written.chunks,
            digest=_DIGEST + base64.urlsafe_b64encode(written.sha256).decode(),
            headers={TAGS_HEADER: ",".join(tags)} if tags else None,
            options={"max_chunk_size": CHUNK_BYTES},
        )

    def _description_subject(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _read_description(message: Msg) -> _Description | None:
    try:
        return msgspec.json.decode(message.data, type=_Description)
    except msgspec.MsgspecError as error:
        log.warning("skipped an unreadable wheel record", action="wheel.unreadable", exc_info=error)
        return None


def _wheel(description: _Description) -> Wheel:
    return Wheel(
        name=description.name,
        size_bytes=description.size,
        bucket=description.bucket,
        nuid=description.nuid,
        modified=timestamp(description.mtime),
        sha256=_digest(description.digest),
        tags=_tags(description.headers or {}),
    )


def _tags(headers: dict[str, Any]) -> tuple[str, ...]:
    """Plain text; some clients write a list."""
    found = headers.get(TAGS_HEADER, "")
    text = ",".join(map(str, found)) if isinstance(found, list) else str(found)
    return tuple(tag.strip() for tag in text.split(",") if tag.strip())


def _digest(text: str) -> bytes | None:
    if not text.startswith(_DIGEST):
        return None
    try:
        return base64.urlsafe_b64decode(text[len(_DIGEST) :] + "==")
    except ValueError:
        return None


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat()


class WheelHistoryBucket:
    """The history with one key per event; the bucket expires old ones."""

    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection = connection
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def append(self, event: WheelEvent) -> None:
        await self._connection.publish_acked(self._prefix + event.event_id, codec.encode(event), {})

    async def list_events(self) -> list[WheelEvent]:
        found = []
        async for message in scan(self._connection, self._stream, f"{self._prefix}>"):
            try:
                found.append(codec.decode_wheel_event(message.data))
            except codec.Unreadable as error:
                log.warning("skipped an unreadable history record", action="wheel.unreadable", exc_info=error)
        return sorted(found, key=lambda event: (event.occurred_at, event.event_id), reverse=True)
