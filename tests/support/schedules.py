"""A gateway whose schedules go by a clock that a test sets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.memory import MemoryGatewayBackend, MemoryTimers, open_memory_gateway_backend
from support.gateway import memory_gateway
from support.waiting import until

NOW = 1_800_000_000.0


class SetClock:
    """The time of the store."""

    def __init__(self) -> None:
        self._now = NOW
        self.timers: MemoryTimers | None = None

    def __call__(self) -> float:
        return self._now

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, now: float) -> None:
        self._now = now
        if self.timers is not None:
            self.timers.wake()

    async def measure(self) -> None:
        """It is always right."""

    async def run(self) -> None:
        await asyncio.Event().wait()


@dataclass(frozen=True)
class TimedGateway:
    client: httpx2.AsyncClient
    backend: MemoryGatewayBackend
    clock: SetClock

    async def put(self, schedule_id: str = "nightly", **fields: Any) -> dict[str, Any]:
        body = {"target": {"flow": "report"}, **fields}
        if "cron" not in body:
            body.setdefault("every_sec", 60)
        answer = await self.client.put(f"/schedules/{schedule_id}", json=body)
        assert answer.status_code in (200, 201), answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    async def schedule(self, schedule_id: str = "nightly") -> dict[str, Any]:
        shown: dict[str, Any] = (await self.client.get(f"/schedules/{schedule_id}")).json()
        return shown

    async def ticks(self, schedule_id: str = "nightly") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            await self.client.get(f"/schedules/{schedule_id}/ticks?limit=200")
        ).json()["items"]
        return found

    async def has_ticks(self, count: int, schedule_id: str = "nightly") -> list[dict[str, Any]]:
        """Once there are so many."""
        return await until(lambda: self.ticks(schedule_id), lambda found: len(found) >= count)

    async def end(self, run_id: str, status: RunStatus = RunStatus.COMPLETED) -> None:
        """What a worker would do."""
        stored = await self.backend.runs.get(run_id)
        assert stored is not None
        ended = replace_run(stored.value, status, self.clock())
        await self.backend.runs.update(run_id, ended, stored.revision)


def replace_run(run: Any, status: RunStatus, now: float) -> Any:
    from msgspec.structs import replace as replaced  # noqa: PLC0415 - dataclasses has one, too

    return replaced(run, status=status, end_time=now, updated_at=now)


@asynccontextmanager
async def timed_gateway(*, doubles: bool = False, **settings: Any) -> AsyncIterator[TimedGateway]:
    """`doubles`: every timer comes twice."""
    clock = SetClock()
    config = NatsBackendConfig(timezone="UTC", **settings)
    async with open_memory_gateway_backend(config) as plain:
        clock.timers = MemoryTimers(clock, doubles=lambda: doubles)
        backend = replace(plain, shared_clock=clock, timers=clock.timers)  # type: ignore[arg-type]
        async with memory_gateway(backend, config) as client:
            yield TimedGateway(client, backend, clock)
