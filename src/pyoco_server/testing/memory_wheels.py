"""Wheels and their history, in memory."""

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count

from pyoco_server.domain.wheels import Wheel, WheelEvent


class MemoryWheels:
    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._stored: dict[str, tuple[Wheel, bytes]] = {}
        self._nuids = count(1)

    async def list_wheels(self) -> list[Wheel]:
        return sorted((wheel for wheel, _ in self._stored.values()), key=lambda wheel: wheel.name)

    async def get(self, name: str) -> Wheel | None:
        found = self._stored.get(name)
        return found[0] if found else None

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        tags: Sequence[str],
        check: Callable[[list[Wheel]], None],
    ) -> Wheel:
        check(await self.list_wheels())
        content = b"".join([chunk async for chunk in chunks])
        check(await self.list_wheels())
        wheel = Wheel(
            name=name,
            size_bytes=len(content),
            bucket=self._bucket,
            nuid=str(next(self._nuids)),
            modified=time.time(),
            sha256=hashlib.sha256(content).digest(),
            tags=tuple(tags),
        )
        self._stored[name] = (wheel, content)
        return wheel

    async def read(self, wheel: Wheel) -> AsyncIterator[bytes]:
        yield self._stored[wheel.name][1]

    async def collect(self, older_than: float) -> int:  # noqa: ARG002 - nothing is left of what was not put
        return 0

    async def delete(self, name: str) -> Wheel | None:
        found = self._stored.pop(name, None)
        return found[0] if found else None


class MemoryWheelHistory:
    def __init__(self) -> None:
        self._events: list[WheelEvent] = []

    async def append(self, event: WheelEvent) -> None:
        self._events.insert(0, event)

    async def list_events(self) -> list[WheelEvent]:
        return list(self._events)
