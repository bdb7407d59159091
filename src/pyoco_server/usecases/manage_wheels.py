"""Register, read and remove wheels, with a history of who did."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import BinaryIO

from msgspec import Struct

from pyoco_server.domain.wheels import (
    Actor,
    Source,
    Wheel,
    WheelAction,
    WheelEvent,
    check_version,
    is_wheel_name,
)
from pyoco_server.errors import NatsUnavailable, WheelNotFound
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports import Clock, WheelHistory, WheelStore
from pyoco_server.usecases.wheel_files import check_wheel

log = get_logger(__name__)

CHUNK_BYTES = 128 * 1024
COLLECT_INTERVAL_SEC = 3600.0
UPLOAD_SEC = 3600.0
"""An upload that has stored nothing for this long will not come to its end."""


class Upload(Struct, frozen=True, kw_only=True):
    name: str
    file: BinaryIO
    size: int
    tags: tuple[str, ...]
    replace: bool
    actor: Actor
    source: Source


class ManageWheels:
    def __init__(
        self, wheels: WheelStore, history: WheelHistory, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        self._wheels = wheels
        self._history = history
        self._clock = clock
        self._new_id = new_id

    async def upload(self, upload: Upload) -> Wheel:
        """Raises InvalidRequest for a bad file, WheelVersionConflict for a version that is not newer."""
        # In a thread: a directory of thousands of members takes a while to read.
        name = await asyncio.to_thread(check_wheel, upload.name, upload.file, upload.size)
        wheel = await self._wheels.put(
            upload.name, _chunks(upload.file), upload.tags, partial(check_version, name)
        )
        await self._record(WheelAction.UPLOAD, wheel, upload.actor, upload.source, replace=upload.replace)
        return wheel

    async def keep_collecting(self) -> None:
        """What uploads left whose gateway died."""
        while True:
            with best_effort(log, "wheel.collect", NatsUnavailable):
                if count := await self._wheels.collect(UPLOAD_SEC):
                    log.info("unfinished uploads removed", action="wheel.collected", count=count)
            await asyncio.sleep(COLLECT_INTERVAL_SEC)

    async def find(self, name: str) -> Wheel:
        wheel = await self._wheels.get(name) if is_wheel_name(name) else None
        if wheel is None:
            raise WheelNotFound
        return wheel

    async def list_wheels(self) -> list[Wheel]:
        return await self._wheels.list_wheels()

    def read(self, wheel: Wheel) -> AsyncIterator[bytes]:
        return self._wheels.read(wheel)

    async def delete(self, name: str, actor: Actor, source: Source) -> Wheel:
        wheel = await self._wheels.delete(name) if is_wheel_name(name) else None
        if wheel is None:
            raise WheelNotFound
        await self._record(WheelAction.DELETE, wheel, actor, source, replace=None)
        return wheel

    async def history(
        self, wheel_name: str | None, action: WheelAction | None, limit: int
    ) -> list[WheelEvent]:
        events = await self._history.list_events()
        wanted = [
            event
            for event in events
            if wheel_name in (None, event.wheel_name) and action in (None, event.action)
        ]
        return wanted[:limit]

    async def _record(
        self, action: WheelAction, wheel: Wheel, actor: Actor, source: Source, *, replace: bool | None
    ) -> None:
        """The wheel is registered (or gone) already: a history that fails must not say otherwise."""
        event = WheelEvent(
            event_id=self._new_id(),
            occurred_at=self._clock(),
            action=action,
            wheel_name=wheel.name,
            tags=wheel.tags,
            size_bytes=wheel.size_bytes,
            sha256_hex=wheel.sha256_hex,
            replace=replace,
            actor=actor,
            source=source,
        )
        log.info("wheel registry changed", action=f"wheel.{action}", wheel=wheel.name, tags=wheel.tags)
        with best_effort(log, "wheel.history", NatsUnavailable, wheel=wheel.name):
            await self._history.append(event)


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
