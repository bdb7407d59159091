"""Backends in memory: the behaviour of JetStream in one process, without durability."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.executions.codec import decode_record, encode_record
from pyoco_server.domain.executions.records import ExecutionRecord
from pyoco_server.domain.fleet import LeaseRecord, WorkerRecord
from pyoco_server.domain.runs.jobs import IdempotencyClaim
from pyoco_server.domain.runs.model import RunSnapshot, trim_snapshot
from pyoco_server.domain.schedules.model import Schedule, TickPage
from pyoco_server.errors import NatsUnavailable
from pyoco_server.read_model.executions import SqliteExecutionIndex
from pyoco_server.read_model.runs import SqliteRunIndex
from pyoco_server.testing.memory_queue import (
    MemoryDeadLetters,
    MemoryQueue,
    MemoryTimers,
    MemoryUndeliverable,
)
from pyoco_server.testing.memory_stores import (
    MemoryApiKeys,
    MemoryEvents,
    MemoryExecutionLog,
    MemoryGraphs,
    MemoryStore,
    MemoryTaskLogs,
    MemoryWheelHistory,
    MemoryWheels,
)
from pyoco_server.usecases.coordination import SharedClock

# The store's clock is that of this machine.


class MemoryTime:
    async def now(self) -> float:
        return time.time()


# No signals of foreign writes.


class MemorySignals:
    """No hints; callers have to poll."""

    async def on_foreign_write(
        self,
        run_id: str,  # noqa: ARG002
        callback: Callable[[], None],  # noqa: ARG002
    ) -> Callable[[], Awaitable[None]]:
        async def stop() -> None:
            pass

        return stop


# Storage check, which a test can make fail.


class MemoryStorage:
    def __init__(self) -> None:
        self.is_full = False

    async def check(self) -> None:
        if self.is_full:
            raise NatsUnavailable("nats unavailable: no space left")


@dataclass(frozen=True)
class MemoryBackend:
    runs: MemoryStore[RunSnapshot]
    workers: MemoryStore[WorkerRecord]
    queue: MemoryQueue
    sources: MemoryQueue
    api_keys: MemoryApiKeys = field(default_factory=MemoryApiKeys)
    dead_letters: MemoryDeadLetters = field(default_factory=MemoryDeadLetters)
    task_logs: MemoryTaskLogs = field(default_factory=MemoryTaskLogs)
    run_signals: MemorySignals = field(default_factory=MemorySignals)
    is_available: bool = True


@dataclass(frozen=True, kw_only=True)
class MemoryGatewayBackend(MemoryBackend):
    claims: MemoryStore[IdempotencyClaim]
    wheels: MemoryWheels
    wheel_history: MemoryWheelHistory = field(default_factory=MemoryWheelHistory)
    graphs: MemoryGraphs = field(default_factory=MemoryGraphs)
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    run_index: SqliteRunIndex
    execution_index: SqliteExecutionIndex
    events: MemoryEvents
    execution_log: MemoryExecutionLog = field(default_factory=MemoryExecutionLog)
    execution_cache: MemoryStore[ExecutionRecord] = field(
        default_factory=lambda: MemoryStore(encode_record, decode_record)
    )
    timers: MemoryTimers = field(default_factory=lambda: MemoryTimers(time.time))
    leases: MemoryStore[LeaseRecord] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_lease)
    )
    schedules: MemoryStore[Schedule] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_schedule)
    )
    tick_pages: MemoryStore[TickPage] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_tick_page)
    )
    shared_clock: SharedClock = field(default_factory=lambda: SharedClock(MemoryTime()))

    @property
    def schedule_feed(self) -> MemoryStore[Schedule]:
        return self.schedules

    @property
    def execution_feed(self) -> MemoryExecutionLog:
        return self.execution_log

    @property
    def run_feed(self) -> MemoryStore[RunSnapshot]:
        return self.runs

    @property
    def worker_feed(self) -> MemoryStore[WorkerRecord]:
        return self.workers

    @property
    def undeliverable(self) -> MemoryUndeliverable:
        return MemoryUndeliverable(self.queue)


def _parts(settings: NatsBackendConfig) -> dict[str, Any]:
    limit = settings.max_run_snapshot_bytes
    queue = MemoryQueue(settings)
    return {
        "runs": MemoryStore(lambda run: trim_snapshot(run, limit, codec.encode).data, codec.decode_run),
        "workers": MemoryStore(codec.encode, codec.decode_worker),
        "queue": queue,
        "sources": queue,
    }


@asynccontextmanager
async def open_memory_backend(config: NatsBackendConfig | None = None) -> AsyncIterator[MemoryBackend]:
    """The backend of a worker."""
    yield MemoryBackend(**_parts(config or NatsBackendConfig()))


@asynccontextmanager
async def open_memory_gateway_backend(
    config: NatsBackendConfig | None = None,
) -> AsyncIterator[MemoryGatewayBackend]:
    """The backend of a gateway: `create_app(open_backend=open_memory_gateway_backend)`."""
    settings = config or NatsBackendConfig()
    tenants = settings.http_auth_mode != "none"
    with (
        closing(SqliteRunIndex(None, tenants=tenants)) as runs,
        closing(SqliteExecutionIndex(tenants=tenants)) as executions,
    ):
        yield MemoryGatewayBackend(
            **_parts(settings),
            run_index=runs,
            execution_index=executions,
            claims=MemoryStore(codec.encode, codec.decode_claim),
            wheels=MemoryWheels(settings.wheel_object_store_bucket),
            events=MemoryEvents.new(settings),
        )
