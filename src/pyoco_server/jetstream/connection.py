"""A NATS connection that reconnects forever; the only place that translates errors of the nats library."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from pyoco_server.errors import IncompatibleNats, NatsUnauthorized, NatsUnavailable
from pyoco_server.jetstream.access import NO_ACCESS, Access, Client, no_tls, refusal_in, without_credentials
from pyoco_server.jetstream.request_reply import Requests
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.stores import WrongRevision

log = get_logger(__name__)

REQUEST_TIMEOUT_SEC = 2.0
"""A healthy server replies within milliseconds, and a waiting client gets its 503 soon."""
CONNECT_TIMEOUT_SEC = 2.0
RECONNECT_WAIT_SEC = 0.5
PING_SEC = 2.0
MAX_PINGS_OPEN = 2
"""Detects a server behind a broken network within seconds; then another server is tried."""
MIN_SERVER_VERSION = (2, 11)
MAX_SUBJECT = 900
"""Characters. The server ends a connection that sends a line of more than 4,096 bytes."""
_UNREACHABLE = (OSError, asyncio.TimeoutError, nats.errors.NoServersError, nats.errors.UnexpectedEOF)

_WRONG_LAST_SEQUENCE = 10071
"""The expected revision is not the stored one."""
_UNDECIDED = 10164
"""Refused because another write to the same subject is in progress and may or may not be stored."""
UNDECIDED_RETRY_SEC = 0.005
"""Replicas agree on a write within milliseconds, unless the network is partitioned."""
ATTEMPT_SEC = 10.0
"""Of a patient program, with one client of the library."""
DISCARD_SEC = 0.2
RETRY_SEC = 1.0
MAX_RETRY_SEC = 15.0
"""Pauses while login or TLS fail: a line in the log each, and no crowd at the server."""

NANOSECONDS = 1_000_000_000
"""JetStream's unit of time in a second."""
NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
CONSUMER_EXISTS = frozenset({10013, 10148, 10105})


class ApiError(NatsUnavailable):
    """An error returned by the JetStream API."""

    def __init__(self, err_code: int, description: str) -> None:
        super().__init__(f"jetstream: {description} (err_code {err_code})")
        self.err_code = err_code
        self.description = description


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


class PayloadTooLarge(Exception):
    """The message exceeds the server's max_payload."""


class ErrorInReply(msgspec.Struct):
    code: int = 500
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct):
    seq: int = 0
    duplicate: bool = False
    error: ErrorInReply | None = None


_pub_ack = msgspec.json.Decoder(PubAck)


@contextmanager
def translated() -> Iterator[None]:
    """Translate errors of the client library into ours."""
    try:
        yield
    except nats.errors.MaxPayloadError as error:
        raise PayloadTooLarge("message exceeds the server's max_payload") from error
    except (TimeoutError, nats.errors.Error, OSError) as error:
        raise NatsUnavailable(f"nats unavailable: {type(error).__name__}") from error


def raise_api_error(error: ErrorInReply) -> None:
    if error.err_code == _WRONG_LAST_SEQUENCE:
        raise WrongRevision(error.description)
    raise ApiError(error.err_code, error.description)


class KeptSubscription:
    """It is made again when the connection needs a new client."""

    def __init__(self, subscribe: Callable[[Client], Awaitable[Subscription]]) -> None:
        self._subscribe = subscribe

    async def begin(self, client: Client) -> None:
        self._current = await self._subscribe(client)

    async def unsubscribe(self) -> None:
        await self._current.unsubscribe()

    async def drain(self) -> None:
        await self._current.drain()  # type: ignore[no-untyped-call]


async def _discard(client: Client) -> None:
    """Its sockets too. After a failed TLS handshake the library waits for their end in vain."""
    with suppress(TimeoutError, nats.errors.Error, OSError):
        await asyncio.wait_for(client.close(), DISCARD_SEC)


class NatsConnection:
    def __init__(
        self,
        url: str,
        name: str,
        api_prefix: str = "$JS.API",
        *,
        access: Access = NO_ACCESS,
        request_timeout_sec: float = REQUEST_TIMEOUT_SEC,
    ) -> None:
        self._url = url
        self._access = access
        self.request_timeout_sec = request_timeout_sec
        self._api_prefix = api_prefix
        self._name = name
        self._client = Client()
        self._subscriptions: WeakSet[KeptSubscription] = WeakSet()
        self._on_reconnect: list[Callable[[], None]] = []
        self._refused = asyncio.Event()
        """Login or TLS has failed since the last successful connect."""
        self._refusal = ""
        self._is_opening = False
        self._is_closing = False
        self._reopening: asyncio.Future[None] | None = None
        self._pause_sec = RETRY_SEC

    async def open(self, *, patiently: bool = False) -> None:
        """Connect. `patiently` waits until a server is available; otherwise raises NatsUnavailable."""
        await self._establish(patiently=patiently)
        self._check_version()
        log.info("connected to NATS", action="nats.connected", url=without_credentials(self._url))

    async def _establish(self, *, patiently: bool) -> None:
        """With a new client for each attempt: the library stops trying after a failed TLS handshake."""
        self._is_opening = True
        try:
            while not await self._attempt(ATTEMPT_SEC if patiently else CONNECT_TIMEOUT_SEC * 2):
                if not patiently and self._refused.is_set():
                    raise NatsUnauthorized(self._refusal)
                if not patiently:
                    raise NatsUnavailable(f"no NATS server responds at {without_credentials(self._url)}")
                if self._refused.is_set():
                    self._report_refusal()
                    await self._back_off()
        finally:
            self._is_opening = False
        self._settle()

    async def _attempt(self, timeout_sec: float) -> bool:
        self._refused.clear()
        self._access.begin_attempt()
        self._client = Client()
        connecting = asyncio.ensure_future(self._connect(self._client))
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait(
                {connecting, refused}, timeout=timeout_sec, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            refused.cancel()
            connecting.cancel()  # it would retry forever; no effect if done
        if connecting.done():
            with translated():
                connecting.result()
        if connecting.done() and self._access.is_plain:
            self._refuse(no_tls(self._url))
        if not connecting.done() or self._refused.is_set():
            await _discard(self._client)
            return False
        with translated():
            await self._requests.open()
        return True

    async def _connect(self, client: Client) -> None:
        self._requests = Requests(client)
        await client.connect(
            servers=[part.strip() for part in self._url.split(",")],
            name=self._name,
            connect_timeout=CONNECT_TIMEOUT_SEC,  # type: ignore[arg-type]  # fractions work
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_SEC,  # type: ignore[arg-type]
            ping_interval=PING_SEC,  # type: ignore[arg-type]
            max_outstanding_pings=MAX_PINGS_OPEN,
            no_echo=True,
            # No buffering while disconnected: a request answered with 503 must not take effect later.
            pending_size=0,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=partial(self._on_closed, client),
            **self._access.library_options(self._url),
        )

    async def close(self) -> None:
        self._is_closing = True
        if self._reopening is not None:
            self._reopening.cancel()
        with translated():
            await self._client.close()

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    @property
    def server_version(self) -> tuple[int, int, int]:
        version = self._client.connected_server_version
        return version.major, version.minor, version.patch

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._on_reconnect.append(callback)

    def forget_callback(self, callback: Callable[[], None]) -> None:
        self._on_reconnect.remove(callback)

    async def request(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Msg:
        """Raises NatsUnavailable when there is no reply within `timeout`."""
        self._require_sendable(subject)
        with translated():
            return await self._requests.send(
                subject, payload, headers, self.request_timeout_sec if timeout is None else timeout
            )

    async def publish(
        self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self._require_sendable(subject)
        with translated():
            await self._client.publish(subject, payload, reply=reply, headers=headers)

    def _require_sendable(self, subject: str) -> None:
        if len(subject) > MAX_SUBJECT:
            raise NatsUnavailable(f"nats unavailable: a subject of {len(subject)} characters")
        if not self._client.is_connected:
            raise NatsUnavailable("nats unavailable: not connected")

    async def publish_acked(self, subject: str, payload: bytes, headers: dict[str, str]) -> PubAck:
        """Publish to a stream and wait for the ack. Raises WrongRevision for an unexpected revision.

        A write refused because another one is in progress is retried until that one is decided. Treating the
        refusal as the outcome would be wrong: a read would return the old value or none, and a partitioned
        leader may never store its pending write.
        """
        deadline = time.monotonic() + self.request_timeout_sec
        while True:
            reply = await self.request(subject, payload, headers)
            ack = _pub_ack.decode(reply.data)
            if ack.error is None:
                return ack
            if ack.error.err_code != _UNDECIDED or time.monotonic() > deadline:
                raise_api_error(ack.error)
            await asyncio.sleep(UNDECIDED_RETRY_SEC)

    def api_subject(self, verb: str) -> str:
        return f"{self._api_prefix}.{verb}"

    async def api(
        self,
        verb: str,
        body: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> dict[str, Any]:
        """Call the JetStream management API."""
        payload = b"" if body is None else msgspec.json.encode(body)
        reply = await self.request(self.api_subject(verb), payload, timeout=timeout)
        answer: dict[str, Any] = msgspec.json.decode(reply.data)
        if "error" in answer:
            raise_api_error(msgspec.convert(answer["error"], ErrorInReply))
        return answer

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], group: str = ""
    ) -> KeptSubscription:
        """For as long as the caller keeps it. Of a `group`, one gets each message."""
        return await self._kept(lambda client: client.subscribe(subject, queue=group, cb=callback))

    async def subscribe_directly(self, subject: str, callback: Callable[[Any], None]) -> KeptSubscription:
        """The same for a callback that does next to nothing, e.g. puts the message into a list."""
        return await self._kept(lambda client: client.subscribe_directly(subject, callback))

    async def _kept(self, subscribe: Callable[[Client], Awaitable[Subscription]]) -> KeptSubscription:
        kept = KeptSubscription(subscribe)
        with translated():
            await kept.begin(self._client)
        self._subscriptions.add(kept)
        return kept

    async def listen(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], group: str = ""
    ) -> Callable[[], Awaitable[None]]:
        """Like `subscribe`; returns a function that unsubscribes, also after the connection is lost."""
        subscription = await self.subscribe(subject, callback, group)

        async def stop() -> None:
            if self.is_connected:
                with translated():
                    await subscription.unsubscribe()

        return stop

    def _check_version(self) -> None:
        if self.server_version < MIN_SERVER_VERSION:
            raise IncompatibleNats(
                f"the NATS server at {without_credentials(self._url)} is version "
                f"{dotted(self.server_version)}; pyoco-server requires {dotted(MIN_SERVER_VERSION)} or newer"
            )

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        self._refused.set()

    def _report_refusal(self) -> None:
        log.error(
            "cannot log in to NATS; retrying",
            action="nats.unauthorized",
            reason=self._refusal,
            pause_sec=self._pause_sec,
            **NatsUnauthorized().ids,
        )

    async def _back_off(self) -> None:
        pause, self._pause_sec = self._pause_sec, min(MAX_RETRY_SEC, self._pause_sec * 2)
        await asyncio.sleep(pause)

    def _settle(self) -> None:
        self._refused.clear()
        self._pause_sec = RETRY_SEC

    async def _on_error(self, error: Exception) -> None:
        """The library waits for this before it tries again."""
        self._access.begin_attempt()
        refusal = refusal_in(error, self._url, self._access)
        if refusal:
            self._refuse(refusal)
            if not self._is_opening:
                self._report_refusal()
                await self._back_off()
        elif isinstance(error, _UNREACHABLE):
            log.debug("NATS is not reachable yet", action="nats.unreachable", exc_info=error)
        else:
            log.warning("NATS reported an error", action="nats.error", exc_info=error)

    async def _on_disconnected(self) -> None:
        self._access.begin_attempt()
        if not self._is_closing and not self._is_opening:
            log.warning(
                "lost the connection to NATS; reconnecting",
                action="nats.disconnected",
                **NatsUnavailable().ids,
            )

    async def _on_closed(self, client: Client) -> None:
        """The library gives up when a user's JWT expires; the file may be renewed."""
        if client is self._client and not self._is_closing and not self._is_opening:
            self._reopening = asyncio.ensure_future(self._reopen())

    async def _start_over(self, plain: Client) -> None:
        self._refuse(no_tls(self._url))
        self._report_refusal()
        await _discard(plain)
        await self._back_off()
        await self._reopen()

    async def _reopen(self) -> None:
        while True:
            try:
                await self._establish(patiently=True)
                with translated():
                    for kept in list(self._subscriptions):
                        await kept.begin(self._client)
            except NatsUnavailable as error:
                log.debug("NATS is not reachable yet", action="nats.unreachable", exc_info=error)
            else:
                break
        await self._on_reconnected()

    async def _on_reconnected(self) -> None:
        if self._access.is_plain:
            plain, self._client = self._client, Client()  # nothing more is sent there
            self._reopening = asyncio.ensure_future(self._start_over(plain))
            return
        self._settle()
        log.info("reconnected to NATS", action="nats.reconnected")
        for callback in list(self._on_reconnect):
            callback()
