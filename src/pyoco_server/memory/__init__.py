"""All ports in memory, for tests without a server: the behaviour of JetStream, without durability.

The contract suite checks them against JetStream.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.alerts.deliveries import Delivery, decode_delivery
from pyoco_server.domain.alerts.model import AlertRecord, decode_alert_record
from pyoco_server.domain.bulk import BulkChunk, BulkRecord
from pyoco_server.domain.dead_letters import LetterMark
from pyoco_server.domain.executions.codec import decode_record, encode_record
from pyoco_server.domain.executions.records import ExecutionRecord
from pyoco_server.domain.fleet import LeaseRecord, WorkerRecord
from pyoco_server.domain.flows import FlowSettings
from pyoco_server.domain.limits.holders import Holders, decode_holders
from pyoco_server.domain.limits.model import LimitRecord, decode_limit
from pyoco_server.domain.queues import Lane, Pause, QueueRecord
from pyoco_server.domain.runs.claims import IdempotencyClaim
from pyoco_server.domain.runs.model import FlowFile, RunSnapshot
from pyoco_server.domain.runs.trimming import trim_snapshot
from pyoco_server.domain.schedules.model import Schedule, TickPage
from pyoco_server.domain.secrets.model import SecretRecord, VariableRecord
from pyoco_server.domain.shares import Roster
from pyoco_server.domain.stats.records import CountPosition, RunEnd, decode_count_position, decode_run_end
from pyoco_server.errors import NatsUnavailable
from pyoco_server.memory.child_runs import MemoryChildRuns
from pyoco_server.memory.dead_letters import MemoryDeadLetters, MemoryUndeliverable
from pyoco_server.memory.events import MemoryEvents
from pyoco_server.memory.queue import MemoryQueue
from pyoco_server.memory.stores import (
    MemoryApiKeys,
    MemoryChangeLog,
    MemoryExecutionLog,
    MemoryGraphs,
    MemoryListedStore,
    MemoryStats,
    MemoryStore,
    MemoryTaskLogs,
    MemoryView,
    MemoryWheelHistory,
    MemoryWheels,
)
from pyoco_server.memory.values import MemoryValues
from pyoco_server.read_model.executions import SqliteExecutionIndex
from pyoco_server.read_model.runs import SqliteRunIndex
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.coordination import SharedClock
from pyoco_server.usecases.ports.alerts import NoticedState, decode_noticed_state
from pyoco_server.usecases.ports.stores import Clock

# The store's clock is that of this machine, or of a test.


class MemoryTime:
    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock

    async def now(self) -> float:
        return self._clock()


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
        self.sizes: dict[str, int] = {}

    async def check(self) -> None:
        if self.is_full:
            raise NatsUnavailable("nats unavailable: no space left")


# Timers


class MemoryTimer:
    def __init__(self, timers: "MemoryTimers", number: int, kind: str, key: str, payload: bytes) -> None:
        self._timers = timers
        self.id = str(number)
        self.kind = kind
        self.key = key
        self.payload = payload

    async def settle(self) -> None:
        self._timers.settle(self)


class MemoryTimers:
    """Sends a timer again until it is settled."""

    REPEAT_SEC = 4.0

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        late_sec: Callable[[], float] = lambda: 0.0,
        doubles: Callable[[], bool] = lambda: False,
    ) -> None:
        """`late_sec` and `doubles`: faults of the next timer."""
        self._clock = clock
        self._late_sec = late_sec
        self._doubles = doubles
        self._pending: dict[tuple[str, str], tuple[float, bytes]] = {}
        self._due: dict[MemoryTimer, float] = {}
        """When each timer is sent next."""
        self._fired = 0
        self._changed = asyncio.Event()

    async def set(self, kind: str, key: str, at: float, payload: bytes = b"") -> None:
        self._pending[kind, key] = (at + self._late_sec(), payload)
        self._changed.set()

    async def clear(self, kind: str, key: str) -> None:
        self._pending.pop((kind, key), None)

    async def waiting(self) -> int:
        """Timers that are pending, or fired and not settled."""
        return len(self._pending) + len(self._due)

    def wake(self) -> None:
        """The clock was set: check again."""
        self._changed.set()

    async def follow(self, kind: str) -> AsyncGenerator[MemoryTimer, None]:
        while True:
            self._fire()
            now = self._clock()
            timer = next((one for one, at in self._due.items() if one.kind == kind and at <= now), None)
            if timer is None:
                await self._change(kind)
            else:
                self._due[timer] = now + self.REPEAT_SEC
                yield timer

    async def _change(self, kind: str) -> None:
        """Until a timer of the kind may be due; those of others may wait for a follower."""
        self._changed.clear()
        times = [at for (of, _), (at, _) in self._pending.items() if of == kind]
        times += [at for timer, at in self._due.items() if timer.kind == kind]
        if times:
            await wait_at_most(self._changed, max(0.001, min(times) - self._clock()))
        else:
            await self._changed.wait()

    def _fire(self) -> None:
        now = self._clock()
        for (kind, key), (_, payload) in [one for one in self._pending.items() if one[1][0] <= now]:
            del self._pending[kind, key]
            for _ in range(2 if self._doubles() else 1):
                self._fired += 1
                self._due[MemoryTimer(self, self._fired, kind, key, payload)] = now
            self._changed.set()

    def settle(self, timer: MemoryTimer) -> None:
        self._due.pop(timer, None)


# Lanes


class MemoryLanes:
    def __init__(self, queue: MemoryQueue, clock: Callable[[], float] = time.time) -> None:
        self._queue = queue
        self._clock = clock

    def require_pause(self) -> None:
        """Always supported."""

    async def open(self, lane: Lane, pause: Pause | None) -> None:
        if lane.name and lane not in self._queue.lanes:
            self._queue.lanes.add(lane)
            if pause is not None:
                await self.pause(lane, pause)
            self._queue.wake()

    async def pause(self, lane: Lane, pause: Pause) -> None:
        await self.open(lane, None)
        left = float("inf") if pause.until is None else pause.until - self._clock()
        self._queue.pauses[self._subject(lane)] = asyncio.get_running_loop().time() + left

    async def resume(self, lane: Lane) -> None:
        self._queue.pauses.pop(self._subject(lane), None)
        self._queue.wake()

    async def make_room(self, lane: Lane, deliveries: int) -> None:
        """Without a limit."""

    async def merge(self, lane: Lane) -> int:
        moved = 0
        while (taken := self._queue.take([self._subject(lane)])) is not None:
            await self._queue.put(self._subject(Lane(lane.tag)), taken.payload, taken.revision)
            await taken.ack()
            moved += 1
        return moved

    def _subject(self, lane: Lane) -> str:
        return self._queue.subjects_of([lane.tag])[lane]


# Alerts: their own stores, and the feeds of others


@dataclass(frozen=True)
class MemoryAlerts:
    runs: MemoryStore[RunSnapshot]
    executions: MemoryExecutionLog
    schedules: MemoryStore[Schedule]
    letters: MemoryDeadLetters
    definitions: MemoryStore[AlertRecord]
    deliveries: MemoryStore[Delivery]
    state: MemoryStore[NoticedState]

    @property
    def definition_feed(self) -> MemoryStore[AlertRecord]:
        return self.definitions

    @property
    def delivery_feed(self) -> MemoryStore[Delivery]:
        return self.deliveries


def alert_stores() -> dict[str, Any]:
    return {
        "definitions": MemoryStore(codec.encode, decode_alert_record),
        "deliveries": MemoryStore(codec.encode, decode_delivery),
        "state": MemoryStore(codec.encode, decode_noticed_state),
    }


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
    secrets: MemoryListedStore[SecretRecord] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_secret)
    )
    variables: MemoryListedStore[VariableRecord] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_variable)
    )
    values: MemoryValues = field(default_factory=MemoryValues)
    child_runs: MemoryChildRuns = field(default_factory=MemoryChildRuns)
    is_available: bool = True


@dataclass(frozen=True, kw_only=True)
class MemoryGatewayBackend(MemoryBackend):
    claims: MemoryStore[IdempotencyClaim]
    letter_marks: MemoryStore[LetterMark] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_letter_mark)
    )
    flow_files: MemoryListedStore[FlowFile] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_flow_file, codec.decode_listed_flow_file)
    )
    flows: MemoryStore[FlowSettings] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_flow_settings)
    )
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
    timers: MemoryTimers = field(default_factory=MemoryTimers)
    leases: MemoryStore[LeaseRecord] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_lease)
    )
    rosters: MemoryStore[Roster] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_roster)
    )
    schedules: MemoryStore[Schedule] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_schedule)
    )
    tick_pages: MemoryStore[TickPage] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_tick_page)
    )
    change_log: MemoryChangeLog = field(default_factory=MemoryChangeLog)
    bulk_operations: MemoryStore[BulkRecord] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_bulk)
    )
    bulk_chunks: MemoryStore[BulkChunk] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_bulk_chunk)
    )
    stats_records: MemoryStats = field(default_factory=MemoryStats)
    count_positions: MemoryStore[CountPosition] = field(
        default_factory=lambda: MemoryStore(codec.encode, decode_count_position)
    )
    limits: MemoryStore[LimitRecord] = field(default_factory=lambda: MemoryStore(codec.encode, decode_limit))
    limit_holders: MemoryStore[Holders] = field(
        default_factory=lambda: MemoryStore(codec.encode, decode_holders)
    )
    alert_stores: dict[str, Any] = field(default_factory=alert_stores)
    shared_clock: SharedClock = field(default_factory=lambda: SharedClock(MemoryTime()))

    queues: MemoryStore[QueueRecord] = field(
        default_factory=lambda: MemoryStore(codec.encode, codec.decode_queue)
    )

    @property
    def alerts(self) -> MemoryAlerts:
        return MemoryAlerts(
            self.runs, self.execution_log, self.schedules, self.dead_letters, **self.alert_stores
        )

    @property
    def queue_feed(self) -> MemoryStore[QueueRecord]:
        return self.queues

    @property
    def lanes(self) -> MemoryLanes:
        return MemoryLanes(self.queue, self.shared_clock)

    @property
    def flow_feed(self) -> MemoryStore[FlowSettings]:
        return self.flows

    @property
    def schedule_feed(self) -> MemoryStore[Schedule]:
        return self.schedules

    @property
    def bulk_feed(self) -> MemoryStore[BulkRecord]:
        return self.bulk_operations

    @property
    def limit_feed(self) -> MemoryStore[LimitRecord]:
        return self.limits

    @property
    def limit_holder_feed(self) -> MemoryStore[Holders]:
        return self.limit_holders

    @property
    def execution_feed(self) -> MemoryExecutionLog:
        return self.execution_log

    @property
    def run_feed(self) -> MemoryStore[RunSnapshot]:
        return self.runs

    @property
    def run_end_feed(self) -> MemoryView[RunEnd]:
        return MemoryView(self.runs, decode_run_end)

    @property
    def worker_feed(self) -> MemoryStore[WorkerRecord]:
        return self.workers

    @property
    def undeliverable(self) -> MemoryUndeliverable:
        return MemoryUndeliverable(self.queue)


def _parts(settings: NatsBackendConfig, clock: Clock = time.time) -> dict[str, Any]:
    limit = settings.max_run_snapshot_bytes
    queue = MemoryQueue(settings, clock=clock)
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
    *,
    clock: Clock = time.time,
    monotonic: Clock = time.monotonic,
) -> AsyncIterator[MemoryGatewayBackend]:
    """The backend of a gateway: `create_app(open_backend=open_memory_gateway_backend)`."""
    settings = config or NatsBackendConfig()
    tenants = settings.http_auth_mode != "none"
    with (
        closing(SqliteRunIndex(None, tenants=tenants)) as runs,
        closing(SqliteExecutionIndex(None, tenants=tenants)) as executions,
    ):
        yield MemoryGatewayBackend(
            **_parts(settings, clock),
            timers=MemoryTimers(clock),
            run_index=runs,
            execution_index=executions,
            claims=MemoryStore(codec.encode, codec.decode_claim),
            values=MemoryValues(clock),
            wheels=MemoryWheels(settings.wheel_object_store_bucket, clock),
            events=MemoryEvents.new(settings),
            shared_clock=SharedClock(MemoryTime(clock), wall=clock, monotonic=monotonic),
        )
