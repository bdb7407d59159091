"""Pull requests on one consumer, with detection of lost requests, which have to be repeated."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec
from nats.aio.msg import Msg
from nats.errors import BadSubscriptionError

from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import (
    CONSUMER_EXISTS,
    NANOSECONDS,
    ApiError,
    KeptSubscription,
    NatsConnection,
    translated,
)
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.stores import Revision

log = get_logger(__name__)

EXPIRES_SEC = 30.0
HEARTBEAT_SEC = 5.0
SILENCE_GRACE_SEC = 1.0
"""After two heartbeats and this without any message the requests are lost (e.g. a broken route)."""
RETRY_SEC = 0.25
"""Pause after a refused request, so that a missing consumer causes no tight loop."""

_IDLE_HEARTBEAT = "100"
_LAST_SENT = "Nats-Last-Consumer"
_ENDED_NORMALLY = frozenset({"404", "408"})


class PullConsumer:
    """Keeps the wanted number of messages requested; `on_message` receives them.

    `on_ended` is called when a request ended with fewer messages, so that the caller can ask again.
    `on_heartbeat` receives the number of the last message the server has sent on this consumer. For an
    unshared consumer, a number above the received ones means a lost message.
    """

    def __init__(  # noqa: PLR0913 - each caller names what it needs
        self,
        connection: NatsConnection,
        stream: str,
        consumer: str,
        on_message: Callable[[Msg], None],
        on_ended: Callable[[], None],
        *,
        on_heartbeat: Callable[[int], None] = lambda _: None,
        heartbeat: float = HEARTBEAT_SEC,
        is_direct: bool = False,
    ) -> None:
        """`is_direct`: `on_message` does next to nothing, and is called where the connection is read."""
        self._is_direct = is_direct
        self._connection = connection
        self._subject = connection.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{consumer}")
        self._consumer = consumer
        self._on_message = on_message
        self._on_ended = on_ended
        self._on_heartbeat = on_heartbeat
        self._heartbeat = heartbeat
        self._silence = 2 * heartbeat + SILENCE_GRACE_SEC
        self._inbox = ""
        self._subscription: KeptSubscription | None = None
        self._open: dict[str, int] = {}
        """The inbox of each open request, oldest first, and its outstanding messages."""
        self._numbers = 0
        self._last_contact = 0.0
        self._received_at = float("-inf")
        self._not_before = 0.0
        self.is_idle = False
        """Whether the last status reported an empty backlog."""
        self.refusal: str | None = None
        """The reason why the server refused the last request, e.g. a missing consumer."""

    async def open(self) -> None:
        await self._subscribe()
        self._connection.on_reconnect(self.forget)

    async def _subscribe(self) -> None:
        inbox = self._connection.new_inbox()
        if self._is_direct:
            self._subscription = await self._connection.subscribe_directly(
                f"{inbox}.*", partial(self._take, inbox)
            )
        else:
            self._subscription = await self._connection.subscribe(
                f"{inbox}.*", partial(self._received, inbox)
            )
        self._inbox = inbox  # only now, so that no request precedes the subscription

    async def close(self) -> None:
        if self._subscription is None:
            return
        self._connection.forget_callback(self.forget)
        if self._connection.is_connected:
            with suppress(BadSubscriptionError):  # already unsubscribed
                await self._subscription.unsubscribe()
        self._subscription = None

    @property
    def is_silent(self) -> bool:
        """Whether the open requests are lost."""
        return bool(self._open) and _now() - self._last_contact > self._silence

    @property
    def requested(self) -> int:
        """Number of outstanding messages."""
        if self.is_silent:
            self._open.clear()
        return sum(self._open.values())

    @property
    def silent_for(self) -> float:
        """Seconds since the last message from the server."""
        return _now() - self._received_at

    @property
    def wait_before_asking(self) -> float:
        return max(0.0, self._not_before - _now())

    def forget(self) -> None:
        """Drop the open requests, e.g. after a reconnect."""
        self._open.clear()
        self.is_idle = False
        self._on_ended()

    async def withdraw(self) -> None:
        """Cancel the open requests by dropping their inbox.

        Messages in transit are still delivered.
        """
        if not self._open or self._subscription is None or not self._connection.is_connected:
            return
        withdrawn = self._subscription
        self._open.clear()
        await self._subscribe()
        with translated():
            await withdrawn.drain()

    async def ask(self, wanted: int) -> None:
        """Keep `wanted` messages requested. A small shortfall waits, because each request costs a message."""
        lacking = wanted - self.requested
        if lacking > wanted // 2:
            await self._request(
                {
                    "batch": lacking,
                    "expires": int(EXPIRES_SEC * NANOSECONDS),
                    "idle_heartbeat": int(self._heartbeat * NANOSECONDS),
                }
            )

    async def ask_now(self, wanted: int) -> None:
        """Request up to `wanted` of the messages stored now; with fewer the request ends."""
        await self._request({"batch": wanted, "no_wait": True})

    async def _request(self, body: dict[str, Any]) -> None:
        if self.wait_before_asking > 0:
            return
        self._numbers += 1
        reply = f"{self._inbox}.{self._numbers}"
        self._open[reply] = body["batch"]
        self._last_contact = _now()
        try:
            await self._connection.publish(self._subject, msgspec.json.encode(body), reply=reply)
        except NatsUnavailable:
            self._end(reply, RETRY_SEC)

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for `event`, or until it is time to ask again. Clears the event.

        Not `wait_for`, which can lose a cancellation before Python 3.12.
        """
        if not event.is_set():
            pause = self.wait_before_asking or max(0.0, self._last_contact + self._silence - _now())
            waiter = asyncio.ensure_future(event.wait())
            try:
                await asyncio.wait({waiter}, timeout=pause)
            finally:
                waiter.cancel()
        event.clear()

    async def _received(self, inbox: str, message: Msg) -> None:
        self._take(inbox, message)

    def _take(self, inbox: str, message: Msg) -> None:
        """A message keeps its stored subject; only a status has the inbox of its request as subject."""
        status = (message.headers or {}).get("Status")
        self._received_at = _now()
        if inbox != self._inbox:
            if status is None:
                self._on_message(message)
        elif status is None:
            self._last_contact = self._received_at
            self.is_idle = False
            self._count_arrival()
            self._on_message(message)
        elif status == _IDLE_HEARTBEAT:
            self._last_contact = self._received_at
            self.is_idle = message.subject in self._open
            if self.is_idle:
                self._on_heartbeat(int((message.headers or {}).get(_LAST_SENT, "0")))
        elif message.subject in self._open:
            self._ended(message.subject, status, (message.headers or {}).get("Description", ""))

    def _count_arrival(self) -> None:
        """The server serves requests in order."""
        oldest = next(iter(self._open), None)
        if oldest is None:
            return
        self._open[oldest] -= 1
        if self._open[oldest] <= 0:
            del self._open[oldest]

    def _ended(self, request: str, status: str, description: str) -> None:
        if status in _ENDED_NORMALLY:
            self._end(request, 0.0)
            return
        self.refusal = description or status
        log.info(
            "the server ended a pull request",
            action="pull.refused",
            consumer=self._consumer,
            status=status,
            reason=description,
        )
        self._end(request, RETRY_SEC)

    def _end(self, request: str, pause: float) -> None:
        self._open.pop(request, None)
        self._not_before = _now() + pause
        self._on_ended()


def _now() -> float:
    return asyncio.get_running_loop().time()


# Delivery facts, encoded in the reply subject of a message.


class DeliveryFacts(NamedTuple):
    revision: Revision
    number: int
    """Consumer sequence from 1; proves that nothing was missed."""
    at: float
    """Unix time of storage."""
    pending: int
    """Backlog after this message."""


_FIELDS_V1 = 9
"""`$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>`; the newer form
adds a domain and an account before the stream, and a token at the end."""


def delivery_facts(message: Msg) -> DeliveryFacts:
    """Parsed by hand, because the library creates a dozen objects, which doubles the cost of a message."""
    _, revision, number, at, pending = _numbers(message)
    return DeliveryFacts(Revision(int(revision)), int(number), int(at) / NANOSECONDS, int(pending))


def times_delivered(message: Msg) -> int:
    """1 for the first delivery."""
    return int(_numbers(message)[0])


def sequence_in_stream(message: Msg) -> int:
    """The same at every delivery."""
    return int(_numbers(message)[1])


def _numbers(message: Msg) -> list[str]:
    tokens = message.reply.split(".")
    shift = 0 if len(tokens) == _FIELDS_V1 else 2
    return tokens[4 + shift : 9 + shift]


# One durable consumer for all gateways

SHARED_BATCH = 20
SHARED_ACK_WAIT_SEC = 30.0
"""Time until another gateway retries after a crash or NATS failure."""
RESTORE_SEC = 0.5


class SharedConsumer:
    """Each message goes to one of all gateways, and to another one if it is not acknowledged."""

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        durable: str,
        ensure_stream: Callable[[], Awaitable[object]],
        *,
        subject: str | None = None,
        ack_wait_sec: float = SHARED_ACK_WAIT_SEC,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._durable = durable
        self._ensure_stream = ensure_stream
        self._subject = subject
        self._ack_wait_sec = ack_wait_sec
        self._arrived: deque[Msg] = deque()
        self._wake = asyncio.Event()

    async def messages(self) -> AsyncIterator[Msg]:
        """Without end."""
        pull = PullConsumer(self._connection, self._stream, self._durable, self._receive, self._wake.set)
        pull.refusal = "not requested yet"
        await pull.open()
        try:
            while True:
                if pull.refusal is not None:
                    await self._restore(pull)
                await pull.ask(SHARED_BATCH)
                await pull.wait(self._wake)
                while self._arrived:
                    yield self._arrived.popleft()
        finally:
            self._arrived.clear()
            await pull.close()

    def _receive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._wake.set()

    async def _restore(self, pull: PullConsumer) -> None:
        """Recreate a deleted stream or consumer."""
        try:
            await self._ensure_stream()
            await self._ensure_consumer()
        except NatsUnavailable as error:
            log.warning(
                "consumer not available yet; retrying",
                action="consumer.waiting",
                stream=self._stream,
                consumer=self._durable,
                exc_info=error,
            )
            await asyncio.sleep(RESTORE_SEC)
        else:
            pull.refusal = None

    async def _ensure_consumer(self) -> None:
        consumer = {
            "durable_name": self._durable,
            "name": self._durable,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait_sec * NANOSECONDS),
            "max_deliver": -1,
            **({} if self._subject is None else {"filter_subject": self._subject}),
        }
        target = f"CONSUMER.CREATE.{self._stream}.{self._durable}"
        try:
            await self._connection.api(
                target if self._subject is None else f"{target}.{self._subject}",
                {"stream_name": self._stream, "config": consumer, "action": "create"},
            )
        except ApiError as error:
            if error.err_code not in CONSUMER_EXISTS:
                raise
