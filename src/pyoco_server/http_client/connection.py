"""HTTP/1.1 connections: a socket, and httptools as the parser of responses.

Fewer system calls and less work per call than httpx2's own connections; see
docs/decisions/0014-client-transport.md.
"""

import os
import re
import select
import socket
import ssl
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import httptools
import httpx2

PACKET_BYTES = 64 * 1024
"""A request up to this size is sent in one piece."""
CHUNK_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024
"""Of a response: what the server may send without any part of the body."""
_SUCCESS = 200
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_VALUES = re.compile(rb"[\r\n\0]")
_NOT_IN_TARGETS = re.compile(rb"[\x00-\x20\x7f]")

Headers = Sequence[tuple[bytes, bytes]]


def head_of(method: bytes, target: bytes, header_lines: bytes) -> bytes:
    if not _TOKEN.fullmatch(method) or not target or _NOT_IN_TARGETS.search(target):
        raise httpx2.LocalProtocolError("the method or path contains characters that HTTP does not allow")
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, header_lines)


def header_lines(headers: Headers) -> bytes:
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or _NOT_IN_VALUES.search(value):
            # Without the value, which may be a key.
            raise httpx2.LocalProtocolError("a header contains characters that HTTP does not allow")
    return b"".join([b"%b: %b\r\n" % header for header in headers])


class Connection:
    """One request at a time."""

    def __init__(self, host: str, port: int, timeout: float | None, tls: ssl.SSLContext | None) -> None:
        with _translated(httpx2.ConnectTimeout, httpx2.ConnectError):
            connected = socket.create_connection((host, port), timeout)
            try:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket = connected if tls is None else tls.wrap_socket(connected, server_hostname=host)
            except BaseException:
                connected.close()
                raise
        # The kernel's timeouts save the system call that waits before each read and write.
        self._has_kernel_timeouts = tls is None and os.name == "posix"
        if self._has_kernel_timeouts:
            self._socket.settimeout(None)
        self.is_broken = False
        self._timeouts: dict[int, float | None] = {}

    def exchange(
        self, method: bytes, parts: bytes | Iterable[bytes], write: float | None, read: float | None
    ) -> "Response":
        """Sends a request; returns when the head of its response has been received."""
        response = Response(self, method)
        unsent = self._send(parts, write)
        self._set_timeout(socket.SO_RCVTIMEO, read)
        try:
            response.receive_head()
        except httpx2.TransportError:
            if unsent is not None:
                raise unsent from None
            raise
        return response

    def _send(self, parts: bytes | Iterable[bytes], timeout: float | None) -> httpx2.WriteError | None:
        """The error, if the server closed the connection: it may have sent a refusal before that."""
        self._set_timeout(socket.SO_SNDTIMEO, timeout)
        try:
            for packet in _packets(parts):
                with _translated(httpx2.WriteTimeout, httpx2.WriteError):
                    self._socket.sendall(packet)
        except httpx2.WriteError as error:
            self.is_broken = True
            return error
        return None

    def receive(self) -> bytes:
        with _translated(httpx2.ReadTimeout, httpx2.ReadError):
            return self._socket.recv(CHUNK_BYTES)

    def _set_timeout(self, option: int, seconds: float | None) -> None:
        if not self._has_kernel_timeouts:
            self._socket.settimeout(seconds)
        elif self._timeouts.get(option, -1) != seconds:
            whole, fraction = divmod(seconds or 0, 1)
            moment = struct.pack("@ll", int(whole), int(fraction * 1_000_000))
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, option, moment)
            except OSError:
                self._has_kernel_timeouts = False
                self._socket.settimeout(seconds)
            self._timeouts[option] = seconds

    def is_stale(self) -> bool:
        """An idle connection has nothing to read unless the server has closed it."""
        if not hasattr(select, "poll"):  # Windows
            return bool(select.select([self._socket], [], [], 0)[0])
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self._socket.close()


def _packets(parts: bytes | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(parts, bytes):
        yield parts
        return
    waiting = bytearray()
    for part in parts:
        waiting += part
        if len(waiting) >= PACKET_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


class Response:
    """A response as it arrives. Interim responses (1xx) are skipped."""

    def __init__(self, connection: Connection, method: bytes) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self._is_kept_alive = False
        self._connection = connection
        self._has_no_body = method == b"HEAD"
        self._has_head = False
        self._body: list[bytes] = []
        self._unproductive_bytes = 0
        self._parser = httptools.HttpResponseParser(self)

    @property
    def leaves_connection(self) -> bool:
        """Whether another request may follow on the connection."""
        return self.is_complete and self._is_kept_alive and not self._connection.is_broken

    def receive_head(self) -> None:
        while not self._has_head:
            self._receive()

    def read(self) -> bytes:
        """The whole body."""
        while not self.is_complete:
            self._receive()
        return b"".join(self._body)

    def body(self) -> Iterator[bytes]:
        """The parts of the body, as they arrive."""
        while True:
            parts, self._body = self._body, []
            yield from parts
            if self.is_complete:
                return
            self._receive()

    def _receive(self) -> None:
        data = self._connection.receive()
        if not data:
            self._end_of_data()
            return
        self._unproductive_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._is_kept_alive = False
            if not self.is_complete:
                raise httpx2.RemoteProtocolError(f"invalid HTTP response: {error}") from error
        if self._unproductive_bytes > MAX_HEAD_BYTES and not self.is_complete:
            raise httpx2.RemoteProtocolError("the head of the response is too large")

    def _end_of_data(self) -> None:
        names = {name.lower() for name, _ in self.headers}
        if not self._has_head or names & {b"content-length", b"transfer-encoding"}:
            raise httpx2.RemoteProtocolError("the server closed the connection during a response")
        self.is_complete = True  # without a length, the end of the connection ends the response

    # Called by the parser

    def on_message_begin(self) -> None:
        if self.is_complete:  # a second response, to no request
            self._is_kept_alive = False
        elif not self._has_head:
            self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._has_head or status < _SUCCESS:
            return
        self.status, self._has_head = status, True
        self._unproductive_bytes = 0
        if self._has_no_body:
            self.is_complete = True

    def on_body(self, data: bytes) -> None:
        if not self.is_complete:
            self._body.append(data)
            self._unproductive_bytes = 0

    def on_message_complete(self) -> None:
        if self._has_head and not self.is_complete:
            self._is_kept_alive = self._parser.should_keep_alive()
            self.is_complete = True


@contextmanager
def _translated(
    timed_out: type[httpx2.TransportError], failed: type[httpx2.TransportError]
) -> Iterator[None]:
    """Errors of sockets as errors of httpx2."""
    try:
        yield
    except (TimeoutError, BlockingIOError) as error:  # Python's timeout, or the kernel's
        raise timed_out("timed out") from error
    except OSError as error:
        raise failed(str(error)) from error
