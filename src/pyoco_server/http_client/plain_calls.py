"""Calls with JSON both ways and nothing else: most of what a client sends.

They cost the thread that makes them a third of what httpx2 does for requests in general, and threads of one
process wait for each other less: one system call to look whether the connection lives, one to send, one to
receive. See docs/decisions/0014-client-transport.md.
"""

import json
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import httptools
import httpx2

from pyoco_server.http_client.transport import has_news, translated

MAX_IDLE = 64
"""Connections that are kept for the next call."""
CHUNK_BYTES = 64 * 1024
_FORBIDDEN = frozenset(range(0x21)) | {0x7F}
"""In the path of a url: blanks and control characters."""

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class PlainCalls:
    """Of one client; may be used by several threads, each call has a connection for itself."""

    def __init__(self, http: httpx2.Client, timeout: float) -> None:
        base = http.base_url
        self._base = base
        self._host, self._port = base.host, base.port or (443 if base.scheme == "https" else 80)
        self._prefix = base.raw_path.decode("ascii").rstrip("/")
        self._always = [(b"Host", base.netloc), *http.headers.raw]
        self._timeout = timeout
        self._idle: deque[_Line] = deque()

    def send(
        self, method: str, path: str, *, json: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """As `httpx2.Client.request`, of which it takes these options."""
        wanted, body = self._headers, b""
        if json is not None:
            body = _json(json).encode()
            wanted += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        if headers:
            wanted += _lines([(name.encode(), value.encode()) for name, value in headers.items()])
        target = (self._prefix + path).encode("ascii")
        if not _FORBIDDEN.isdisjoint(target):
            raise httpx2.LocalProtocolError("a path has characters that HTTP does not allow")
        answer = self._exchange(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode(), target, wanted, body))
        response = httpx2.Response(answer.status, headers=answer.headers, content=b"".join(answer.body))
        if not response.is_success:  # whoever raises it names the request
            response.request = httpx2.Request(method, self._base.join(self._prefix + path))
        return response

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        """Made when it is needed: reading all the certificates takes a while."""
        return httpx2.create_ssl_context() if self._base.scheme == "https" else None

    @cached_property
    def _headers(self) -> bytes:
        return _lines(self._always)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _exchange(self, request: bytes) -> "_Answer":
        line = self._idle_line() or _Line(self._host, self._port, self._timeout, self._tls)
        try:
            answer = line.exchange(request)
        except BaseException:
            line.close()
            raise
        if answer.leaves_its_line and len(self._idle) < MAX_IDLE:
            self._idle.append(line)
        else:
            line.close()
        return answer

    def _idle_line(self) -> "_Line | None":
        """The one that was used last, unless the server has hung up meanwhile."""
        with suppress(IndexError):
            while True:
                line = self._idle.pop()
                if not has_news(line.socket):
                    return line
                line.close()
        return None


class _Line:
    """A connection."""

    def __init__(self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None) -> None:
        with translated(httpx2.ConnectTimeout, httpx2.ConnectError):
            connected = socket.create_connection((host, port), timeout)
            try:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if tls is None:
                    _let_the_kernel_time(connected, timeout)
                self.socket = connected if tls is None else tls.wrap_socket(connected, server_hostname=host)
            except BaseException:
                connected.close()
                raise

    def exchange(self, request: bytes) -> "_Answer":
        with translated(httpx2.WriteTimeout, httpx2.WriteError):
            self.socket.sendall(request)
        answer = _Answer()
        with translated(httpx2.ReadTimeout, httpx2.ReadError):
            while not answer.is_complete:
                answer.receive(self.socket.recv(CHUNK_BYTES))
        return answer

    def close(self) -> None:
        self.socket.close()


class _Answer:
    """What the parser finds."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        self.is_complete = False
        self.leaves_its_line = False
        """Whether another call may follow on the connection."""
        self._is_in_body = False
        self._parser = httptools.HttpResponseParser(self)

    def receive(self, data: bytes) -> None:
        """Raises httpx2.RemoteProtocolError for what is no answer."""
        if not data:
            self._end_of_data()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise httpx2.RemoteProtocolError(f"not an answer in HTTP: {error}") from error

    def _end_of_data(self) -> None:
        names = {name.lower() for name, _ in self.headers}
        if not self._is_in_body or names & {b"content-length", b"transfer-encoding"}:
            raise httpx2.RemoteProtocolError("the server hung up in the middle of an answer")
        self.is_complete = True  # without a length, the end of the connection is that of the answer

    # Called by the parser

    def on_message_begin(self) -> None:
        self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._is_in_body = True

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        if self.status >= 200:  # noqa: PLR2004 - before that, the answer itself is still to come
            self.leaves_its_line = self._parser.should_keep_alive()
            self.is_complete = True


def _let_the_kernel_time(connected: socket.socket, timeout: float) -> None:
    """Where it can: then reading is one system call, and not another one before it that waits."""
    if os.name != "posix":
        return
    seconds, fraction = divmod(timeout, 1)
    moment = struct.pack("@ll", int(seconds), int(fraction * 1_000_000))
    try:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, moment)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, moment)
    except OSError:
        return
    connected.settimeout(None)


def _lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    for name, value in headers:
        if b"\r" in value or b"\n" in value or b"\0" in value or not name:
            # Without its value, which may be a key.
            raise httpx2.LocalProtocolError("a header has characters that HTTP does not allow")
    return b"".join(b"%b: %b\r\n" % header for header in headers)
