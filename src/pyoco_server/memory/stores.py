"""Stores in memory, with feeds of their changes."""

import asyncio
import hashlib
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from operator import itemgetter
from typing import Any, Generic, TypeVar

from pyoco_server.domain import codec
from pyoco_server.domain.audit_trail import AuditEntry
from pyoco_server.domain.auth import ApiKeyRecord, record_key
from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.executions.codec import decode_commit, encode_commit
from pyoco_server.domain.executions.graph_versions import (
    GraphRecord,
    GraphSummary,
    decode_graph_record,
    decode_graph_summary,
)
from pyoco_server.domain.executions.records import LoggedCommit
from pyoco_server.domain.runs.logs import LogLine, LogRecord
from pyoco_server.domain.stats.records import Bucket, StatsRecord, decode_stats
from pyoco_server.domain.wheels import Wheel, WheelEvent
from pyoco_server.usecases.ports.gateway import BEGINNING, ChangeWindow, check_stats_size
from pyoco_server.usecases.ports.stores import (
    Change,
    Clock,
    FeedBatch,
    FeedPosition,
    Revision,
    Versioned,
    WrongRevision,
)

T = TypeVar("T")


class MemoryStore(Generic[T]):
    """Values are kept as bytes, so that they lose what JSON loses."""

    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self._encode = encode
        self._decode = decode
        self._values: dict[str, tuple[bytes, Revision]] = {}
        self._sequence = 0
        self._history: list[tuple[str, bytes | None, Revision]] = []
        self._written = asyncio.Event()

    async def create(self, key: str, value: T) -> Revision:
        if key in self._values:
            raise WrongRevision(key)
        return self._put(key, value)

    async def get(self, key: str) -> Versioned[T] | None:
        found = self._values.get(key)
        return None if found is None else Versioned(self._decode(found[0]), found[1])

    async def update(self, key: str, value: T, expected: Revision) -> Revision:
        self._expect(key, expected)
        return self._put(key, value)

    async def remove(self, key: str, expected: Revision | None) -> None:
        if expected is not None:
            self._expect(key, expected)
        self._values.pop(key, None)
        self._sequence += 1
        self._remember(key, None)

    def _expect(self, key: str, expected: Revision) -> None:
        found = self._values.get(key)
        if found is None or found[1] != expected:
            raise WrongRevision(key)

    def _put(self, key: str, value: T) -> Revision:
        self._sequence += 1
        data = self._encode(value)
        self._values[key] = (data, Revision(self._sequence))
        self._remember(key, data)
        return Revision(self._sequence)

    def _remember(self, key: str, data: bytes | None) -> None:
        self._history.append((key, data, Revision(self._sequence)))
        self._written.set()

    stale_sec = 0.0
    missed_sec = 0.0

    async def end(self) -> FeedPosition:
        return FeedPosition("memory", Revision(self._sequence))

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[T], None]:
        """The feed of this store."""
        seen = 0 if position is None else position.last_revision
        yield FeedBatch([], FeedPosition("memory", Revision(seen)), position is None, not self._history)
        while True:
            news = self._history[bisect_right(self._history, seen, key=itemgetter(2)) :]
            if not news:  # nothing is awaited in between, so that no other follower clears what is news here
                self._written.clear()
                await self._written.wait()
                continue
            seen = news[-1][2]
            yield FeedBatch(
                [self._change(*entry) for entry in news], FeedPosition("memory", seen), False, True
            )

    def _change(self, key: str, data: bytes | None, revision: Revision) -> Change[T]:
        return Change(key, revision, None if data is None else self._decode(data), None)


class MemoryView(Generic[T]):
    """The feed of a store, with values read as another type."""

    stale_sec = 0.0
    missed_sec = 0.0

    def __init__(self, store: MemoryStore[Any], decode: Callable[[bytes], T]) -> None:
        self._store = store
        self._decode = decode

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[T], None]:
        async for batch in self._store.follow(position):
            changes = [self._change(change) for change in batch.changes]
            yield FeedBatch(changes, batch.position, batch.is_reset, batch.is_caught_up)

    def _change(self, change: Change[Any]) -> Change[T]:
        value = None if change.value is None else self._decode(codec.encode(change.value))
        return Change(change.key, change.revision, value, change.expires_at, change.stored_at)


class MemoryStats(MemoryStore[StatsRecord]):
    def __init__(self) -> None:
        super().__init__(codec.encode, decode_stats)

    async def between(
        self, tenant_id: str | None, bucket: Bucket, since: float, until: float
    ) -> list[tuple[int, bytes]]:
        found = []
        for key, (data, _) in self._values.items():
            kind, tenant, start = key.split(".")
            if (kind, tenant) == (bucket.value, tenant_id or tenant) and since <= int(start) < until:
                found.append((int(start), data))
        check_stats_size(sum(len(data) for _, data in found))
        return sorted(found, key=itemgetter(0))


# API keys


class MemoryApiKeys(MemoryStore[ApiKeyRecord]):
    def __init__(self) -> None:
        super().__init__(codec.encode, codec.decode_api_key)

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
    """Always up to date. A test sets `is_current` to simulate a stale feed."""

    def __init__(self, keys: MemoryApiKeys) -> None:
        self._keys = keys
        self.is_current = True

    def known(self, key_id: str) -> ApiKeyRecord | None:
        return self._keys.now(key_id)


# Execution logs


class MemoryExecutionLog(MemoryStore[LoggedCommit]):
    """The store's history has every commit; its values are the last ones."""

    def __init__(self) -> None:
        super().__init__(encode_commit, decode_commit)

    async def append(self, logged: LoggedCommit, expected: Revision) -> Revision:
        commit = logged.commit
        last = self._values.get(commit.execution_id)
        if (0 if last is None else last[1]) != expected:
            raise WrongRevision(commit.execution_id)
        return self._put(commit.execution_id, logged)

    async def bury(self, logged: LoggedCommit, expected: Revision, ttl_sec: float | None = None) -> None:  # noqa: ARG002
        """It stays: nothing expires in memory."""
        await self.append(logged, expected)

    async def erase(self, execution_id: str) -> None:
        last = self._values.get(execution_id)
        self._history = [
            one for one in self._history if one[0] != execution_id or (last is not None and one[2] == last[1])
        ]

    async def read(
        self, execution_id: str, after: Revision = BEGINNING
    ) -> AsyncIterator[tuple[LoggedCommit | None, Revision]]:
        for key, data, revision in list(self._history):
            if key == execution_id and data is not None and revision > after:
                yield _commit_in(data), revision


def _commit_in(data: bytes) -> LoggedCommit | None:
    try:
        return decode_commit(data)
    except Unreadable:
        return None


# Graphs


class MemoryGraphs(MemoryStore[GraphRecord]):
    def __init__(self) -> None:
        super().__init__(codec.encode, decode_graph_record)

    async def newest(self, tenant: str, after: Revision, limit: int) -> list[Versioned[GraphSummary]]:
        found = [
            Versioned(decode_graph_summary(data), revision)
            for key, (data, revision) in self._values.items()
            if key.split(".")[:-1] == [tenant] and revision > after
        ]
        return sorted(found, key=lambda stored: stored.revision)[:limit]


# Run logs


class MemoryTaskLogs:
    def __init__(self) -> None:
        self._records: dict[str, list[LogRecord]] = defaultdict(list)
        self._written: set[str] = set()
        self._followers: dict[str, list[Callable[[Sequence[LogLine]], None]]] = defaultdict(list)

    async def append(self, run_id: str, lines: Sequence[LogLine], write_id: str = "") -> None:
        if write_id in self._written:
            return
        if write_id:
            self._written.add(write_id)
        records = self._records[run_id]
        records.append(LogRecord(len(records) + 1, list(lines)))
        await self.show(run_id, lines)

    async def show(self, run_id: str, lines: Sequence[LogLine]) -> None:
        for callback in list(self._followers[run_id]):
            callback(lines)

    async def remove(self, run_id: str) -> None:
        self._records.pop(run_id, None)

    async def read(self, run_id: str, after: int = 0) -> AsyncGenerator[LogRecord, None]:
        for record in self._records[run_id][after:]:
            yield record

    async def follow(
        self, run_id: str, callback: Callable[[Sequence[LogLine]], None]
    ) -> Callable[[], Awaitable[None]]:
        self._followers[run_id].append(callback)

        async def stop() -> None:
            self._followers[run_id].remove(callback)

        return stop


# Wheels and their history


class MemoryWheels:
    def __init__(self, bucket: str, clock: Clock = time.time) -> None:
        self._bucket = bucket
        self._clock = clock
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
            modified=self._clock(),
            sha256=hashlib.sha256(content).digest(),
            tags=tuple(tags),
        )
        self._stored[name] = (wheel, content)
        return wheel

    async def read(self, wheel: Wheel) -> AsyncIterator[bytes]:
        yield self._stored[wheel.name][1]

    async def collect(self, older_than: float) -> int:  # noqa: ARG002 - nothing is left of what was not put
        return 0

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


# Lists and the audit trail


class MemoryListedStore(MemoryStore[T]):
    def __init__(
        self, decode: Callable[[bytes], T], decode_listed: Callable[[bytes], T] | None = None
    ) -> None:
        super().__init__(codec.encode, decode)  # type: ignore[arg-type]
        self._decode_listed = decode_listed or decode

    async def list_values(self, prefix: str = "") -> list[T]:
        found = [(at, data) for key, (data, at) in self._values.items() if key.startswith(prefix)]
        return [self._decode_listed(data) for _, data in sorted(found)]

    async def count(self, prefix: str = "") -> int:
        return sum(key.startswith(prefix) for key in self._values)


class MemoryChangeLog:
    def __init__(self) -> None:
        self._entries: dict[str, bytes] = {}

    async def append(self, entry: AuditEntry) -> None:
        self._entries.setdefault(entry.id, codec.encode(entry))

    async def before(self, number: int | None, limit: int) -> ChangeWindow:
        everything = list(self._entries.values())
        end = len(everything) + 1 if number is None else number
        start = max(1, end - limit)
        found = [(at, codec.decode_audit_entry(everything[at - 1])) for at in range(start, end)]
        return ChangeWindow(found[::-1], start, 1)
