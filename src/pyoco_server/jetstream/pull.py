"""Pull requests on one consumer: our own loop, because a request that falls silent must be asked again."""

import asyncio
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.streams import NANOSECONDS
from pyoco_server.logs import get_logger

log = get_logger(__name__)

EXPIRES_SEC = 30.0
HEARTBEAT_SEC = 5.0
SILENCE_SEC = 2 * HEARTBEAT_SEC + 1.0
"""No message, heartbeat or end for so long: the request is lost (a server restarted, a route broke)."""
RETRY_SEC = 0.25
"""After the server refused a request, so that a missing consumer is not asked for in a tight loop."""

_IDLE_HEARTBEAT = "100"
_ENDED_NORMALLY = frozenset({"404", "408"})


class PullConsumer:
    """At most one open request at a time; `on_message` gets what arrives, `on_ended` wakes who wants more."""

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        consumer: str,
        on_message: Callable[[Msg], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._consumer = consumer
        self._on_message = on_message
        self._on_ended = on_ended
        self._inbox = connection.new_inbox()
        self._subscription: Subscription | None = None
        self._missing = 0
        self._last_sign = 0.0
        self._not_before = 0.0
        self._request = 0
        self.refusal: str | None = None
        """What the server said when it refused the last request, say that the consumer is gone."""

    async def open(self) -> None:
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._received)
        self._connection.on_reconnect(self.forget)

    async def close(self) -> None:
        if self._subscription is not None and self._connection.is_connected:
            await self._subscription.unsubscribe()
        self._subscription = None

    @property
    def is_asking(self) -> bool:
        return self._missing > 0 and _now() - self._last_sign < SILENCE_SEC

    @property
    def wait_before_asking(self) -> float:
        return max(0.0, self._not_before - _now())

    def forget(self) -> None:
        """The open request is worth nothing any more (say, after a reconnect)."""
        self._missing = 0
        self._on_ended()

    async def ask(self, batch: int) -> None:
        """Ask for `batch` messages unless a request is open."""
        if self.is_asking or self.wait_before_asking > 0:
            return
        self._request += 1
        self._missing = batch
        self._last_sign = _now()
        body = {
            "batch": batch,
            "expires": int(EXPIRES_SEC * NANOSECONDS),
            "idle_heartbeat": int(HEARTBEAT_SEC * NANOSECONDS),
        }
        reply = f"{self._inbox}.{self._request}"
        try:
            await self._connection.publish(self._subject, msgspec.json.encode(body), reply=reply)
        except NatsUnavailable:
            self._end(RETRY_SEC)

    async def _received(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status is None:
            # A job arrives under its own subject, so it cannot be told which request it answers. One that
            # answers an earlier request counts for the open one: at worst one job too many is asked for.
            self._last_sign = _now()
            self._missing = max(0, self._missing - 1)
            self._on_message(message)
        elif status == _IDLE_HEARTBEAT:
            self._last_sign = _now()
        elif message.subject.endswith(f".{self._request}"):
            self._ended(status, (message.headers or {}).get("Description", ""))

    def _ended(self, status: str, description: str) -> None:
        if status in _ENDED_NORMALLY:
            self._end(0.0)
            return
        self.refusal = description or status
        log.info(
            "a pull request was ended by the server",
            action="pull.refused",
            consumer=self._consumer,
            status=status,
            reason=description,
        )
        self._end(RETRY_SEC)

    def _end(self, pause: float) -> None:
        self._missing = 0
        self._not_before = _now() + pause
        self._on_ended()


def _now() -> float:
    return asyncio.get_running_loop().time()
