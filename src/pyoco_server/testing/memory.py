"""The ports in memory: the same answers as JetStream's, in one process and without its durability."""

import asyncio
import hashlib
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import wire
from pyoco_server.domain.api_keys import ApiKeyRecord, record_key
from pyoco_server.domain.compaction import fit
from pyoco_server.domain.dispositions import DeadLetter
from pyoco_server.domain.execution.codec import decode_record, encode_record
from pyoco_server.domain.execution.records import ExecutionRecord
from pyoco_server.domain.idempotency import Claim
from pyoco_server.domain.jobs import Job
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.domain.task_logs import LogLine
from pyoco_server.domain.wheels import Wheel, WheelEvent
from pyoco_server.domain.workers import WorkerRecord
from pyoco_server.read_model.sqlite_execution_index import SqliteExecutionIndex
from pyoco_server.read_model.sqlite_run_index import SqliteRunIndex
from pyoco_server.testing.events import MemoryEvents
from pyoco_server.testing.memory_executions import MemoryExecutionLog
from pyoco_server.testing.memory_graphs import MemoryGraphs
from pyoco_server.testing.memory_store import MemoryStore
from pyoco_server.usecases.lease import LeaseRecord, decode_lease
from pyoco_server.usecases.ports import QueuedMessage, Revision
from pyoco_server.usecases.shared_clock import SharedClock


class MemoryApiKeys(MemoryStore[ApiKeyRecord]):
    def __init__(self) -> None:
        super().__init__(wire.encode, wire.decode_api_key)

    async def list_keys(self) -> list[ApiKeyRecord]:
        by_change = sorted(self._values.values(), key=lambda stored: stored[1])
        return [self._decode(data) for data, _ in by_change]

    @asynccontextmanager
    async def follow_keys(self) -> AsyncIterator["MemoryApiKeyFeed"]:
        yield MemoryApiKeyFeed(self)

    def now(self, key_id: str) -> ApiKeyRecord | None:
        found = self._values.get(record_key(key_id))
        return None if found is None else self._decode(found[0])


class MemoryApiKeyFeed:
    """Never behind. A test that needs a feed which fell silent says so with `is_current`."""

    def __init__(self, keys: MemoryApiKeys) -> None:
        self._keys = keys
        self.is_current = True

    def known(self, key_id: str) -> ApiKeyRecord | None:
        return self._keys.now(key_id)


@dataclass(eq=False)
class _Message:
    payload: bytes
    subject: str
    revision: Revision | None
    num_delivered: int = 0
    redeliver_at: float | None = None
    """When a delivered message comes back; None: it waits in the queue."""


class MemoryDelivery:
    def __init__(self, queue: "MemoryQueue", message: _Message) -> None:
        self._queue = queue
        self._message = message
        self.num_delivered = message.num_delivered

    @property
    def payload(self) -> bytes:
        return self._message.payload

    @property
    def subject(self) -> str:
        return self._message.subject

    @property
    def revision(self) -> Revision | None:
        return self._message.revision

    def job(self) -> Job:
        return wire.decode_job(self.payload)

    async def ack(self) -> None:
        self._queue.forget(self._message)

    async def nak(self, delay: float) -> None:
        self._queue.postpone(self._message, delay)

    async def term(self) -> None:
        self._queue.forget(self._message)

    async def in_progress(self) -> None:
        self._queue.postpone(self._message, self._queue.ack_wait)


class MemoryQueue:
    """A work queue: a message is held by one taker at a time and comes back if it is not acknowledged."""

    def __init__(self, config: NatsBackendConfig) -> None:
        self.ack_wait = config.consumer_ack_wait_sec
        self._max_deliver = config.consumer_max_deliver
        self._prefix = config.work_subject_prefix
        self._messages: deque[_Message] = deque()
        self._seen: set[str] = set()

    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        known_as = message_id or job.run_id
        is_new = known_as not in self._seen
        if is_new:
            self._seen.add(known_as)
            await self.put(f"{self._prefix}.{job.tag}", wire.encode(job), revision)

        return is_new

    async def put(self, subject: str, payload: bytes, revision: Revision | None = None) -> None:
        """A message as it is, readable or not."""
        self._messages.append(_Message(payload, subject, revision))

    async def run_ids(self) -> set[str]:
        found = {wire.run_id_in(message.payload) for message in self._messages}
        return {run_id for run_id in found if run_id is not None}

    def forget(self, message: _Message) -> None:
        if message in self._messages:
            self._messages.remove(message)

    def postpone(self, message: _Message, seconds: float) -> None:
        message.redeliver_at = _now() + seconds

    def take(self, subjects: Sequence[str]) -> MemoryDelivery | None:
        for message in self._messages:
            due = message.redeliver_at is None or message.redeliver_at <= _now()
            if due and message.subject in subjects and message.num_delivered < self._max_deliver:
                message.num_delivered += 1
                message.redeliver_at = _now() + self.ack_wait
                return MemoryDelivery(self, message)
        return None

    def take_undeliverable(self) -> _Message | None:
        """A message whose last delivery has come to nothing."""
        for message in self._messages:
            is_due = message.redeliver_at is not None and message.redeliver_at <= _now()
            if is_due and message.num_delivered >= self._max_deliver:
                message.redeliver_at = _now() + self.ack_wait
                return message
        return None

    def holds(self, message: _Message) -> bool:
        return message in self._messages

    async def open(self, tags: Sequence[str]) -> "MemoryJobSource":
        return MemoryJobSource(self, [f"{self._prefix}.{tag}" for tag in tags])


class MemoryJobSource:
    _LOOK_SEC = 0.01
    """How often a waiting taker looks whether a delay has passed."""

    def __init__(self, queue: MemoryQueue, subjects: Sequence[str]) -> None:
        self._queue = queue
        self._subjects = subjects
        self._is_interrupted = False

    async def next(self, timeout: float, wanted: int = 1) -> MemoryDelivery | None:  # noqa: ASYNC109, ARG002
        deadline = _now() + timeout
        self._is_interrupted = False
        while (  # noqa: ASYNC110 - delays pass without an event
            taken := self._queue.take(self._subjects)
        ) is None and not self._is_over(deadline):
            await asyncio.sleep(min(self._LOOK_SEC, max(0.0, deadline - _now())))
        return taken

    def _is_over(self, deadline: float) -> bool:
        return self._is_interrupted or _now() >= deadline

    def interrupt(self) -> None:
        self._is_interrupted = True

    async def close(self) -> None:
        pass


class MemoryUndeliverableJob:
    def __init__(self, queue: MemoryQueue, message: _Message) -> None:
        self._queue = queue
        self._message = message
        self.deliveries = message.num_delivered

    async def read(self) -> QueuedMessage | None:
        if not self._queue.holds(self._message):
            return None
        return QueuedMessage(self._message.payload, self._message.subject)

    async def remove(self) -> None:
        self._queue.forget(self._message)

    async def settle(self) -> None:
        self._message.redeliver_at = None


class MemoryUndeliverable:
    _LOOK_SEC = 0.02

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def follow(self) -> AsyncIterator[MemoryUndeliverableJob]:
        while True:
            message = self._queue.take_undeliverable()
            if message is None:
                await asyncio.sleep(self._LOOK_SEC)
            else:
                yield MemoryUndeliverableJob(self._queue, message)


class MemoryDeadLetters:
    def __init__(self) -> None:
        self.letters: list[tuple[str, DeadLetter]] = []

    async def publish(self, letter: DeadLetter, tag: str) -> None:
        self.letters.append((tag, letter))

    async def count(self) -> int:
        return len(self.letters)


class MemoryTaskLogs:
    def __init__(self) -> None:
        self._lines: dict[str, list[LogLine]] = defaultdict(list)
        self._followers: dict[str, list[Callable[[Sequence[LogLine]], None]]] = defaultdict(list)

    async def append(self, run_id: str, lines: Sequence[LogLine]) -> None:
        self._lines[run_id].extend(lines)
        for callback in list(self._followers[run_id]):
            callback(lines)

    async def read(self, run_id: str) -> AsyncIterator[LogLine]:
        for line in list(self._lines[run_id]):
            yield line

    async def follow(
        self, run_id: str, callback: Callable[[Sequence[LogLine]], None]
    ) -> Callable[[], Awaitable[None]]:
        self._followers[run_id].append(callback)

        async def stop() -> None:
            self._followers[run_id].remove(callback)

        return stop


class MemoryWheels:
    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._stored: dict[str, tuple[Wheel, bytes]] = {}
        self._nuids = count(1)

    async def list_wheels(self) -> list[Wheel]:
        return sorted((wheel for wheel, _ in self._stored.values()), key=lambda wheel: wheel.name)

    async def get(self, name: str) -> Wheel | None:
        found = self._stored.get(name)
        return found[0] if found else None

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        tags: Sequence[str],
        check: Callable[[list[Wheel]], None],
    ) -> Wheel:
        check(await self.list_wheels())
        content = b"".join([chunk async for chunk in chunks])
        check(await self.list_wheels())
        wheel = Wheel(
            name=name,
            size_bytes=len(content),
            bucket=self._bucket,
            nuid=str(next(self._nuids)),
            modified=time.time(),
            sha256=hashlib.sha256(content).digest(),
            tags=tuple(tags),
        )
        self._stored[name] = (wheel, content)
        return wheel

    async def read(self, wheel: Wheel) -> AsyncIterator[bytes]:
        yield self._stored[wheel.name][1]

    async def delete(self, name: str) -> Wheel | None:
        found = self._stored.pop(name, None)
        return found[0] if found else None


class MemoryWheelHistory:
    def __init__(self) -> None:
        self._events: list[WheelEvent] = []

    async def append(self, event: WheelEvent) -> None:
        self._events.insert(0, event)

    async def list_events(self) -> list[WheelEvent]:
        return list(self._events)


class MemorySignals:
    """No hints at all: who uses them must also look for himself."""

    async def on_foreign_write(
        self,
        run_id: str,  # noqa: ARG002
        callback: Callable[[], None],  # noqa: ARG002
    ) -> Callable[[], Awaitable[None]]:
        async def stop() -> None:
            pass

        return stop


class MemoryTime:
    async def now(self) -> float:
        return time.time()


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
    run_index: SqliteRunIndex
    execution_index: SqliteExecutionIndex
    events: MemoryEvents
    execution_log: MemoryExecutionLog = field(default_factory=MemoryExecutionLog)
    execution_cache: MemoryStore[ExecutionRecord] = field(
        default_factory=lambda: MemoryStore(encode_record, decode_record)
    )
    leases: MemoryStore[LeaseRecord] = field(default_factory=lambda: MemoryStore(wire.encode, decode_lease))
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
    index, executions = SqliteRunIndex(None, tenants=tenants), SqliteExecutionIndex(tenants=tenants)
    yield MemoryGatewayBackend(
        **_parts(settings),
        run_index=index,
        execution_index=executions,
        claims=MemoryStore(wire.encode, wire.decode_claim),
        wheels=MemoryWheels(settings.wheel_object_store_bucket),
        events=MemoryEvents.new(settings),
    )
    index.close()
    executions.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
