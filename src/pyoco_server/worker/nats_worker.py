"""`PyocoNatsWorker`: a worker as a library, running flows in a thread of the caller's process."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from uuid_utils import uuid7

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.names import is_tag, is_worker_id
from pyoco_server.domain.wire import run_id_in
from pyoco_server.domain.workers import WorkerActivity, WorkerState
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports import Backend, JobSource
from pyoco_server.usecases.register_worker import RegisterWorker
from pyoco_server.wiring import new_thread_executor, open_backend
from pyoco_server.worker.pipeline import Pipeline
from pyoco_server.worker.presence import Presence

log = get_logger(__name__)


class PyocoNatsWorker:
    """Takes one job at a time. Use `connect`, then `run_once` in a loop (or `run`), then `close`."""

    def __init__(
        self,
        *,
        config: NatsBackendConfig,
        flow_resolver: Callable[[str], Any],
        worker_id: str,
        tags: Sequence[str],
    ) -> None:
        if not is_worker_id(worker_id):
            raise ValueError(f"worker_id {worker_id!r} must match [A-Za-z0-9_.-] and be at most 128 long")
        for tag in tags:
            if not is_tag(tag):
                raise ValueError(
                    f"tag {tag!r} must match [A-Za-z0-9_-]{{1,64}}: no dots, blanks or wildcards"
                )
        self.worker_id = worker_id
        self.instance_id = str(uuid7())
        self.tags = tuple(dict.fromkeys(tags))
        self._config = config
        self._executor = new_thread_executor(flow_resolver, config.allowed_modules)
        self._resources = AsyncExitStack()
        self._stop_requested = asyncio.Event()

    @classmethod
    async def connect(
        cls,
        *,
        config: NatsBackendConfig | None = None,
        flow_resolver: Callable[[str], Any],
        worker_id: str = "worker",
        tags: Sequence[str] | None = None,
    ) -> Self:
        """Connect, register and be ready for `run_once`. Raises NatsUnavailable when NATS is not there."""
        settings = config or NatsBackendConfig.from_env()
        worker = cls(
            config=settings,
            flow_resolver=flow_resolver,
            worker_id=worker_id,
            tags=tags or (settings.default_tag,),
        )
        try:
            await worker._start()
        except BaseException:
            await worker._resources.aclose()
            raise
        return worker

    async def _start(self) -> None:
        self._resources.callback(self._executor.close)
        backend = await self._resources.enter_async_context(
            open_backend(self._config, name=f"pyoco-worker {self.worker_id}")
        )
        self._source = await self._open_source(backend)
        self._presence = Presence(
            RegisterWorker(backend.workers, time.time),
            time.time,
            self._config.worker_heartbeat_interval_sec,
            WorkerActivity(
                worker_id=self.worker_id,
                instance_id=self.instance_id,
                tags=self.tags,
                state=WorkerState.IDLE,
            ),
        )
        self._pipeline = Pipeline(
            backend, self._executor, self._config, time.time, self.worker_id, self.instance_id
        )
        await self._presence.announce()
        self._present = asyncio.ensure_future(self._presence.run())
        log.info("worker ready", action="worker.ready", worker_id=self.worker_id, tags=self.tags)

    async def _open_source(self, backend: Backend) -> JobSource:
        source = await backend.sources.open(self.tags)
        self._resources.push_async_callback(source.close)
        return source

    async def run_once(self, timeout: float = 1.0) -> str | None:  # noqa: ASYNC109 - the contract's signature
        """Handle one job. Its run id, or None when none came within `timeout` (or it had no readable id)."""
        if self._present.done():
            self._present.result()
            raise RuntimeError("the worker's heartbeat has ended; this worker must not take jobs any more")
        delivery = await self._source.next(timeout)
        if delivery is None:
            return None
        self._presence.started(run_id_in(delivery.payload))
        handled = await self._pipeline.handle(delivery)
        self._presence.ended(handled.run_id, handled.status)
        return handled.run_id

    async def run(self, poll_timeout: float = 1.0) -> None:
        """Handle jobs until `stop` is called; the run that is going then is finished first."""
        while not self._stop_requested.is_set():
            await self.run_once(poll_timeout)

    def stop(self) -> None:
        self._stop_requested.set()

    async def close(self) -> None:
        """Give back what was not started, say goodbye, disconnect."""
        await self._presence.stopped("graceful_shutdown")
        await asyncio.wait({self._present})
        await self._resources.aclose()
        log.info("worker stopped", action="worker.stopped", worker_id=self.worker_id)
