"""API key records in their bucket, by `record_key(key_id)`, and a feed that keeps all of them in memory.

The feed's pull consumer has no acknowledgements, so its sequence numbers prove that nothing was missed. After
a gap, a reconnect or a lost consumer the feed reads everything from the start, because a removed key leaves
no position to continue from.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from nats.aio.msg import Msg

from pyoco_server.domain import codec
from pyoco_server.domain.auth import ApiKeyRecord, record_key
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import REQUEST_TIMEOUT_SEC, NatsConnection
from pyoco_server.jetstream.feed import create_ephemeral_consumer, delete_ephemeral_consumer
from pyoco_server.jetstream.kv import KvStore, is_removal
from pyoco_server.jetstream.pull_consumer import PullConsumer, delivery_facts
from pyoco_server.logs import best_effort, get_logger, surviving

log = get_logger(__name__)

HEARTBEAT_SEC = 0.25
CURRENT_SEC = 0.75
"""After a longer silence the store is read directly, so that a revocation takes effect within a second."""
CHECK_SEC = 0.5
"""How often the feed checks for a lost request."""
BATCH = 1_000
STOP_TIMEOUT_SEC = 2 * REQUEST_TIMEOUT_SEC


class JetStreamApiKeyFeed:
    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection = connection
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}.{record_key('')}"
        self._name = f"pyoco_api_keys_{uuid4().hex}"
        self._wake = asyncio.Event()
        self._consumer = PullConsumer(
            connection,
            self._stream,
            self._name,
            self._arrived,
            self._wake.set,
            on_heartbeat=self._compare,
            heartbeat=HEARTBEAT_SEC,
        )
        self._records: dict[str, ApiKeyRecord] = {}
        self._next = 1
        self._lost = True
        self._caught_up = asyncio.Event()
        self._stopping = False

    @property
    def is_current(self) -> bool:
        return (
            self._caught_up.is_set()
            and not self._lost
            and self._consumer.refusal is None
            and self._consumer.silent_for < CURRENT_SEC
        )

    def known(self, key_id: str) -> ApiKeyRecord | None:
        return self._records.get(key_id)

    async def all_records(self) -> list[ApiKeyRecord]:
        """Raises NatsUnavailable after a timeout."""
        waiter = asyncio.ensure_future(self._caught_up.wait())
        done, _ = await asyncio.wait({waiter}, timeout=STOP_TIMEOUT_SEC)
        waiter.cancel()
        if not done:
            raise NatsUnavailable("nats unavailable: the API keys could not be read in time")
        return list(self._records.values())

    async def open(self) -> None:
        await self._consumer.open()
        self._connection.on_reconnect(self._mark_lost)
        self._following = asyncio.ensure_future(self._follow())

    async def close(self) -> None:
        self._stopping = True
        self._wake.set()
        self._connection.forget_callback(self._mark_lost)
        # Stopped by a flag, because before Python 3.12 a cancellation can get lost inside a request.
        done, _ = await asyncio.wait({self._following}, timeout=STOP_TIMEOUT_SEC)
        if not done:
            self._following.cancel()
        with best_effort(log, "api_keys.unfollow", NatsUnavailable):
            await self._consumer.close()
            if self._connection.is_connected:
                await delete_ephemeral_consumer(self._connection, self._stream, self._name)

    async def _follow(self) -> None:
        while not self._stopping:
            self._wake.clear()
            with surviving(log, "api_keys.follow", NatsUnavailable):
                await self._step()
            await self._wait()

    async def _step(self) -> None:
        if not self._connection.is_connected:
            return
        if self._lost or self._consumer.refusal is not None:
            await self._start_over()
        await self._consumer.ask(BATCH)
        if self._consumer.is_idle:
            # The last pending record may have been removed before it was sent.
            self._caught_up.set()

    async def _start_over(self) -> None:
        self._caught_up.clear()
        # Before the requests, so that a reconnect during them is not overlooked.
        self._lost = False
        try:
            await delete_ephemeral_consumer(self._connection, self._stream, self._name)
            self._records.clear()
            self._next = 1
            reader = await create_ephemeral_consumer(
                self._connection, self._stream, f"{self._prefix}*", name=self._name
            )
        except BaseException:
            self._lost = True
            raise
        self._consumer.refusal = None
        self._consumer.forget()
        if not reader.get("num_pending"):
            self._caught_up.set()

    def _mark_lost(self) -> None:
        self._lost = True
        self._wake.set()

    def _compare(self, sent: int) -> None:
        """Detect a lost last message; no later message would reveal the gap."""
        if sent >= self._next:
            self._mark_lost()

    def _arrived(self, message: Msg) -> None:
        facts = delivery_facts(message)
        if facts.number != self._next:
            self._mark_lost()
            return
        self._next += 1
        self._take(message)
        if facts.pending == 0:
            self._caught_up.set()
        self._wake.set()

    def _take(self, message: Msg) -> None:
        key_id = message.subject.removeprefix(self._prefix)
        self._records.pop(key_id, None)  # reinserted at the end, to keep the order of changes
        if is_removal(message.headers or {}):
            return
        try:
            self._records[key_id] = codec.decode_api_key(message.data)
        except codec.Unreadable as error:
            log.warning(
                "API key record is unreadable; the key is refused",
                action="api_keys.unreadable",
                key_id=key_id,
                exc_info=error,
            )

    async def _wait(self) -> None:
        waiter = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({waiter}, timeout=CHECK_SEC)
        finally:
            waiter.cancel()


class JetStreamApiKeys(KvStore[ApiKeyRecord]):
    def __init__(self, connection: NatsConnection, bucket: str, stream_config: dict[str, Any]) -> None:
        super().__init__(connection, bucket, stream_config, codec.encode, codec.decode_api_key)
        self._bucket = bucket

    async def list_keys(self) -> list[ApiKeyRecord]:
        """Read from the bucket's stream, because listing its keys does not scale and is unreliable."""
        async with self.follow_keys() as feed:
            return await feed.all_records()

    @asynccontextmanager
    async def follow_keys(self) -> AsyncIterator[JetStreamApiKeyFeed]:
        feed = JetStreamApiKeyFeed(self._connection, self._bucket)
        await feed.open()
        try:
            yield feed
        finally:
            await feed.close()
