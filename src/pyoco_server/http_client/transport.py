"""What the client raises when the server refuses: an error of httpx2, and of httpx where that is used."""

import http.client
import select
import socket
import ssl
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn

import httpx2


class RequestRefused(httpx2.HTTPStatusError):
    """An answer with an error status. The server's words are in `err_id`, `detail` and `advice`."""

    def __init__(self, message: str, response: httpx2.Response) -> None:
        # Not by `super()`: the next class may be one of httpx, which wants other arguments.
        Exception.__init__(self, message)
        self._request = response.request
        self.response = response
        answer = _answer(response)
        self.err_id: str | None = answer.get("err_id")
        self.detail: Any = answer.get("detail")
        self.advice: str | None = answer.get("advice") or answer.get("message")


def raise_refused(response: httpx2.Response) -> NoReturn:
    """The answer has been read."""
    status = f"{response.status_code} {response.reason_phrase}".strip()
    detail = _answer(response).get("detail")
    raise _kind("httpx" in sys.modules)(
        f"{status} for {response.request.method} {response.request.url}" + (f": {detail}" if detail else ""),
        response,
    )


@cache
def _kind(is_with_httpx: bool) -> type[RequestRefused]:  # noqa: FBT001 - a key of the cache
    """Programs that were written for httpx catch its errors; who has not imported it does not."""
    if not is_with_httpx:
        return RequestRefused
    import httpx  # noqa: PLC0415

    return type("RequestRefused", (RequestRefused, httpx.HTTPStatusError), {"__module__": __name__})


def _answer(response: httpx2.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


# What goes wrong with a connection, as httpx2 calls it.


@contextmanager
def translated(too_slow: type[httpx2.TransportError], failed: type[httpx2.TransportError]) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, BlockingIOError) as error:  # by Python's clock, or by the kernel's
        raise too_slow("timed out") from error
    except http.client.HTTPException as error:
        raise httpx2.RemoteProtocolError(str(error) or type(error).__name__) from error
    except OSError as error:
        raise failed(str(error)) from error


# Connections that wait for their next use.


def has_news(idle: socket.socket) -> bool:
    """An idle connection has nothing to say, unless it says that it is over."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([idle], [], [], 0)[0])
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))


# HTTP/1.1 on the standard library's connections, for `httpx2.Client`.
#
# The client's own transport costs a small call two thirds of its time, in the thread of whoever submits a
# run,
# and sends head and body in two packets. This one sends them in one. Everything else stays httpx2's: urls,
# headers, forms, time-outs, errors. See docs/decisions/0014-client-transport.md.

MAX_IDLE = 64
"""Connections that are kept for the next request, per server."""
PACKET_BYTES = 64 * 1024
"""Up to this much of a request waits to be sent together."""
CHUNK_BYTES = 64 * 1024

_Origin = tuple[str, str, int]
_Timeouts = Mapping[str, float | None]
_Headers = Sequence[tuple[bytes, bytes]]


class _InOnePacket:
    """Of a connection: what is sent waits until it is worth a packet."""

    _waiting: bytearray

    def send(self, data: Any) -> None:
        self._waiting += data
        if len(self._waiting) >= PACKET_BYTES:
            self.flush()

    def flush(self) -> None:
        data, self._waiting = self._waiting, bytearray()
        super().send(data)  # type: ignore[misc]  # of the connection that this is mixed into


class _PlainConnection(_InOnePacket, http.client.HTTPConnection):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._waiting = bytearray()


class _SecureConnection(_InOnePacket, http.client.HTTPSConnection):
    def __init__(self, host: str, port: int, *, context: ssl.SSLContext) -> None:
        super().__init__(host, port, context=context)
        self._waiting = bytearray()


_Connection = _PlainConnection | _SecureConnection


def transport_for(base_url: str) -> "LeanTransport | None":
    """None: httpx2's own, which knows how to speak to the proxies that the environment names."""
    proxies = urllib.request.getproxies()
    if any(kind in proxies for kind in ("http", "https", "all")):
        return None
    return LeanTransport() if httpx2.URL(base_url).scheme in {"http", "https"} else None


class LeanTransport(httpx2.BaseTransport):
    """May be used by several threads; each request has a connection for itself."""

    def __init__(self) -> None:
        self._idle: dict[_Origin, deque[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        origin = origin_of(request.url)
        outgoing = Outgoing(
            request.method,
            request.url.raw_path.decode("ascii"),
            request.headers.raw,
            request.stream,
            is_chunked="transfer-encoding" in request.headers,
        )
        response, connection = self._exchange(origin, outgoing, request.extensions.get("timeout", {}))
        return httpx2.Response(
            response.status,
            headers=_headers_of(response),
            stream=_Body(response, connection, self._idle[origin]),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": response.reason.encode("latin-1")},
        )

    def _exchange(
        self, origin: _Origin, outgoing: "Outgoing", timeouts: _Timeouts
    ) -> tuple[http.client.HTTPResponse, _Connection]:
        connection = self._idle_connection(origin) or self._new_connection(origin, timeouts)
        try:
            _send(connection, outgoing, timeouts)
            return _receive(connection, timeouts), connection
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    def _idle_connection(self, origin: _Origin) -> _Connection | None:
        """The one that was used last, unless the server has hung up meanwhile."""
        connections = self._idle.setdefault(origin, deque(maxlen=MAX_IDLE))
        while True:
            try:
                connection = connections.pop()
            except IndexError:
                return None
            if not has_news(connection.sock):
                return connection
            connection.close()

    def _new_connection(self, origin: _Origin, timeouts: _Timeouts) -> _Connection:
        scheme, host, port = origin
        connection: _Connection
        if scheme == "https":
            self._tls = self._tls or httpx2.create_ssl_context()
            connection = _SecureConnection(host, port, context=self._tls)
        else:
            connection = _PlainConnection(host, port)
        connection.timeout = timeouts.get("connect")
        with translated(httpx2.ConnectTimeout, httpx2.ConnectError):
            connection.connect()
        return connection


class _Body(httpx2.SyncByteStream):
    """What is read to its end leaves its connection to the next request."""

    def __init__(
        self, response: http.client.HTTPResponse, connection: _Connection, idle: deque[_Connection]
    ) -> None:
        self._response = response
        self._connection = connection
        self._idle = idle

    def __iter__(self) -> Iterator[bytes]:
        with translated(httpx2.ReadTimeout, httpx2.ReadError):
            while chunk := self._response.read1(CHUNK_BYTES):
                yield chunk
            if self._response.length:
                raise http.client.IncompleteRead(b"", self._response.length)

    def close(self) -> None:
        response = self._response
        is_at_its_end = response.isclosed() or response.length == 0
        response.close()
        if is_at_its_end and not response.will_close and len(self._idle) < MAX_IDLE:
            self._idle.append(self._connection)
        else:
            self._connection.close()


class Outgoing(NamedTuple):
    """A request, as it goes on the wire."""

    method: str
    target: str
    headers: _Headers
    body: Any
    """Bytes, or chunks of them."""
    is_chunked: bool = False


def _headers_of(response: http.client.HTTPResponse) -> _Headers:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.getheaders()]


def _send(connection: _Connection, outgoing: Outgoing, timeouts: _Timeouts) -> None:
    with translated(httpx2.WriteTimeout, httpx2.WriteError):
        connection.sock.settimeout(timeouts.get("write"))
        connection.putrequest(outgoing.method, outgoing.target, skip_host=True, skip_accept_encoding=True)
        _put_headers(connection, outgoing.headers)
        connection.endheaders(outgoing.body, encode_chunked=outgoing.is_chunked)
        connection.flush()


def _put_headers(connection: _Connection, headers: _Headers) -> None:
    try:
        for name, value in headers:
            connection.putheader(name, value)
    except ValueError:  # its text has the value, which may be a key
        raise httpx2.LocalProtocolError("a header has characters that HTTP does not allow") from None


def _receive(connection: _Connection, timeouts: _Timeouts) -> http.client.HTTPResponse:
    with translated(httpx2.ReadTimeout, httpx2.ReadError):
        connection.sock.settimeout(timeouts.get("read"))
        return connection.getresponse()


def origin_of(url: httpx2.URL) -> _Origin:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


# Which requests may be sent again by themselves: those that do the same when they are sent twice.

TRIES = 4
FIRST_PAUSE_SEC = 0.2
MAX_PAUSE_SEC = 2.0

_PASSING = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


def send_again_if_safe(send: Callable[[], httpx2.Response], *, is_safe: bool) -> httpx2.Response:
    """The answer of `send`; with `is_safe` it is repeated while the server is away or overloaded."""
    for left in range(TRIES - 1 if is_safe else 0, 0, -1):
        pause = min(MAX_PAUSE_SEC, FIRST_PAUSE_SEC * 2 ** (TRIES - 1 - left))
        try:
            response = send()
        except httpx2.TransportError:
            time.sleep(pause)
            continue
        if response.status_code not in _PASSING:
            return response
        time.sleep(_asked_for(response) or pause)
    return send()


def _asked_for(response: httpx2.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return min(float(text), MAX_PAUSE_SEC) if text.isdigit() else None
