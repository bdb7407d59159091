"""Gateways as processes of their own, to be killed, frozen and started again."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2

from pyoco_server.config import NatsBackendConfig
from support.http_executions import Executions
from support.installation import environment
from support.nats_server import free_port
from support.programs import Program, Programs
from support.waiting import PATIENCE_SEC, until

ORCHESTRATES = r'"share.changed"'
ALONE = r'"share.changed".*"gateways":\s*1\b'
"""Log lines; the fields are in the order in which they are written."""


class GatewayProcess:
    def __init__(self, config: NatsBackendConfig, programs: Programs) -> None:
        self._config = config
        self._programs = programs
        self._stack = AsyncExitStack()
        self.port = free_port()
        self.http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE_SEC)
        self.executions = Executions(self.http)

    async def start(self) -> None:
        command = ("pyoco-server", "up", "--port", str(self.port), "--nats-url", self._config.nats_url)
        self.program: Program = self._stack.enter_context(
            self._programs.started(*command, **environment(self._config))
        )
        await until(self._is_ready)

    async def _is_ready(self) -> bool:
        try:
            return (await self.http.get("/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    async def until_it_orchestrates(self) -> None:
        await asyncio.to_thread(self.program.says, ORCHESTRATES)

    async def until_it_orchestrates_alone(self) -> None:
        """That is also what it did before others came, so this waits from now on."""
        await asyncio.to_thread(self.program.says, ALONE, len(self.program.output))

    async def kill(self) -> None:
        await asyncio.to_thread(self.program.ends_after, signal.SIGKILL)
        await self._stack.aclose()

    async def stop(self) -> None:
        await self._stack.aclose()
        await self.http.aclose()


@asynccontextmanager
async def gateways(
    config: NatsBackendConfig, programs: Programs, count: int = 1
) -> AsyncIterator[list[GatewayProcess]]:
    """The first of them orchestrates."""
    started: list[GatewayProcess] = []
    try:
        for _ in range(count):
            started.append(GatewayProcess(config, programs))
            await started[-1].start()
            if len(started) == 1:
                await started[0].until_it_orchestrates()
        yield started
    finally:
        for gateway in started:
            await gateway.stop()
