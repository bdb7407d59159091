"""Every change of a bucket, in order, from one pull consumer: what read models are built from.

Never `kv.watch` or `kv.keys`: they take one consumer per caller, do not scale with the number of keys, and
fall silent after some reconnects. This feed notices when it is not fed and starts its consumer anew, where it
had stopped.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

from nats.aio.msg import Msg

from pyoco_server.domain.wire import Unreadable
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import ApiError, NatsConnection
from pyoco_server.jetstream.pull import PullConsumer
from pyoco_server.jetstream.streams import NANOSECONDS, NOT_FOUND
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports import Change, FeedBatch, FeedPosition, Revision

log = get_logger(__name__)
T = TypeVar("T")

BATCH = 500
INACTIVE_SEC = 60.0
"""The server removes a consumer that nobody asked for so long: a killed gateway leaves nothing behind."""
RETRY_SEC = 0.5


class StreamFeed(Generic[T]):
    """The messages of a stream whose subjects are a prefix and a key: to begin with, the last of each key."""

    deliver_policy = "last_per_subject"

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        prefix: str,
        decode: Callable[[bytes], T],
        restore: Callable[[], Awaitable[object]],
    ) -> None:
        """`restore` makes the stream again, for when somebody deleted it under us."""
        self._connection = connection
        self._restore = restore
        self._stream = stream
        self._prefix = f"{prefix}."
        self._decode = decode
        self._max_age = 0.0

    async def follow(self, position: FeedPosition | None) -> AsyncIterator[FeedBatch[T]]:
        """Changes after `position` (None: every key once, then what happens to it), for ever."""
        while True:
            try:
                reading = await self._start(position)
            except NatsUnavailable as error:
                log.warning(
                    "a feed cannot be read yet", action="feed.waiting", stream=self._stream, exc_info=error
                )
                await asyncio.sleep(RETRY_SEC)
                continue
            try:
                async for batch in reading.batches():
                    position = batch.position
                    yield batch
            finally:
                await reading.close()
            log.info("a feed starts its consumer anew", action="feed.restarted", stream=self._stream)

    async def _start(self, position: FeedPosition | None) -> "_Reading[T]":
        info = await self._stream_info()
        created = info["created"]
        # Another stream under the same name, one that was rolled back, or one of which nothing that we have
        # read is left: what we know is worth nothing.
        known = (
            position is not None
            and position.stream_created == created
            and info["state"]["first_seq"] <= position.last_revision <= info["state"]["last_seq"]
        )
        start = position if known else None
        consumer = await self._create_consumer(start)
        self._max_age = info["config"].get("max_age", 0) / NANOSECONDS
        reading = _Reading(
            self._connection,
            self._stream,
            consumer["name"],
            self._change,
            start or FeedPosition(created, Revision(0)),
        )
        await reading.open(is_reset=start is None, is_empty=consumer["num_pending"] == 0)
        return reading

    async def _stream_info(self) -> dict[str, Any]:
        try:
            return await self._connection.api(f"STREAM.INFO.{self._stream}")
        except ApiError as error:
            if error.err_code != NOT_FOUND:
                raise
        log.error("a bucket was deleted; making it anew", action="feed.restore", stream=self._stream)
        await self._restore()
        return await self._connection.api(f"STREAM.INFO.{self._stream}")

    async def _create_consumer(self, start: FeedPosition | None) -> dict[str, Any]:
        config: dict[str, Any] = {
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE_SEC * NANOSECONDS),
            "deliver_policy": self.deliver_policy,
            "filter_subject": f"{self._prefix}>",
        }
        if start is not None:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start.last_revision + 1}
        return await self._connection.api(
            f"CONSUMER.CREATE.{self._stream}", {"stream_name": self._stream, "config": config}
        )

    def _change(self, message: Msg, revision: int, at: float) -> Change[T]:
        """What cannot be read is as good as removed: it must not be shown as it was before."""
        headers = message.headers or {}
        key = message.subject[len(self._prefix) :]
        if "KV-Operation" in headers or "Nats-Marker-Reason" in headers:
            return Change(key, Revision(revision), None, None)
        try:
            value = self._decode(message.data)
        except Unreadable as error:
            log.warning(
                "unreadable data in a bucket is left out",
                action="feed.unreadable",
                stream=self._stream,
                key=key,
                exc_info=error,
            )
            return Change(key, Revision(revision), None, None)
        expires_at = _expiry(headers.get("Nats-TTL"), self._max_age, at)
        return Change(key, Revision(revision), value, expires_at, at)


class BucketFeed(StreamFeed[T]):
    def __init__(
        self,
        connection: NatsConnection,
        bucket: str,
        decode: Callable[[bytes], T],
        restore: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(connection, f"KV_{bucket}", f"$KV.{bucket}", decode, restore)


class _Reading(Generic[T]):
    """One consumer's life."""

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        consumer: str,
        to_change: Callable[[Msg, int, float], Change[T]],
        position: FeedPosition,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        self._to_change = to_change
        self._position = position
        self._arrived: list[Msg] = []
        self._wake = asyncio.Event()
        self._pull = PullConsumer(connection, stream, consumer, self._receive, self._wake.set)

    async def open(self, *, is_reset: bool, is_empty: bool) -> None:
        self._is_reset = is_reset
        self._is_empty = is_empty
        await self._pull.open()

    async def batches(self) -> AsyncIterator[FeedBatch[T]]:
        """Ends when the server refuses to go on with this consumer."""
        if self._is_reset or self._is_empty:
            yield FeedBatch([], self._position, is_reset=self._is_reset, is_caught_up=self._is_empty)
        while self._pull.refusal is None:
            await self._pull.ask(BATCH)
            await self._pull.wait(self._wake)
            if self._arrived:
                messages, self._arrived = self._arrived, []
                yield self._batch(messages)

    def _receive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._wake.set()

    def _batch(self, messages: list[Msg]) -> FeedBatch[T]:
        changes, pending, revision = [], 0, self._position.last_revision
        for message in messages:
            sequence, at, pending = _delivery_facts(message)
            revision = Revision(max(revision, sequence))
            changes.append(self._to_change(message, sequence, at))
        self._position = FeedPosition(self._position.stream_created, revision)
        return FeedBatch(changes, self._position, is_reset=False, is_caught_up=pending == 0)

    async def close(self) -> None:
        await self._pull.close()
        if self._connection.is_connected:
            try:
                await self._connection.api(f"CONSUMER.DELETE.{self._stream}.{self._consumer}")
            except NatsUnavailable as error:
                # It goes by itself when nobody asks for it; raised, this would end the feed with it.
                log.debug("a feed's consumer could not be removed", action="feed.closed", exc_info=error)


_FIELDS_V1 = 9
"""`$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>`; the newer form
has a domain and an account in front of the stream, and a token behind."""


def _delivery_facts(message: Msg) -> tuple[int, float, int]:
    """Stream sequence, unix seconds and what is still pending, from the reply subject.

    Read by hand: the library builds a dozen objects for it, which would double the cost of a message.
    """
    tokens = message.reply.split(".")
    shift = 0 if len(tokens) == _FIELDS_V1 else 2
    return int(tokens[5 + shift]), int(tokens[7 + shift]) / NANOSECONDS, int(tokens[8 + shift])


def _expiry(ttl: str | None, max_age: float, at: float) -> float | None:
    """When a message is gone: by its own time to live, or by the age limit of its stream."""
    if ttl == "never":
        return None
    seconds = (_parse_duration(ttl) if ttl else None) or max_age
    return at + seconds if seconds else None


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def _parse_duration(text: str) -> float | None:
    """Seconds, or a duration as Go writes it (`1h30m`)."""
    if text.isdigit():
        return float(text)
    total, number = 0.0, ""
    for character in text:
        if character.isdigit() or character == ".":
            number += character
        elif character in _UNITS and number:
            total += float(number) * _UNITS[character]
            number = ""
        else:
            return None
    return total
