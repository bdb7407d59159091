"""Directly over NATS, without a gateway: `PyocoNatsClient`, and what the admin command does."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import msgspec

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.values import MAX_PARAMS_BYTES, from_caller
from pyoco_server.errors import RunNotFound
from pyoco_server.running_server import settings_here
from pyoco_server.usecases.auth import IssueApiKey, IssuedApiKey, ListedApiKey, list_api_keys, revoke_api_key
from pyoco_server.usecases.events.transfer import Export, export_events
from pyoco_server.usecases.ports.runs import ApiKeyStore, Backend
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.wiring.backends import new_api_key, new_run_id, new_salt, open_backend
from pyoco_server.wiring.gateway_backend import open_events


class PyocoNatsClient:
    def __init__(
        self,
        backend: Backend,
        config: NatsBackendConfig,
        resources: AsyncExitStack,
        *,
        clock: Clock = time.time,
        new_id: Callable[[], str] = new_run_id,
    ) -> None:
        self._backend = backend
        self._config = config
        self._resources = resources
        self._submit = SubmitRun(backend.runs, backend.queue, clock, new_id)

    @classmethod
    async def connect(cls, config: NatsBackendConfig | None = None) -> Self:
        settings = config or settings_here()
        resources = AsyncExitStack()
        backend = await resources.enter_async_context(open_backend(settings, name="pyoco-nats-client"))
        return cls(backend, settings, resources)

    async def submit_run(
        self,
        flow_name: str,
        params: dict[str, Any] | None = None,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> str:
        """The id of the accepted run. Raises InvalidRequest for params that JSON cannot hold."""
        snapshot = await self._submit(
            Submission(
                flow_name=flow_name,
                params=from_caller(params or {}, "params", MAX_PARAMS_BYTES),
                tag=tag or self._config.default_tag,
                tags=tuple(tags) if tags is not None else None,
            )
        )
        return snapshot.run_id

    async def get_run(self, run_id: str) -> dict[str, Any]:
        stored = await self._backend.runs.get(run_id) if is_run_id(run_id) else None
        if stored is None:
            raise RunNotFound
        snapshot: dict[str, Any] = msgspec.to_builtins(stored.value)
        return snapshot

    async def close(self) -> None:
        await self._resources.aclose()


class AdminKeys:
    """API keys, as the admin command manages them."""

    def __init__(self, keys: ApiKeyStore, pepper: str, clock: Clock = time.time) -> None:
        self._keys = keys
        self._clock = clock
        self._issue = IssueApiKey(keys, clock, pepper)

    async def issue(self, tenant: str) -> IssuedApiKey:
        return await self._issue(tenant, new_api_key(), new_salt())

    async def list_keys(self) -> list[ListedApiKey]:
        return await list_api_keys(self._keys)

    async def revoke(self, key_id: str) -> ListedApiKey:
        return await revoke_api_key(self._keys, key_id, self._clock)


@asynccontextmanager
async def open_admin_keys(config: NatsBackendConfig) -> AsyncIterator[AdminKeys]:
    """Raises NatsUnavailable when NATS is not there."""
    async with open_backend(config, name="pyoco-server-admin") as backend:
        yield AdminKeys(backend.api_keys, config.auth_pepper)


async def read_export(config: NatsBackendConfig) -> Export:
    """What is remembered of workflow events. Raises NatsUnavailable when NATS is not there."""
    async with open_events(config, name="pyoco-server-admin") as events:
        return await export_events(events)
