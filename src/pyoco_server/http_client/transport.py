"""The clients' sessions: connections of our own under `httpx2.Client`, and `httpx2.AsyncClient`.

URLs, forms, headers, timeouts and exceptions stay those of httpx2. See
docs/decisions/0014-client-transport.md.
"""

import asyncio
import json
import ssl
import time
import urllib.request
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

import httpx2

from pyoco_server.errors import GatewayUnreachable, UntrustedCertificate
from pyoco_server.http_client.calls import PyocoError, RequestRefused, ServerUnavailable, also, raise_refused
from pyoco_server.http_client.connection import Connection, Response, head_of, header_lines

__all__ = ["BlockingSession", "JsonCalls", "LeanTransport", "LoopSession", "RequestRefused", "transport_for"]

MAX_IDLE = 64
"""Connections kept for later requests, per server."""
WATCH_SILENCE_SEC = 10.0
"""Heartbeat timeout of a watch."""
_JSON_CALL = {"json", "headers"}
"""Options that `JsonCalls` supports."""

T = TypeVar("T")
_Origin = tuple[str, str, int]
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def transport_for(base_url: str) -> "LeanTransport | None":
    """None: httpx2's own transport, which supports the proxies that the environment names."""
    proxies = urllib.request.getproxies()
    if any(kind in proxies for kind in ("http", "https", "all")):
        return None
    return LeanTransport() if httpx2.URL(base_url).scheme in {"http", "https"} else None


class LeanTransport(httpx2.BaseTransport):
    """HTTP/1.1. Thread-safe; each request has a connection of its own."""

    def __init__(self) -> None:
        self._idle: dict[_Origin, deque[Connection]] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        head = head_of(
            request.method.encode("ascii"), request.url.raw_path, header_lines(request.headers.raw)
        )
        response, stream = self.exchange(
            origin_of(request.url),
            request.method.encode("ascii"),
            _parts(head, request.stream, is_chunked="transfer-encoding" in request.headers),
            request.extensions.get("timeout", {}),
        )
        return httpx2.Response(
            response.status,
            headers=response.headers,
            stream=stream,
            extensions={"http_version": b"HTTP/1.1"},
        )

    def exchange(
        self,
        origin: _Origin,
        method: bytes,
        parts: bytes | Iterable[bytes],
        timeouts: Mapping[str, float | None],
    ) -> "tuple[Response, _Body]":
        connection = self._idle_connection(origin) or self._new_connection(origin, timeouts.get("connect"))
        try:
            response = connection.exchange(method, parts, timeouts.get("write"), timeouts.get("read"))
        except BaseException:
            connection.close()
            raise
        return response, _Body(response, connection, self._idle[origin])

    def close(self) -> None:
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    def _idle_connection(self, origin: _Origin) -> Connection | None:
        """The one used last, unless the server has closed it."""
        connections = self._idle.setdefault(origin, deque())
        with suppress(IndexError):
            while True:
                connection = connections.pop()
                if not connection.is_stale():
                    return connection
                connection.close()
        return None

    def _new_connection(self, origin: _Origin, timeout: float | None) -> Connection:
        scheme, host, port = origin
        return Connection(host, port, timeout, self._tls if scheme == "https" else None)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Created on first use: reading all certificates takes a while."""
        return httpx2.create_ssl_context()


def origin_of(url: httpx2.URL) -> _Origin:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _parts(head: bytes, body: Any, *, is_chunked: bool) -> Iterator[bytes]:
    yield head
    if not is_chunked:
        yield from body
        return
    for chunk in body:
        if chunk:
            yield b"%x\r\n%b\r\n" % (len(chunk), chunk)
    yield b"0\r\n\r\n"


class _Body(httpx2.SyncByteStream):
    """A body that is read to its end leaves the connection to the next request."""

    def __init__(self, response: Response, connection: Connection, idle: deque[Connection]) -> None:
        self._response = response
        self._connection = connection
        self._idle = idle

    def __iter__(self) -> Iterator[bytes]:
        return self._response.body()

    def close(self) -> None:
        if self._response.leaves_connection and len(self._idle) < MAX_IDLE:
            self._idle.append(self._connection)
        else:
            self._connection.close()


class JsonCalls:
    """JSON requests and responses, which most calls are, without an `httpx2.Request`.

    A third of the CPU time of `httpx2.Client.request`, on the same connections.
    """

    def __init__(self, http: httpx2.Client, transport: LeanTransport, timeout: float) -> None:
        base = http.base_url
        self._base = base
        self._transport = transport
        self._origin = origin_of(base)
        self._prefix = base.raw_path.decode("ascii").rstrip("/")
        self._headers = [(b"Host", base.netloc), *http.headers.raw]
        self._timeouts = dict.fromkeys(("connect", "read", "write"), timeout)

    def send(
        self, method: str, path: str, *, json: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """Like `httpx2.Client.request` with these options."""
        lines, body = self._lines, b""
        if json is not None:
            body = _json(json).encode()
            lines += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        if headers:
            lines += header_lines([(name.encode(), value.encode()) for name, value in headers.items()])
        verb = method.encode("ascii")
        head = head_of(verb, (self._prefix + path).encode("ascii"), lines)
        received, stream = self._transport.exchange(self._origin, verb, head + body, self._timeouts)
        try:
            content = received.read()
        finally:
            stream.close()
        response = httpx2.Response(received.status, headers=received.headers, content=content)
        if not response.is_success:  # errors name their request
            response.request = httpx2.Request(method, self._base.join(self._prefix + path))
        return response

    @cached_property
    def _lines(self) -> bytes:
        return header_lines(self._headers)


# Sessions


class BlockingSession:
    """Carries out requests in the calling thread. Thread-safe. Its coroutines are never suspended."""

    def __init__(self, base_url: str, headers: Mapping[str, str], timeout: float) -> None:
        transport = transport_for(base_url)
        self._http = httpx2.Client(base_url=base_url, headers=headers, timeout=timeout, transport=transport)
        self._json = None if transport is None else JsonCalls(self._http, transport, timeout)
        self._timeout = timeout

    async def send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        send: Callable[..., httpx2.Response] = self._http.request
        if self._json is not None and options.keys() <= _JSON_CALL:
            send = self._json.send
        try:
            return send(method, path, **options)
        except httpx2.TransportError as error:
            raise unreachable(self._http.base_url, error) from error

    @asynccontextmanager
    async def receive(
        self, path: str, *, silence_sec: float = WATCH_SILENCE_SEC, **options: Any
    ) -> AsyncIterator[AsyncGenerator[httpx2.ServerSentEvent, None]]:
        timeout = httpx2.Timeout(self._timeout, read=silence_sec)
        with self._stream(path, timeout=timeout, **options) as response:
            async with aclosing(_each(httpx2.EventSource(response))) as events:
                yield events

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        with self._stream(path) as response:
            async with aclosing(_each(response.iter_bytes())) as chunks:
                yield chunks

    @contextmanager
    def _stream(self, path: str, **options: Any) -> Iterator[httpx2.Response]:
        with _reachable(self._http.base_url), self._http.stream("GET", path, **options) as response:
            if response.is_error:
                response.read()
                raise_refused(response)
            yield response

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no event loop

    async def blocking(self, function: Callable[[], T]) -> T:
        return function()

    async def close(self) -> None:
        self._http.close()


async def _each(values: Iterable[T]) -> AsyncGenerator[T, None]:
    for value in values:
        yield value


class LoopSession:
    """Carries out requests in an event loop."""

    def __init__(self, base_url: str, headers: Mapping[str, str], timeout: float) -> None:
        self._http = httpx2.AsyncClient(
            base_url=base_url,
            headers=headers,
            timeout=timeout,
            verify=_verified(base_url),
            # A watch holds its connection, and a limit would let other calls wait for it.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE),
        )
        self._timeout = timeout

    async def send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            return await self._http.request(method, path, **options)
        except httpx2.TransportError as error:
            raise unreachable(self._http.base_url, error) from error

    @asynccontextmanager
    async def receive(
        self, path: str, *, silence_sec: float = WATCH_SILENCE_SEC, **options: Any
    ) -> AsyncIterator[AsyncGenerator[httpx2.ServerSentEvent, None]]:
        timeout = httpx2.Timeout(self._timeout, read=silence_sec)
        async with (
            self._stream(path, timeout=timeout, **options) as response,
            aclosing(_each_awaited(httpx2.EventSource(response))) as events,
        ):
            yield events

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        async with (
            self._stream(path) as response,
            aclosing(_each_awaited(response.aiter_bytes())) as chunks,
        ):
            yield chunks

    @asynccontextmanager
    async def _stream(self, path: str, **options: Any) -> AsyncIterator[httpx2.Response]:
        with _reachable(self._http.base_url):
            async with self._http.stream("GET", path, **options) as response:
                if response.is_error:
                    await response.aread()
                    raise_refused(response)
                yield response

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def blocking(self, function: Callable[[], T]) -> T:
        return await asyncio.to_thread(function)

    async def close(self) -> None:
        await self._http.aclose()


async def _each_awaited(values: AsyncIterable[T]) -> AsyncGenerator[T, None]:
    async for value in values:
        yield value


def _verified(base_url: str) -> ssl.SSLContext | bool:
    """Reading all certificates takes a while, and plain HTTP needs none."""
    return httpx2.create_ssl_context() if httpx2.URL(base_url).scheme == "https" else False


@contextmanager
def _reachable(server: httpx2.URL) -> Iterator[None]:
    try:
        yield
    except httpx2.TransportError as error:
        raise unreachable(server, error) from error


def unreachable(server: httpx2.URL, error: httpx2.TransportError) -> PyocoError:
    """Also a `GatewayUnreachable` and an error of httpx2, which older programs catch."""
    kind, message = GatewayUnreachable, f"no server answers at {server} ({type(error).__name__})"
    advice = "Start a server with pyoco-server up, or correct the URL"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            kind = UntrustedCertificate
            message = f"the certificate of {server} is refused: {cause.verify_message}"
            advice = "If you trust the server, set the certificate of its CA: SSL_CERT_FILE=ca.pem"
            break
        cause = cause.__cause__ or cause.__context__
    return also(ServerUnavailable, kind, type(error))(
        message,
        err_id=kind.entry.err_id,
        detail=message,
        advice=advice,
        _request=vars(error).get("_request"),
    )
