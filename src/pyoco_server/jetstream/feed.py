"""Every change of a bucket or stream, in order, from one ephemeral pull consumer: the input of read models.

Never `kv.watch` or `kv.keys`: they take one consumer per caller, do not scale with the number of keys, and
stop delivering after some reconnects. This feed detects missing messages and restarts its consumer at its
last position. Nothing is acknowledged, and a killed gateway leaves no consumer behind.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

from nats.aio.msg import Msg

from pyoco_server.domain.codec import Unreadable
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import (
    CONSUMER_NOT_FOUND,
    NANOSECONDS,
    NOT_FOUND,
    ApiError,
    NatsConnection,
)
from pyoco_server.jetstream.kv import is_removal
from pyoco_server.jetstream.pull_consumer import DeliveryFacts, PullConsumer, delivery_facts
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.stores import NO_HORIZON, Change, FeedBatch, FeedPosition, Revision

INACTIVE_SEC = 60.0
"""The server removes a consumer after this time without requests."""


async def create_ephemeral_consumer(
    connection: NatsConnection,
    stream: str,
    subject: str,
    *,
    name: str | None = None,
    deliver_policy: str = "last_per_subject",
    after: Revision | None = None,
) -> dict[str, Any]:
    """The consumer info, with its name (chosen by the server if not given) and `num_pending`.

    `after`: start after this revision.
    """
    config: dict[str, Any] = {
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(INACTIVE_SEC * NANOSECONDS),
        "deliver_policy": deliver_policy,
        "filter_subject": subject,
    }
    if after is not None:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
    if name is None:
        return await connection.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
    return await connection.api(
        f"CONSUMER.CREATE.{stream}.{name}.{subject}",
        {"stream_name": stream, "config": {**config, "name": name}, "action": "create"},
    )


async def delete_ephemeral_consumer(connection: NatsConnection, stream: str, name: str) -> None:
    """No error if it is gone."""
    try:
        await connection.api(f"CONSUMER.DELETE.{stream}.{name}")
    except ApiError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise


# Freshness of a feed

HEARTBEAT_SEC = 2.0
CONTACT_SEC = 2 * HEARTBEAT_SEC + 1.0
"""After this time without contact the feed is stale, even if its connection seems healthy."""


class FeedContact:
    def __init__(self, is_connected: Callable[[], bool], now: Callable[[], float] = time.monotonic) -> None:
        self._is_connected = is_connected
        self._now = now
        self._confirmed_at: float | None = None
        self._was_interrupted = False
        self.missed_sec = 0.0
        """Total time the feed was stale."""

    def confirm(self) -> None:
        """The feed has caught up, or nearly."""
        now = self._now()
        if self._confirmed_at is not None and (self._was_interrupted or self._is_over(now)):
            self.missed_sec += now - self._confirmed_at
        self._confirmed_at = now
        self._was_interrupted = False

    def interrupt(self) -> None:
        """The connection was lost: the feed is stale until the next confirmation."""
        self._was_interrupted = True

    @property
    def stale_sec(self) -> float:
        """Seconds since the feed was up to date; 0 if it is, or before the first catch-up."""
        if self._confirmed_at is None:
            return 0.0
        now = self._now()
        if self._is_connected() and not self._was_interrupted and not self._is_over(now):
            return 0.0
        return max(now - self._confirmed_at, 0.001)

    def _is_over(self, now: float) -> bool:
        return self._confirmed_at is not None and now - self._confirmed_at > CONTACT_SEC


# The feed

log = get_logger(__name__)
T = TypeVar("T")

BATCH = 500
PORTION_BYTES = 256 * 1024
RETRY_SEC = 0.5
NEARLY_ALL = 1000
"""Backlog with which a feed still counts as up to date; it is read within a tenth of a second."""


class StreamFeed(Generic[T]):
    """The messages of a stream with subjects of a prefix and a key, starting with the last of each key."""

    deliver_policy = "last_per_subject"

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        prefix: str,
        decode: Callable[[bytes], T],
        restore: Callable[[], Awaitable[object]],
    ) -> None:
        """`restore` recreates a deleted stream."""
        self._connection = connection
        self._restore = restore
        self._stream = stream
        self._prefix = f"{prefix}."
        self._decode = decode
        self._max_age = 0.0
        self._contact = FeedContact(lambda: connection.is_connected)
        connection.on_reconnect(self._contact.interrupt)

    @property
    def stale_sec(self) -> float:
        return self._contact.stale_sec

    @property
    def missed_sec(self) -> float:
        return self._contact.missed_sec

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[T], None]:
        """Changes after `position`, without end; None: every key once, then its changes."""
        while True:
            try:
                reading = await self._start(position)
            except NatsUnavailable as error:
                log.warning(
                    "feed not available yet; retrying",
                    action="feed.waiting",
                    stream=self._stream,
                    exc_info=error,
                )
                await asyncio.sleep(RETRY_SEC)
                continue
            try:
                async for batch in reading.batches():
                    position = batch.position
                    yield batch
            finally:
                await reading.close()
            log.info("restarting the consumer of a feed", action="feed.restarted", stream=self._stream)

    async def _start(self, position: FeedPosition | None) -> "_Reading[T]":
        info = await self._stream_info()
        created = info["created"]
        # A new stream under the same name, a rolled-back stream, or one without any message that we have
        # read: the position is not valid any more.
        known = (
            position is not None
            and position.stream_created == created
            and info["state"]["first_seq"] <= position.last_revision <= info["state"]["last_seq"]
        )
        start = position if known else None
        consumer = await create_ephemeral_consumer(
            self._connection,
            self._stream,
            f"{self._prefix}>",
            deliver_policy=self.deliver_policy,
            after=None if start is None else start.last_revision,
        )
        self._max_age = info["config"].get("max_age", 0) / NANOSECONDS
        reading = _Reading(
            self._connection,
            self._stream,
            consumer["name"],
            self._change,
            start or FeedPosition(created, Revision(0)),
            self._contact,
        )
        horizon = Revision(info["state"]["last_seq"]) if start is None else NO_HORIZON
        await reading.open(is_reset=start is None, pending=consumer["num_pending"], horizon=horizon)
        return reading

    async def end(self) -> FeedPosition:
        """The position after everything that is stored now."""
        info = await self._stream_info()
        return FeedPosition(info["created"], Revision(info["state"]["last_seq"]))

    async def _stream_info(self) -> dict[str, Any]:
        try:
            return await self._connection.api(f"STREAM.INFO.{self._stream}")
        except ApiError as error:
            if error.err_code != NOT_FOUND:
                raise
        log.error("a bucket was deleted; recreating it", action="feed.restore", stream=self._stream)
        await self._restore()
        return await self._connection.api(f"STREAM.INFO.{self._stream}")

    def _change(self, message: Msg, facts: DeliveryFacts) -> Change[T]:
        """Unreadable data counts as removed, so that the previous value is not shown."""
        headers = message.headers or {}
        key = message.subject[len(self._prefix) :]
        if is_removal(headers):
            return Change(key, facts.revision, None, None)
        try:
            value = self._decode(message.data)
        except Unreadable as error:
            log.warning(
                "skipped unreadable data in a bucket",
                action="feed.unreadable",
                stream=self._stream,
                key=key,
                exc_info=error,
            )
            return Change(key, facts.revision, None, None)
        expires_at = _expiry(headers.get("Nats-TTL"), self._max_age, facts.at)
        return Change(key, facts.revision, value, expires_at, facts.at)


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
    """Reading with one consumer."""

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        consumer: str,
        to_change: Callable[[Msg, DeliveryFacts], Change[T]],
        position: FeedPosition,
        contact: FeedContact,
    ) -> None:
        self._contact = contact
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        self._to_change = to_change
        self._position = position
        self._arrived: list[Msg] = []
        self._next = 1
        self._is_in_doubt = False
        """After a reconnect sent messages may be lost, and the server does not resend them."""
        self._has_missed = False
        self._wake = asyncio.Event()
        self._pull = PullConsumer(
            connection,
            stream,
            consumer,
            self._receive,
            self._wake.set,
            on_heartbeat=self._compare,
            heartbeat=HEARTBEAT_SEC,
            is_direct=True,
        )

    async def open(self, *, is_reset: bool, pending: int, horizon: Revision) -> None:
        self._is_reset = is_reset
        self._pending = pending
        self._horizon = horizon
        await self._pull.open()
        self._connection.on_reconnect(self._doubt)

    async def batches(self) -> AsyncIterator[FeedBatch[T]]:
        """Ends when the consumer is no longer usable.

        The server refused a request, a message was missed, or the consumer is silent: it lives on one node,
        which may be partitioned from the others.
        """
        if not self._pending:
            self._contact.confirm()
        yield FeedBatch(
            [],
            self._position,
            is_reset=self._is_reset,
            is_caught_up=not self._pending,
            pending=self._pending,
            horizon=self._horizon,
        )
        while self._pull.refusal is None and not self._has_missed:
            if self._pull.is_silent or (self._is_in_doubt and await self._is_behind()):
                return
            await self._pull.ask(BATCH)
            await self._pull.wait(self._wake)
            while self._arrived and not self._has_missed:
                yield self._batch(self._portion())
                await asyncio.sleep(0)

    def _portion(self) -> list[Msg]:
        """The next messages, limited so that decoding blocks the event loop for a few milliseconds only."""
        size = count = 0
        while count < len(self._arrived) and size < PORTION_BYTES:
            size += len(self._arrived[count].data)
            count += 1
        portion, self._arrived = self._arrived[:count], self._arrived[count:]
        return portion

    def _doubt(self) -> None:
        self._is_in_doubt = True
        self._wake.set()

    async def _is_behind(self) -> bool:
        """Whether the consumer has sent more than has arrived; True if unknown."""
        self._is_in_doubt = False
        try:
            info = await self._connection.api(f"CONSUMER.INFO.{self._stream}.{self._consumer}")
        except NatsUnavailable:
            return True
        sent: int = info["delivered"]["consumer_seq"]
        is_behind = self._lacks(sent)
        if not is_behind and info["num_pending"] <= NEARLY_ALL:
            self._contact.confirm()
        return is_behind

    def _compare(self, sent: int) -> None:
        """Detect a lost last message, which no later message would reveal."""
        if self._lacks(sent):
            self._has_missed = True
            self._wake.set()
        else:
            self._contact.confirm()

    def _lacks(self, sent: int) -> bool:
        return sent >= self._next + len(self._arrived)

    def _receive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._wake.set()

    def _batch(self, messages: list[Msg]) -> FeedBatch[T]:
        changes, pending, revision = [], 0, self._position.last_revision
        for message in messages:
            facts = delivery_facts(message)
            if facts.number != self._next:
                self._has_missed = True
                break
            self._next += 1
            pending = facts.pending
            revision = max(revision, facts.revision)
            changes.append(self._to_change(message, facts))
        self._position = FeedPosition(self._position.stream_created, revision)
        is_caught_up = pending == 0 and not self._has_missed
        if pending <= NEARLY_ALL and not self._has_missed:
            self._contact.confirm()
        return FeedBatch(changes, self._position, is_reset=False, is_caught_up=is_caught_up, pending=pending)

    async def close(self) -> None:
        self._connection.forget_callback(self._doubt)
        await self._pull.close()
        if self._connection.is_connected:
            try:
                await delete_ephemeral_consumer(self._connection, self._stream, self._consumer)
            except NatsUnavailable as error:
                # The server removes it when inactive; raising would end the feed.
                log.debug("cannot remove the consumer of a feed", action="feed.closed", exc_info=error)


def _expiry(ttl: str | None, max_age: float, at: float) -> float | None:
    """When a message expires, by its own TTL or the age limit of its stream."""
    if ttl == "never":
        return None
    seconds = (_parse_duration(ttl) if ttl else None) or max_age
    return at + seconds if seconds else None


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


@lru_cache(maxsize=1024)
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
