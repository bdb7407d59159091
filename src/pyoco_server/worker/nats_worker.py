"""`PyocoNatsWorker`: a worker as a library, running flows in a thread of the caller's process."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from pyoco_server.config import NatsBackendConfig
from pyoco_server.running_server import settings_here
from pyoco_server.wiring import ExecutorSpec, new_thread_executors, open_wheels, open_worker_backend
from pyoco_server.worker.wheels import CodeUsers, KeepWheels, new_keep_wheels
from pyoco_server.worker.worker import Worker, check_names


class PyocoNatsWorker:
    """Takes one job at a time. Use `connect`, then `run_once` in a loop (or `run`), then `close`."""

    def __init__(self, worker: Worker, resources: AsyncExitStack) -> None:
        self._worker = worker
        self._resources = resources

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
        settings = config or settings_here()
        wanted_tags = tuple(tags or (settings.default_tag,))
        check_names(worker_id, wanted_tags)
        async with AsyncExitStack() as stack:
            executors = new_thread_executors(flow_resolver, settings)
            stack.push_async_callback(executors.close)
            backend = await stack.enter_async_context(
                open_worker_backend(settings, name=f"pyoco-worker {worker_id}")
            )
            wheels = await _synced(stack, settings, executors, worker_id, wanted_tags)
            worker = Worker(settings, backend, executors, worker_id, wanted_tags, wheels)
            await worker.open()
            return cls(worker, stack.pop_all())
        raise AssertionError("unreachable")

    @property
    def worker_id(self) -> str:
        return self._worker.worker_id

    @property
    def instance_id(self) -> str:
        return self._worker.instance_id

    @property
    def tags(self) -> tuple[str, ...]:
        return self._worker.tags

    async def run_once(self, timeout: float = 1.0) -> str | None:  # noqa: ASYNC109 - the contract's signature
        """Handle one job. Its run id, or None when none came within `timeout` (or it had no readable id).

        With PYOCO_WHEEL_SYNC_ENABLED=1, wheels are synced before it, when there is something to change.
        """
        handled = await self._worker.handle_one(timeout)
        return None if handled is None else handled.run_id

    async def run(self) -> None:
        """Handle jobs until `stop` is called; the run that is going then is finished first."""
        await self._worker.run()
        await self._worker.drain(patience=float("inf"))

    def stop(self) -> None:
        self._worker.stop()

    async def close(self) -> None:
        """Give back what was not started, say goodbye, disconnect."""
        try:
            await self._worker.close()
        finally:
            await self._resources.aclose()


async def _synced(
    stack: AsyncExitStack,
    config: NatsBackendConfig,
    executors: CodeUsers,
    worker_id: str,
    tags: Sequence[str],
) -> KeepWheels | None:
    """Before the first job: flows may come in a wheel."""
    if not config.wheel_sync_enabled:
        return None
    wheels = await stack.enter_async_context(open_wheels(config))
    spec = ExecutorSpec(flow_resolver="", allowed_modules=config.allowed_modules)
    keeper = new_keep_wheels(wheels, config, worker_id, tags, spec)
    keeper.executors = executors
    await keeper.sync()
    return keeper
