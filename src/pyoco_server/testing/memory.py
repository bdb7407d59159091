"""Backends in memory: the same answers as JetStream's, in one process and without its durability."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import wire
from pyoco_server.domain.compaction import fit
from pyoco_server.domain.execution.codec import decode_record, encode_record
from pyoco_server.domain.execution.records import ExecutionRecord
from pyoco_server.domain.idempotency import Claim
from pyoco_server.domain.leases import LeaseRecord
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.domain.workers import WorkerRecord
from pyoco_server.read_model.sqlite_execution_index import SqliteExecutionIndex
from pyoco_server.read_model.sqlite_run_index import SqliteRunIndex
from pyoco_server.testing.events import MemoryEvents
from pyoco_server.testing.memory_api_keys import MemoryApiKeys
from pyoco_server.testing.memory_dead_letters import MemoryDeadLetters
from pyoco_server.testing.memory_executions import MemoryExecutionLog
from pyoco_server.testing.memory_graphs import MemoryGraphs
from pyoco_server.testing.memory_queue import MemoryQueue
from pyoco_server.testing.memory_signals import MemorySignals
from pyoco_server.testing.memory_storage import MemoryStorage
from pyoco_server.testing.memory_store import MemoryStore
from pyoco_server.testing.memory_task_logs import MemoryTaskLogs
from pyoco_server.testing.memory_time import MemoryTime
from pyoco_server.testing.memory_undeliverable import MemoryUndeliverable
from pyoco_server.testing.memory_wheels import MemoryWheelHistory, MemoryWheels
from pyoco_server.usecases.shared_clock import SharedClock


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
    claims: MemoryStore[Claim]
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
    leases: MemoryStore[LeaseRecord] = field(
        default_factory=lambda: MemoryStore(wire.encode, wire.decode_lease)
    )
    shared_clock: SharedClock = field(default_factory=lambda: SharedClock(MemoryTime()))

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
        "runs": MemoryStore(lambda run: fit(run, limit, wire.encode).data, wire.decode_run),
        "workers": MemoryStore(wire.encode, wire.decode_worker),
        "queue": queue,
        "sources": queue,
    }


@asynccontextmanager
async def open_memory_backend(config: NatsBackendConfig | None = None) -> AsyncIterator[MemoryBackend]:
    """What a worker needs."""
    yield MemoryBackend(**_parts(config or NatsBackendConfig()))


@asynccontextmanager
async def open_memory_gateway_backend(
    config: NatsBackendConfig | None = None,
) -> AsyncIterator[MemoryGatewayBackend]:
    """What a gateway needs: `create_app(open_backend=open_memory_gateway_backend)`."""
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
            claims=MemoryStore(wire.encode, wire.decode_claim),
            wheels=MemoryWheels(settings.wheel_object_store_bucket),
            events=MemoryEvents.new(settings),
        )
