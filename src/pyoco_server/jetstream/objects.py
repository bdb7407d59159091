"""The content of objects in a JetStream object store, with the chunks of the standard NATS layout.

Chunks of an object are stored under `$O.<bucket>.C.<nuid>`. They are written and read here, and not by the
library: content is streamed and hashed on the fly.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from datetime import datetime
from typing import NamedTuple

from pyoco_server.jetstream.connection import NatsConnection, PubAck
from pyoco_server.jetstream.kv import scan

CHUNK_BYTES = 128 * 1024
CHUNKS_IN_FLIGHT = 8
"""Chunks in memory per upload or download."""


class Written(NamedTuple):
    size: int
    chunks: int
    sha256: bytes


class ObjectChunks:
    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection = connection
        self._stream = f"OBJ_{bucket}"
        self._prefix = f"$O.{bucket}.C."

    async def write(self, nuid: str, chunks: AsyncIterator[bytes]) -> Written:
        digest, size, count = hashlib.sha256(), 0, 0
        in_flight: deque[asyncio.Task[PubAck]] = deque()
        subject = self._prefix + nuid
        try:
            async for chunk in chunks:
                digest.update(chunk)
                size, count = size + len(chunk), count + 1
                if len(in_flight) >= CHUNKS_IN_FLIGHT:
                    await in_flight.popleft()
                in_flight.append(asyncio.ensure_future(self._connection.publish_acked(subject, chunk, {})))
            while in_flight:
                await in_flight.popleft()
        finally:
            await asyncio.gather(*in_flight, return_exceptions=True)
        return Written(size, count, digest.digest())

    async def read(self, nuid: str) -> AsyncGenerator[bytes, None]:
        chunks = scan(self._connection, self._stream, self._prefix + nuid, CHUNKS_IN_FLIGHT)
        async with aclosing(chunks) as messages:
            async for message in messages:
                yield message.data

    async def purge(self, nuid: str) -> None:
        await self._connection.api(f"STREAM.PURGE.{self._stream}", {"filter": self._prefix + nuid})

    async def stored(self, older_than: float) -> set[str]:
        """Names of contents whose last chunk is older; by the server's clock."""
        info = await self._connection.api(
            f"STREAM.INFO.{self._stream}", {"subjects_filter": f"{self._prefix}*"}
        )
        subjects = info["state"].get("subjects") or {}
        return {
            subject.removeprefix(self._prefix)
            for subject in subjects
            if await self._age(subject, info["ts"]) > older_than
        }

    async def purge_unused(self, old: Collection[str], used: Collection[str]) -> int:
        """`used` is read after `old`, so that nothing is missed that was described meanwhile."""
        unused = set(old).difference(used)
        for nuid in unused:
            await self.purge(nuid)
        return len(unused)

    async def _age(self, subject: str, now: str) -> float:
        """Seconds since the last message of a subject."""
        answer = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"last_by_subj": subject})
        return timestamp(now) - timestamp(answer["message"]["time"])


def timestamp(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
