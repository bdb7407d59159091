"""`PyocoNatsClient`: submit and read runs directly over NATS, without a gateway."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import msgspec

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.names import is_run_id
from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.values import MAX_PARAMS_BYTES, from_caller
from pyoco_server.errors import RunNotFound
from pyoco_server.running_server import settings_here
from pyoco_server.usecases.ports.runs import Backend
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.wiring import new_run_id, open_backend


class PyocoNatsClient:
    def __init__(self, backend: Backend, config: NatsBackendConfig, resources: AsyncExitStack) -> None:
        self._backend = backend
        self._config = config
        self._resources = resources
        self._submit = SubmitRun(backend.runs, backend.queue, time.time, new_run_id)

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
