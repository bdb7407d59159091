"""The gateway in this process: the real application with its real start and stop, without a socket."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import httpx2
from fastapi import FastAPI

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.auth import ApiKey, Grant, new_record, record_key
from pyoco_server.http_api import create_app
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.read_model.executions import SqliteExecutionIndex
from pyoco_server.read_model.runs import SqliteRunIndex
from pyoco_server.usecases.ports.runs import ApiKeyStore
from support.builders import NOW


@cache
def documented_paths(**settings: Any) -> dict[str, dict[str, Any]]:
    """The operations of the gateway's OpenAPI document, by path and method: a third of a second, once."""
    app = create_app(NatsBackendConfig(**settings), open_backend=open_memory_gateway_backend)
    found: dict[str, dict[str, Any]] = app.openapi()["paths"]
    return found


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
    config: NatsBackendConfig, open_backend: OpenBackend | None = None, **given: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    async with running(create_app(config, open_backend=open_backend, **given)) as client:
        yield client


@asynccontextmanager
async def memory_gateway(
    backend: MemoryGatewayBackend, config: NatsBackendConfig | None = None, **given: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[MemoryGatewayBackend]:
        yield backend

    async with gateway(config or NatsBackendConfig(), opened, **given) as client:
        yield client


@asynccontextmanager
async def new_memory_gateway(
    **given: Any,
) -> AsyncIterator[tuple[httpx2.AsyncClient, MemoryGatewayBackend]]:
    async with open_memory_gateway_backend() as backend, memory_gateway(backend, **given) as client:
        yield client, backend


@dataclass(frozen=True)
class RunningGateway:
    app: FastAPI
    client: httpx2.AsyncClient
    backend: MemoryGatewayBackend


@asynccontextmanager
async def memory_app(*, given: Any = None, **settings: Any) -> AsyncIterator[RunningGateway]:
    """A gateway of its own, with its application for what a client cannot do (reading a live stream).

    `given`: a clock, ids, tuning; see `create_app`.
    """
    config = NatsBackendConfig(**settings)
    async with (
        open_memory_gateway_backend(config) as backend,
        on_backend(backend, config, **given or {}) as running_gateway,
    ):
        yield running_gateway


@asynccontextmanager
async def on_backend(
    backend: MemoryGatewayBackend, config: NatsBackendConfig | None = None, **given: Any
) -> AsyncIterator[RunningGateway]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[MemoryGatewayBackend]:
        yield backend

    app = create_app(config or NatsBackendConfig(), open_backend=opened, **given)
    async with running(app) as client:
        yield RunningGateway(app, client, backend)


@asynccontextmanager
async def another_gateway(
    first: RunningGateway, config: NatsBackendConfig | None = None
) -> AsyncIterator[RunningGateway]:
    """Beside the first, on the same store, with a picture of its own."""
    async with own_picture(first.backend, config) as backend, on_backend(backend, config) as second:
        yield second


@asynccontextmanager
async def own_picture(
    backend: MemoryGatewayBackend, config: NatsBackendConfig | None = None
) -> AsyncIterator[MemoryGatewayBackend]:
    """The same store, as another process sees it."""
    tenants = (config or NatsBackendConfig()).http_auth_mode != "none"
    runs, executions = SqliteRunIndex(None, tenants=tenants), SqliteExecutionIndex(None, tenants=tenants)
    yield replace(backend, run_index=runs, execution_index=executions)
    runs.close()
    executions.close()


async def new_key(keys: ApiKeyStore, tenant_id: str, key_id: str, *scopes: str) -> dict[str, str]:
    """The header of a key of a tenant. Without `scopes`: with all but admin."""
    key, grant = ApiKey(key_id, "s" * 43), Grant(scopes=scopes) if scopes else None
    record = new_record(key_id, tenant_id, key.secret, b"salt" * 4, "", NOW, grant=grant)
    await keys.create(record_key(key_id), record)
    return {"X-API-Key": key.text}
