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

ORCHESTRATES = "orchestrator.started"


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

    def has_orchestrated(self) -> bool:
        """Ever, since its start."""
        return ORCHESTRATES in self.program.output

    async def until_it_orchestrates(self) -> None:
        await asyncio.to_thread(self.program.says, ORCHESTRATES)

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
