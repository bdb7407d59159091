"""Workflow events on JetStream: listed buckets, receipts with a limit per tenant, the audit stream."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from pyoco_server.domain import codec
from pyoco_server.domain.audit_trail import AuditEntry
from pyoco_server.domain.events.audit import StoredEvent
from pyoco_server.domain.events.receipts import Receipt
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import ApiError, NatsConnection, PayloadTooLarge
from pyoco_server.jetstream.feed import StreamFeed
from pyoco_server.jetstream.kv import KvStore, is_removal, scan, sequence_of
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.events.definitions import of_tenant
from pyoco_server.usecases.ports.gateway import ChangeWindow
from pyoco_server.usecases.ports.stores import Revision, WrongRevision

log = get_logger(__name__)
T = TypeVar("T")

CACHE_SEC = 3600.0
"""Much shorter than delete markers are kept: without its marker a removal cannot be detected."""
_GONE = frozenset({10037, 10057})
MAX_READS = 20
BEHIND_SEC = 0.1
"""A lagging replica catches up within milliseconds; if it is cut off, others soon answer instead."""
LATE_SEC = 300.0
"""Maximum age of an id when its record is written, unless NATS was unavailable."""


class _Listed(Struct, frozen=True):
    newest: int
    values: list[Any]
    at: float


class ListedKvStore(KvStore[T]):
    """A part of a bucket, with listing.

    With `is_cached`, a list is read again only after a change under its prefix. Detecting a change is one
    request, whatever the length of the list.
    """

    def __init__(  # noqa: PLR0913 - one argument per way in which buckets differ
        self,
        connection: NatsConnection,
        bucket: str,
        stream_config: dict[str, Any],
        decode: Callable[[bytes], T],
        *,
        part: str = "",
        ttl_of: Callable[[T], float | None] = lambda _: None,
        is_cached: bool = False,
        decode_listed: Callable[[bytes], T] | None = None,
    ) -> None:
        """`decode_listed` leaves out what may be large."""
        super().__init__(connection, bucket, stream_config, codec.encode, decode, ttl_of)  # type: ignore[arg-type]
        self._prefix += part
        self._is_cached = is_cached
        self._decode_listed = decode_listed or decode
        self._lists: dict[str, _Listed] = {}
        self._reading = asyncio.Lock()

    async def list_values(self, prefix: str = "") -> list[T]:
        newest = await self._last(self._keys_under(prefix)) if self._is_cached or not self._direct else None
        revision = 0 if newest is None else newest.revision
        if not self._is_cached:
            return await self._read(prefix, revision)
        async with self._reading:  # a burst of events reads the list once
            known = self._lists.get(prefix)
            if known is None or known.newest != revision or time.monotonic() - known.at > CACHE_SEC:
                known = _Listed(revision, await self._read(prefix, revision), time.monotonic())
                self._lists[prefix] = known
            return known.values

    def _keys_under(self, prefix: str) -> str:
        return f"{prefix}>"

    async def _read(self, prefix: str, newest: int) -> list[T]:
        """A lagging replica may answer: a list without `newest` is incomplete."""
        for _ in range(MAX_READS):
            messages = scan(self._connection, self._stream, self._prefix + self._keys_under(prefix))
            listed = [(sequence_of(message), self._value(message)) async for message in messages]
            if max((sequence for sequence, _ in listed), default=0) >= newest:
                return [value for _, value in listed if value is not None]
            if await self._is_gone(prefix, newest):
                return await self._read(prefix, 0)
            await asyncio.sleep(BEHIND_SEC)
        raise NatsUnavailable(f"nats unavailable: the replicas of {self._stream} lag behind")

    async def _is_gone(self, prefix: str, newest: int) -> bool:
        """Whether the newest value was removed without a marker."""
        last = await self._last(self._keys_under(prefix))
        return last is None or last.revision < newest

    def _value(self, message: Msg) -> T | None:
        if is_removal(message.headers or {}):
            return None
        try:
            return self._decode_listed(message.data)
        except codec.Unreadable as error:
            log.warning(
                "unreadable value skipped",
                action="events.unreadable",
                subject=message.subject,
                exc_info=error,
            )
            return None


class MarkerlessKvStore(ListedKvStore[T]):
    """Removals leave no marker: the stream has one message per value."""

    async def remove(self, key: str, expected: Revision | None) -> None:
        revision = expected
        if revision is None:
            entry = await self._last(key)
            if entry is None:
                return
            revision = entry.revision
        try:
            await self._connection.api(
                f"STREAM.MSG.DELETE.{self._stream}", {"seq": revision, "no_erase": True}
            )
        except ApiError as error:
            if error.err_code not in _GONE:
                raise
            raise WrongRevision(key) from error


class CountedBucket(MarkerlessKvStore[T]):
    async def count(self, prefix: str = "") -> int:
        first = scan(self._connection, self._stream, f"{self._prefix}{prefix}>", batch=1)
        async with aclosing(first):
            async for message in first:
                return _left_with(message)
        return 0


class ReceiptBucket(MarkerlessKvStore[Receipt]):
    """At most `max_receipts` per tenant; the oldest are evicted first.

    A receipt's key is a hash without a tenant. So each receipt has an empty marker `tenant.<tenant>.<key>`:
    the markers of a tenant are counted, and are in the order of their receipts. A receipt without a marker is
    kept for its TTL.
    """

    def __init__(
        self,
        connection: NatsConnection,
        bucket: str,
        stream_config: dict[str, Any],
        *,
        max_receipts: int,
        keep_sec: float,
    ) -> None:
        super().__init__(connection, bucket, stream_config, codec.decode_receipt, ttl_of=lambda _: keep_sec)
        self._max_receipts = max_receipts
        self._keep_sec = keep_sec
        self._count_every = max(1, max_receipts // 100)
        self._uncounted: dict[str | None, int] = {}
        """Receipts created since the last count, per tenant."""
        self._reported: set[str | None] = set()

    async def create(self, key: str, value: Receipt) -> Revision:
        tenant_id = value.tenant_id
        if tenant_id not in self._uncounted:  # the limit may have been lowered before this start
            await self._make_room(tenant_id)
        revision = await super().create(key, value)
        with best_effort(log, "receipts.make_room", NatsUnavailable):
            await self._put_marker(key, tenant_id)
            self._uncounted[tenant_id] = self._uncounted.get(tenant_id, 0) + 1
            if self._uncounted[tenant_id] >= self._count_every:
                await self._make_room(tenant_id)
        return revision

    async def remove(self, key: str, expected: Revision | None) -> None:
        stored = await self.get(key)
        await super().remove(key, expected)
        if stored is not None:
            await super().remove(_marker_of(stored.value.tenant_id, key), None)

    def _keys_under(self, prefix: str) -> str:
        """Without the markers: their keys have dots."""
        return f"{prefix}*"

    async def _put_marker(self, key: str, tenant_id: str | None) -> None:
        headers = {"Nats-TTL": str(max(1, int(self._keep_sec)))} if self._message_ttl else {}
        await self._connection.publish_acked(self._prefix + _marker_of(tenant_id, key), b"", headers)

    async def _make_room(self, tenant_id: str | None) -> None:
        self._uncounted[tenant_id] = 0
        oldest = await self._surplus(tenant_id)
        if oldest and tenant_id not in self._reported:
            self._reported.add(tenant_id)
            log.warning(
                "more receipts than AX_WORKFLOW_EVENT_MAX_RECEIPTS; the oldest of the tenant are evicted",
                action="receipts.full",
                tenant_id=tenant_id,
                max_receipts=self._max_receipts,
            )
        await asyncio.gather(*(self._evict(subject) for subject in oldest))

    async def _surplus(self, tenant_id: str | None) -> list[str]:
        """Subjects of the surplus markers, oldest first."""
        found: list[str] = []
        markers = scan(
            self._connection,
            self._stream,
            f"{self._prefix}{_marker_of(tenant_id, '*')}",
            batch=2 * self._count_every,
        )
        async with aclosing(markers):
            async for message in markers:
                if _left_with(message) <= self._max_receipts:
                    break
                found.append(_subject_of(message))
        return found

    async def _evict(self, marker: str) -> None:
        key = marker.rpartition(".")[2]
        with suppress(WrongRevision):  # evicted by another gateway
            await super().remove(key, None)
        with suppress(WrongRevision):
            await super().remove(marker.removeprefix(self._prefix), None)


def _marker_of(tenant_id: str | None, key: str) -> str:
    return f"tenant.{of_tenant(tenant_id)}{key}"


def _left_with(message: Msg) -> int:
    """Number of messages in a scan from this one on."""
    return 1 + int((message.headers or {})["Nats-Num-Pending"])


def _subject_of(message: Msg) -> str:
    return (message.headers or {})["Nats-Subject"]


class AuditRecords:
    def __init__(self, connection: NatsConnection, stream: str, subject_prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix

    async def append(self, event: StoredEvent) -> Revision:
        try:
            return await self._publish(event)
        except PayloadTooLarge:
            return await self._publish(StoredEvent(record=event.record))

    async def _publish(self, event: StoredEvent) -> Revision:
        record = event.record
        subject = f"{self._prefix}.{of_tenant(record.actor.tenant_id)}{record.ym}"
        ack = await self._connection.publish_acked(
            subject, codec.encode(event), {"Nats-Msg-Id": record.event_id}
        )
        return Revision(ack.seq)

    async def find(self, event_id: str) -> StoredEvent | None:
        """An id contains its time: only records written around it are read."""
        made_at = _time_of(event_id)
        if made_at is None:
            return None
        wanted = msgspec.json.encode(event_id)
        messages = scan(self._connection, self._stream, f"{self._prefix}.>", since=_rfc3339(made_at))
        async for message in messages:
            if wanted in message.data:
                found = codec.decode_stored_event(message.data)
                if found.record.event_id == event_id:
                    return found
            if _written_at(message) > made_at + LATE_SEC:
                return None
        return None


class AuditFeed(StreamFeed[StoredEvent]):
    """All records, from the first, without their requests."""

    deliver_policy = "all"

    def __init__(
        self, connection: NatsConnection, stream: str, subject_prefix: str, restore: Callable[[], Any]
    ) -> None:
        super().__init__(connection, stream, subject_prefix, codec.decode_audited, restore)


class JetStreamChangeLog:
    """The audit trail: one message per change, under `<prefix>.<tenant>.<kind>`."""

    def __init__(self, connection: NatsConnection, stream: str, subject_prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix

    async def append(self, entry: AuditEntry) -> None:
        subject = f"{self._prefix}.{of_tenant(entry.actor.tenant_id)}{entry.target.kind}"
        await self._connection.publish_acked(subject, codec.encode(entry), {"Nats-Msg-Id": entry.id})

    async def before(self, number: int | None, limit: int) -> ChangeWindow:
        state = (await self._connection.api(f"STREAM.INFO.{self._stream}"))["state"]
        first, end = max(1, state["first_seq"]), state["last_seq"] + 1  # a new stream begins with 0
        end = end if number is None else min(end, number)
        start = max(first, end - limit)
        found = await self._between(start, end) if start < end else []
        if start < end and (
            not found or found[-1][0] != end - 1
        ):  # entries are removed at the other end only
            raise NatsUnavailable(f"nats unavailable: the replicas of {self._stream} lag behind")
        entries = [(number, entry) for number, entry in found[::-1] if entry is not None]
        return ChangeWindow(entries, start, first)

    async def _between(self, start: int, end: int) -> list[tuple[int, AuditEntry | None]]:
        found: list[tuple[int, AuditEntry | None]] = []
        messages = scan(self._connection, self._stream, f"{self._prefix}.>", batch=end - start, start=start)
        async with aclosing(messages):
            async for message in messages:
                sequence = sequence_of(message)
                if sequence >= end:
                    break
                found.append((sequence, _entry_in(message)))
        return found


def _entry_in(message: Msg) -> AuditEntry | None:
    try:
        return codec.decode_audit_entry(message.data)
    except codec.Unreadable as error:
        log.warning("unreadable audit entry skipped", action="audit.unreadable", exc_info=error)
        return None


def _time_of(event_id: str) -> float | None:
    """Time of a UUIDv7 in unix seconds."""
    try:
        parsed = UUID(event_id)
    except ValueError:
        return None
    return (parsed.int >> 80) / 1000 if parsed.version == 7 else None  # noqa: PLR2004


def _rfc3339(unix_seconds: float) -> str:
    # A second earlier: the clocks of gateway and NATS differ.
    return datetime.fromtimestamp(unix_seconds - 1, UTC).isoformat().replace("+00:00", "Z")


def _written_at(message: Msg) -> float:
    text = (message.headers or {}).get("Nats-Time-Stamp", "")
    try:
        return datetime.fromisoformat(text[:19] + "+00:00").timestamp()
    except ValueError:
        return 0.0
