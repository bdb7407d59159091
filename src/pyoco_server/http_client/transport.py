"""The client's transport: its connections for `httpx2.Client`, a short path for JSON calls, errors, retries.

URLs, forms, headers, timeouts and exceptions stay those of httpx2. See
docs/decisions/0014-client-transport.md.
"""

import json
import ssl
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from http import HTTPStatus
from typing import Any, NoReturn

import httpx2

from pyoco_server.http_client.connection import Connection, Response, head_of, header_lines

MAX_IDLE = 64
"""Connections kept for later requests, per server."""
TRIES = 4
FIRST_PAUSE_SEC = 0.2
MAX_PAUSE_SEC = 2.0
_UNAVAILABLE = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})

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


# Errors


class RequestRefused(httpx2.HTTPStatusError):
    """A response with an error status; `err_id`, `detail` and `advice` come from the server."""

    def __init__(self, message: str, response: httpx2.Response) -> None:
        # Not `super()`: the next class may be one of httpx, whose arguments differ.
        Exception.__init__(self, message)
        self._request = response.request
        self.response = response
        answer = _answer(response)
        self.err_id: str | None = answer.get("err_id")
        self.detail: Any = answer.get("detail")
        self.advice: str | None = answer.get("advice") or answer.get("message")


def raise_refused(response: httpx2.Response) -> NoReturn:
    """`response` has been read."""
    status = f"{response.status_code} {response.reason_phrase}".strip()
    detail = _answer(response).get("detail")
    raise _kind("httpx" in sys.modules)(
        f"{status} for {response.request.method} {response.request.url}" + (f": {detail}" if detail else ""),
        response,
    )


@cache
def _kind(is_with_httpx: bool) -> type[RequestRefused]:  # noqa: FBT001 - a key of the cache
    """Programs written for httpx catch its errors."""
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


# Retries


def send_again_if_safe(send: Callable[[], httpx2.Response], *, is_safe: bool) -> httpx2.Response:
    """The response of `send`; if `is_safe`, retried while the server is unavailable or overloaded."""
    for left in range(TRIES - 1 if is_safe else 0, 0, -1):
        pause = min(MAX_PAUSE_SEC, FIRST_PAUSE_SEC * 2 ** (TRIES - 1 - left))
        try:
            response = send()
        except httpx2.TransportError:
            time.sleep(pause)
            continue
        if response.status_code not in _UNAVAILABLE:
            return response
        time.sleep(_retry_after(response) or pause)
    return send()


def _retry_after(response: httpx2.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return min(float(text), MAX_PAUSE_SEC) if text.isdigit() else None
