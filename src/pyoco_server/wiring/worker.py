"""A worker, put together: what carries out its flows, their wheels, and the worker on top; NATS clients."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
from msgspec.structs import replace
from packaging.tags import sys_tags

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.audit_trail import AuditEntry, Origin
from pyoco_server.domain.auth import Grant, IssuedApiKey, ListedApiKey
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.large_values import INLINE_BYTES
from pyoco_server.domain.runs.jobs import Submission, with_references
from pyoco_server.domain.values import MAX_PARAMS_BYTES, from_caller
from pyoco_server.engine.executors.pool import ProcessExecutors, follow_flow_files, version_of
from pyoco_server.engine.executors.protocol import ExecutorSpec, Limits
from pyoco_server.engine.executors.thread import OnOutcome, ThreadExecutors
from pyoco_server.engine.resolve import resolver_of
from pyoco_server.engine.values import ValueRoom
from pyoco_server.errors import NatsUnavailable, RunNotFound
from pyoco_server.jetstream.events import JetStreamChangeLog
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.running_server import settings_here
from pyoco_server.sealing import Sealer
from pyoco_server.usecases.api_keys import IssueApiKey, ManageApiKeys, list_api_keys
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.events.transfer import Export, export_events
from pyoco_server.usecases.ports.gateway import ChangeLog
from pyoco_server.usecases.ports.runs import ApiKeyStore, Backend, WheelStore, WorkerBackend
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.usecases.reseal import Resealed, ResealSecrets
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.usecases.secrets.resolve import ReadValues, ResolveJob
from pyoco_server.usecases.wheels import SyncWheels
from pyoco_server.wiring.backends import (
    new_key_and_salt,
    new_run_id,
    open_backend,
    open_wheels,
    open_worker_backend,
)
from pyoco_server.wiring.gateway_backend import change_log, channel_store, open_events
from pyoco_server.worker.figures import Usage, own_usage, unknown_usage
from pyoco_server.worker.run_log import REFUSED_PATIENCE_SEC
from pyoco_server.worker.session import FlowExecutors
from pyoco_server.worker.values import values_directory
from pyoco_server.worker.wheels import CodeUsers, DirectoryInstaller, KeepWheels
from pyoco_server.worker.worker import Worker, check_names

__all__ = [
    "ExecutorSpec",
    "FlowProcesses",
    "Limits",
    "PyocoNatsWorker",
    "WorkerName",
    "new_thread_executors",
    "new_worker",
    "open_flow_processes",
    "open_process_executors",
    "open_thread_worker",
    "open_worker_connection",
    "own_usage",
    "resolver_of",
]


log = get_logger(__name__)


class WorkerName(NamedTuple):
    worker_id: str
    tags: tuple[str, ...]


def new_worker(  # noqa: PLR0913 - one argument per part it is put together from
    config: NatsBackendConfig,
    backend: WorkerBackend,
    executors: FlowExecutors,
    name: WorkerName,
    wheels: KeepWheels | None = None,
    *,
    clock: Clock = time.time,
    new_id: Callable[[], str] = new_run_id,
    log_patience_sec: float = REFUSED_PATIENCE_SEC,
    usage: Callable[[], Usage] = unknown_usage,
    values_dir: str = "",
) -> Worker:
    """Raises ValueError for a name that cannot be one."""
    return Worker(
        config,
        backend,
        executors,
        name.worker_id,
        name.tags,
        wheels,
        clock=clock,
        instance_id=new_id(),
        log_patience_sec=log_patience_sec,
        resolve=ResolveJob(ReadValues(backend, Sealer(config.secrets_keys))),
        usage=usage,
        values_dir=values_dir,
    )


def open_worker_connection(
    config: NatsBackendConfig, name: WorkerName
) -> AbstractAsyncContextManager[WorkerBackend]:
    """Raises NatsUnavailable when NATS is not there."""
    return open_worker_backend(config, name=f"pyoco-worker {name.worker_id}")


# In processes: the command.


class FlowProcesses(NamedTuple):
    executors: ProcessExecutors
    wheels: KeepWheels | None
    values_dir: str


@asynccontextmanager
async def open_flow_processes(
    config: NatsBackendConfig, name: WorkerName, flow_resolver: str, concurrency: int, limits: Limits
) -> AsyncIterator[FlowProcesses]:
    """Wheels are synced before anything is loaded: the flows themselves may come in one.

    Raises InvalidCliInput when the flows cannot be loaded.
    """
    spec = ExecutorSpec(
        flow_resolver=flow_resolver,
        allowed_modules=config.allowed_modules,
        allowed_env=config.allowed_env,
    )
    async with AsyncExitStack() as stack:
        spec = replace(spec, room=value_room(config, stack.enter_context(values_directory())))
        wheels = await _synced_wheels(stack, config, name, spec)
        opening = open_process_executors(wheels.spec if wheels else spec, concurrency, limits)
        executors = await stack.enter_async_context(opening)
        if wheels is not None:
            wheels.executors = executors
        yield FlowProcesses(executors, wheels, spec.room.directory)


@asynccontextmanager
async def open_process_executors(
    spec: ExecutorSpec, concurrency: int, limits: Limits
) -> AsyncIterator[ProcessExecutors]:
    """The flows of `spec` may be a directory, whose files are loaded again when they change.

    Raises InvalidCliInput when the flows cannot be loaded.
    """
    directory = Path(spec.flow_resolver)
    version = version_of(directory)
    spec = replace(spec, version=version)
    executors = ProcessExecutors(spec, concurrency, limits)
    await executors.open()
    following = asyncio.ensure_future(follow_flow_files(directory, executors)) if version else None
    try:
        yield executors
    finally:
        if following is not None:
            following.cancel()
        await executors.close()


# In a thread of the caller's process: the library.


def new_thread_executors(
    flow_resolver: Callable[[str], Any],
    config: NatsBackendConfig,
    on_outcome: OnOutcome | None = None,
    *,
    values_dir: str = "",
) -> ThreadExecutors:
    """Without `values_dir`, what is too large for a snapshot is not kept."""
    room = value_room(config, values_dir)
    return ThreadExecutors(flow_resolver, config.allowed_modules, config.allowed_env, room, on_outcome)


def value_room(config: NatsBackendConfig, directory: str) -> ValueRoom:
    return ValueRoom(
        snapshot_bytes=config.max_run_snapshot_bytes,
        inline_bytes=INLINE_BYTES,
        value_bytes=config.value_max_bytes,
        directory=directory,
    )


@asynccontextmanager
async def open_thread_worker(
    config: NatsBackendConfig, name: WorkerName, flow_resolver: Callable[[str], Any], **given: Any
) -> AsyncIterator[Worker]:
    """Connected, not registered yet. `given`: see `new_worker`. Raises NatsUnavailable."""
    check_names(*name)
    async with AsyncExitStack() as stack:
        values_dir = stack.enter_context(values_directory())
        executors = new_thread_executors(flow_resolver, config, values_dir=values_dir)
        stack.push_async_callback(executors.close)
        backend = await stack.enter_async_context(open_worker_connection(config, name))
        spec = ExecutorSpec(flow_resolver="", allowed_modules=config.allowed_modules)
        wheels = await _synced_wheels(stack, config, name, spec, executors)
        yield new_worker(config, backend, executors, name, wheels, values_dir=values_dir, **given)


class PyocoNatsWorker:
    """A worker as a library: it takes one job at a time.

    Use `connect`, then `run_once` in a loop (or `run`), then `close`.
    """

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
        name = WorkerName(worker_id, tuple(tags or (settings.default_tag,)))
        async with AsyncExitStack() as stack:
            worker = await stack.enter_async_context(open_thread_worker(settings, name, flow_resolver))
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
        """Give back what was not started, sign off, disconnect."""
        try:
            await self._worker.close()
        finally:
            await self._resources.aclose()


async def _synced_wheels(
    stack: AsyncExitStack,
    config: NatsBackendConfig,
    name: WorkerName,
    spec: ExecutorSpec,
    executors: CodeUsers | None = None,
) -> KeepWheels | None:
    if not config.wheel_sync_enabled:
        return None
    wheels = await stack.enter_async_context(open_wheels(config))
    keeper = _new_keep_wheels(wheels, config, name, spec)
    keeper.executors = executors
    await keeper.sync()
    return keeper


def _new_keep_wheels(
    wheels: WheelStore, config: NatsBackendConfig, name: WorkerName, spec: ExecutorSpec
) -> KeepWheels:
    directory = Path(config.wheel_sync_dir) / name.worker_id
    installer = DirectoryInstaller(directory, config.wheel_install_timeout_sec)
    sync = SyncWheels(wheels, installer, name.tags, list(sys_tags()), time.time)
    return KeepWheels(sync, installer, spec, config.wheel_sync_interval_sec)


# Directly over NATS, without a gateway: the client, and what the admin command does.


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
            with_references(
                Submission(
                    flow_name=flow_name,
                    params=from_caller(params or {}, "params", MAX_PARAMS_BYTES),
                    tag=tag or self._config.default_tag,
                    tags=tuple(tags) if tags is not None else None,
                )
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


COMMAND = Caller(origin=Origin(user_agent="pyoco-server-admin"))


class RecordIfAllowed:
    """Its NATS user may lack the right to write the audit trail, and a key is shown only once."""

    def __init__(self, entries: JetStreamChangeLog) -> None:
        self._entries = entries
        self.before = entries.before

    async def append(self, entry: AuditEntry) -> None:
        with best_effort(log, "api_key.unrecorded", NatsUnavailable, key_id=entry.target.id):
            await self._entries.append(entry)


class AdminKeys:
    """API keys, as the admin command manages them."""

    def __init__(self, keys: ApiKeyStore, entries: ChangeLog, pepper: str, clock: Clock = time.time) -> None:
        self._keys = keys
        issue = IssueApiKey(keys, clock, pepper)
        trail = AuditTrail(entries, clock, new_run_id)
        self._manage = ManageApiKeys(keys, clock, issue, trail, new_key_and_salt)

    async def issue(self, tenant: str, grant: Grant) -> IssuedApiKey:
        return await self._manage.create(tenant, grant, COMMAND)

    async def list_keys(self) -> list[ListedApiKey]:
        return await list_api_keys(self._keys)

    async def revoke(self, key_id: str) -> ListedApiKey:
        return await self._manage.revoke(key_id, COMMAND)


@asynccontextmanager
async def open_admin_keys(config: NatsBackendConfig) -> AsyncIterator[AdminKeys]:
    """Raises NatsUnavailable when NATS is not there."""
    async with open_backend(config, name="pyoco-server-admin") as backend:
        trail = RecordIfAllowed(change_log(backend.connection, config))
        yield AdminKeys(backend.api_keys, trail, config.auth_pepper)


async def reseal_secrets(config: NatsBackendConfig) -> Resealed:
    """Raises SecretsKeyMissing, or NatsUnavailable when NATS is not there."""
    async with open_backend(config, name="pyoco-server-admin") as backend:
        trail = RecordIfAllowed(change_log(backend.connection, config))
        entries = AuditTrail(trail, time.time, new_run_id)
        channels = channel_store(backend.connection, config)
        seal = Sealer(config.secrets_keys)
        return await ResealSecrets(backend.secrets, channels, seal, entries)(COMMAND)


async def read_export(config: NatsBackendConfig) -> Export:
    """What is remembered of workflow events. Raises NatsUnavailable when NATS is not there."""
    async with open_events(config, name="pyoco-server-admin") as events:
        return await export_events(events)
