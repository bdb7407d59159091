"""The gateway in this process: the real application with its real start and stop, without a socket."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
from fastapi import FastAPI

from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api import create_app
from pyoco_server.testing import MemoryGatewayBackend, open_memory_gateway_backend

OpenBackend = Callable[[], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client,
    ):
        yield client


@asynccontextmanager
async def gateway(
    config: NatsBackendConfig, open_backend: OpenBackend | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    async with running(create_app(config, open_backend=open_backend)) as client:
        yield client


@asynccontextmanager
async def memory_gateway(
    backend: MemoryGatewayBackend, config: NatsBackendConfig | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[MemoryGatewayBackend]:
        yield backend

    async with gateway(config or NatsBackendConfig(), opened) as client:
        yield client


@asynccontextmanager
async def new_memory_gateway() -> AsyncIterator[tuple[httpx2.AsyncClient, MemoryGatewayBackend]]:
    async with open_memory_gateway_backend() as backend, memory_gateway(backend) as client:
        yield client, backend
