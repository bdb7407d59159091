"""Looking into stored values of executions, within bounds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from pyoco_server.domain.executions.stored import GONE, MAX_OPENED_BYTES, Lacking, Opened
from pyoco_server.usecases.concurrency import off_loop
from pyoco_server.usecases.ports.runs import ValueStore

T = TypeVar("T")


class OpenValues:
    """Repeats work with the values that it lacks.

    One at a time: decoded, the values of each may take 80 MB.
    """

    def __init__(self, values: ValueStore) -> None:
        self._values = values
        self._turn = asyncio.Lock()

    async def __call__(self, tenant_id: str | None, work: Callable[[Opened], Awaitable[T]]) -> T:
        """`work` raises Lacking. Raises NatsUnavailable."""
        try:
            return await work(Opened())
        except Lacking as error:
            lacking = error.sha256
        async with self._turn:
            opened = Opened()
            while True:
                opened.add(lacking, await self._read(tenant_id, lacking))
                try:
                    return await work(opened)
                except Lacking as error:
                    lacking = error.sha256

    async def _read(self, tenant_id: str | None, sha256: str) -> Any:
        found = await self._values.find(tenant_id, sha256)
        if found is None or found.size > MAX_OPENED_BYTES:  # a reference names the size itself
            return GONE
        data = b"".join([chunk async for chunk in self._values.read(found)])
        return await off_loop(len(data), msgspec.json.decode, data)
