"""Typed values in a key-value bucket, written by compare-and-set only; reads of streams; the logs of runs."""

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from pyoco_server.domain import codec
from pyoco_server.domain.runs.logs import LogLine, LogRecord
from pyoco_server.errors import NatsUnavailable, NobodyAnswers, SnapshotTooLarge
from pyoco_server.jetstream.connection import NOT_FOUND, ApiError, NatsConnection, PayloadTooLarge
from pyoco_server.jetstream.streams import stream_config
from pyoco_server.logs import get_logger
from pyoco_server.usecases.concurrency import Batch, off_loop, read_all
from pyoco_server.usecases.ports.runs import TooManyLines
from pyoco_server.usecases.ports.stores import Revision, Versioned, WrongRevision

T = TypeVar("T")
R = TypeVar("R")
log = get_logger(__name__)

MAX_KEY = 512
_NO_KEY = re.compile(r"[\s*>]|^\.|\.\.|\.$")
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
NO_MESSAGE = 10037
_GONE = frozenset({NO_MESSAGE, 10043})
"""No message found; sequence not found."""
_NOT_DELETED = 10057
_NOT_THERE = ("no message found", "deleted message", "stream store EOF")
_REMOVED_MARKER_TTL = "24h"
"""Long enough for every follower, including one that was down for a while."""


def is_gone(error: ApiError) -> bool:
    """Whether the message is not there. A refused delete has one code, and the reason as text."""
    is_not_there = error.err_code == _NOT_DELETED and error.description in _NOT_THERE
    return is_not_there or error.err_code in _GONE


class _Entry:
    """The last message of a key: a value or a delete marker."""

    def __init__(self, data: bytes, revision: int, headers: dict[str, str]) -> None:
        self.data = data
        self.revision = Revision(revision)
        self.is_removed = is_removal(headers)


class KvStore(Generic[T]):
    def __init__(  # noqa: PLR0913 - one argument per way in which buckets differ
        self,
        connection: NatsConnection,
        bucket: str,
        stream_config: dict[str, Any],
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
        ttl_of: Callable[[T], float | None] = lambda _: None,
        *,
        named: Callable[[T, str], T] = lambda value, _: value,
        restore: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`ttl_of`: retention of a value in seconds; None: until replaced or removed.

        `named` sets a value's name to its key, whatever the stored name. `restore` recreates a deleted bucket
        whose content can be lost without harm.
        """
        self._restore = restore
        self._connection = connection
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self._encode = encode
        self._decode = decode
        self._ttl_of = ttl_of
        self._named = named
        # A direct get may be served by a lagging replica, so with replicas the leader is asked.
        self._direct = bool(stream_config.get("allow_direct")) and stream_config.get("num_replicas", 1) == 1
        self._message_ttl = bool(stream_config.get("allow_msg_ttl"))

    async def create(self, key: str, value: T) -> Revision:
        try:
            return await self.update(key, value, Revision(0))
        except WrongRevision:
            entry = await self._last(key)
            if entry is None or not entry.is_removed:
                raise
            return await self.update(key, value, entry.revision)

    async def get(self, key: str) -> Versioned[T] | None:
        entry = await self._last(key) if is_key(key) else None
        if entry is None or entry.is_removed:
            return None
        value = await off_loop(len(entry.data), self._decode, entry.data)
        return Versioned(self._named(value, key), entry.revision)

    async def update(self, key: str, value: T, expected: Revision) -> Revision:
        data = self._encode(value)
        headers = {_EXPECTED: str(expected)}
        ttl = self._ttl(key, value) if self._message_ttl else None
        if ttl is not None:
            headers["Nats-TTL"] = str(max(1, int(ttl)))
        try:
            ack = await self._restoring(
                lambda: self._connection.publish_acked(self._prefix + key, data, dict(headers))
            )
        except PayloadTooLarge as error:
            raise SnapshotTooLarge(f"{self._prefix}{key}: {len(data)} bytes, {error}") from error
        return Revision(ack.seq)

    def _ttl(self, key: str, value: T) -> float | None:  # noqa: ARG002 - for a bucket that goes by keys
        return self._ttl_of(value)

    async def remove(self, key: str, expected: Revision | None) -> None:
        headers = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
        if expected is not None:
            headers[_EXPECTED] = str(expected)
        if self._message_ttl:
            headers["Nats-TTL"] = _REMOVED_MARKER_TTL
        await self._connection.publish_acked(self._prefix + key, b"", headers)

    async def _last(self, key: str) -> _Entry | None:
        last = self._last_direct if self._direct else self._last_of_leader
        return await self._restoring(lambda: last(key))

    async def _restoring(self, ask: Callable[[], Awaitable[R]]) -> R:
        try:
            return await ask()
        except (NobodyAnswers, ApiError) as error:
            if self._restore is None or (isinstance(error, ApiError) and error.err_code != NOT_FOUND):
                raise
        if await stream_config(self._connection, self._stream) is None:  # else it only had no leader
            log.error("a bucket was deleted; recreating it", action="kv.restore", stream=self._stream)
            await self._restore()
        return await ask()

    async def _last_direct(self, key: str) -> _Entry | None:
        reply = await self._connection.request(
            self._connection.api_subject(f"DIRECT.GET.{self._stream}.{self._prefix}{key}"), b""
        )
        headers = reply.headers or {}
        if headers.get("Status") == "404":
            return None
        return _Entry(reply.data, int(headers["Nats-Sequence"]), headers)

    async def _last_of_leader(self, key: str) -> _Entry | None:
        try:
            answer = await self._connection.api(
                f"STREAM.MSG.GET.{self._stream}", {"last_by_subj": self._prefix + key}
            )
        except ApiError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        message = answer["message"]
        headers = _parse_headers(base64.b64decode(message.get("hdrs", "")))
        return _Entry(base64.b64decode(message.get("data", "")), message["seq"], headers)


def is_key(text: str) -> bool:
    """Whether a value can be stored under it. The text may come from a record that anybody wrote."""
    return 0 < len(text) <= MAX_KEY and text.isprintable() and _NO_KEY.search(text) is None


def _parse_headers(raw: bytes) -> dict[str, str]:
    lines = raw.decode("utf-8", errors="replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}


def is_removal(headers: Mapping[str, str]) -> bool:
    """Whether a message marks a key as deleted or expired."""
    return "KV-Operation" in headers or "Nats-Marker-Reason" in headers


# Signals of foreign writes, so that a cancel does not wait for the next heartbeat.


class BucketSignals:
    """A write to a bucket is a message on the key's subject and can be subscribed to.

    The connection does not receive its own messages, so every message is a foreign write.
    """

    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection = connection
        self._prefix = f"$KV.{bucket}."

    async def on_foreign_write(
        self, run_id: str, callback: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        async def received(_message: Msg) -> None:
            callback()

        return await self._connection.listen(self._prefix + run_id, received)


# Direct reads of a stream without a consumer, in batches.

BATCH = 1000
BATCH_BYTES = 8 * 1024 * 1024
"""Limit per batch, and so for memory. The server's own limit is 64 MB."""


async def scan(
    connection: NatsConnection,
    stream: str,
    subjects: str,
    batch: int = BATCH,
    start: int = 1,
    since: str | None = None,
) -> AsyncGenerator[Msg, None]:
    """The messages stored now under `subjects`, from sequence `start`. The stream must allow direct gets.

    `since`: only messages stored then or later. With replicas a lagging one may serve the scan, so a caller
    that relies on absence has to ask the leader for later messages.
    """
    reader = _BatchReader(connection, stream, {"batch": batch, "next_by_subj": subjects}, since)
    await reader.open()
    try:
        async with aclosing(read_all(reader.read, start)) as messages:
            async for message in messages:
                yield message
    finally:
        await reader.close()


class _BatchReader:
    def __init__(
        self, connection: NatsConnection, stream: str, wanted: dict[str, Any], since: str | None
    ) -> None:
        self._connection = connection
        self._subject = connection.api_subject(f"DIRECT.GET.{stream}")
        self._wanted = {**wanted, "max_bytes": BATCH_BYTES}
        self._since = since
        self._inbox = connection.new_inbox()
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()

    async def open(self) -> None:
        self._subscription = await self._connection.subscribe(self._inbox, self._arrived.put)

    async def close(self) -> None:
        if self._connection.is_connected:
            await self._subscription.unsubscribe()

    async def read(self, start: int) -> Batch[Msg]:
        begin: dict[str, Any] = {"seq": start} if self._since is None else {"start_time": self._since}
        self._since = None
        body = msgspec.json.encode({**self._wanted, **begin})
        await self._connection.publish(self._subject, body, reply=self._inbox)
        messages: list[Msg] = []
        while "Status" not in (headers := (message := await self._next()).headers or {}):
            messages.append(message)
        if headers["Status"] not in ("204", "404"):
            raise NatsUnavailable(
                f"nats unavailable: reading a stream failed: {headers.get('Description', headers['Status'])}"
            )
        following = sequence_of(messages[-1]) + 1 if messages else start
        return Batch(messages, following, int(headers.get("Nats-Num-Pending", 0)))

    async def _next(self) -> Msg:
        if not self._arrived.empty():
            return self._arrived.get_nowait()
        waiting = asyncio.ensure_future(self._arrived.get())
        done, _ = await asyncio.wait({waiting}, timeout=self._connection.request_timeout_sec)
        if not done:
            waiting.cancel()
            raise NatsUnavailable("nats unavailable: reading a stream timed out")
        return waiting.result()


def sequence_of(message: Msg) -> int:
    """The stream sequence of a directly read message."""
    return int((message.headers or {})["Nats-Sequence"])


# Leader reads, which are authoritative about absence.


class StoredMessage(Struct, frozen=True):
    sequence: int
    subject: str
    data: bytes
    headers: Mapping[str, str] = {}


async def next_of_leader(
    connection: NatsConnection, stream: str, subjects: str, after: int
) -> StoredMessage | None:
    """The first message under `subjects` after the sequence `after`."""
    return await _of_leader(connection, stream, {"seq": after + 1, "next_by_subj": subjects})


async def last_of_leader(connection: NatsConnection, stream: str, subject: str) -> StoredMessage | None:
    return await _of_leader(connection, stream, {"last_by_subj": subject})


async def at_leader(connection: NatsConnection, stream: str, sequence: int) -> StoredMessage | None:
    return await _of_leader(connection, stream, {"seq": sequence})


async def _of_leader(
    connection: NatsConnection, stream: str, wanted: dict[str, object]
) -> StoredMessage | None:
    try:
        answer = await connection.api(f"STREAM.MSG.GET.{stream}", wanted)
    except ApiError as error:
        if is_gone(error):
            return None
        raise
    message = answer["message"]
    headers = _parse_headers(base64.b64decode(message.get("hdrs", "")))
    return StoredMessage(
        message["seq"], message["subject"], base64.b64decode(message.get("data", "")), headers
    )


# Run logs: a stream with one subject per run

RECORDS_AT_ONCE = 50
"""Records have up to 128 KiB of text; a page rarely needs more than a few."""
_NO_STREAM = "-"

Follower = Callable[[Sequence[LogLine]], None]


class LogStream:
    def __init__(self, connection: NatsConnection, stream: str, subject_prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix
        self._followers: dict[str, dict[object, Follower]] = {}
        self._stops: dict[str, Callable[[], Awaitable[None]]] = {}
        self._turn = asyncio.Lock()

    async def append(self, run_id: str, lines: Sequence[LogLine], write_id: str) -> None:
        subject = f"{self._prefix}.{run_id}"
        try:
            await self._connection.publish_acked(subject, codec.encode(lines), {"Nats-Msg-Id": write_id})
        except PayloadTooLarge as error:
            raise TooManyLines from error

    async def show(self, run_id: str, lines: Sequence[LogLine]) -> None:
        """Publish on the same subject, which needs no other permission; the stream refuses to store it."""
        await self._connection.publish(
            f"{self._prefix}.{run_id}", codec.encode(lines), headers={"Nats-Expected-Stream": _NO_STREAM}
        )

    async def remove(self, run_id: str) -> None:
        await self._connection.api(f"STREAM.PURGE.{self._stream}", {"filter": f"{self._prefix}.{run_id}"})

    async def read(self, run_id: str, after: int = 0) -> AsyncGenerator[LogRecord, None]:
        subject = f"{self._prefix}.{run_id}"
        async with aclosing(
            scan(self._connection, self._stream, subject, batch=RECORDS_AT_ONCE, start=after + 1)
        ) as messages:
            async for message in messages:
                yield LogRecord(int((message.headers or {})["Nats-Sequence"]), list(_lines(message)))

    async def follow(self, run_id: str, callback: Follower) -> Callable[[], Awaitable[None]]:
        """A plain subscription, which needs no consumer to receive what is published to the stream.

        All followers of a run share it, so that their number does not multiply the traffic.
        """
        token = object()
        async with self._turn:
            if run_id not in self._followers:
                self._stops[run_id] = await self._listen(run_id)
                self._followers[run_id] = {}
            self._followers[run_id][token] = callback

        async def stop() -> None:
            async with self._turn:
                del self._followers[run_id][token]
                if not self._followers[run_id]:
                    del self._followers[run_id]
                    await self._stops.pop(run_id)()

        return stop

    async def _listen(self, run_id: str) -> Callable[[], Awaitable[None]]:
        async def received(message: Msg) -> None:
            lines = _lines(message)
            for callback in list(self._followers.get(run_id, {}).values()):
                callback(lines)

        return await self._connection.listen(f"{self._prefix}.{run_id}", received)


def _lines(message: Msg) -> Sequence[LogLine]:
    try:
        return codec.decode_log_lines(message.data)
    except codec.Unreadable as error:
        log.warning("skipped an unreadable log record", action="logs.unreadable", exc_info=error)
        return []
