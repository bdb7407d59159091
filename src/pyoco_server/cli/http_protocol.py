"""uvicorn's HTTP protocol with limits on request heads, and responses written in one piece."""

import asyncio
import socket
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
"""Limit for an incomplete request head: request line and headers."""
MAX_HELD_BYTES = 16 * 1024
MAX_PIPELINED = 100
"""Pipelined requests per connection."""
VANISHED_AFTER_SEC = 20
"""Timeout for a peer that acknowledges nothing; the kernel's default is 15 minutes."""
KEEPALIVE_IDLE_SEC = 10
KEEPALIVE_INTERVAL_SEC = 5


class InOnePiece:
    """A transport that holds a response head back and writes it together with a body that follows at once.

    uvicorn writes them separately: two system calls, and two wake-ups of the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif len(data) > MAX_HELD_BYTES:
            self._transport.write(data)
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)


class BoundedHead(HttpToolsProtocol):
    """Closes connections whose request head exceeds the size limit or the timeout."""

    head_timeout_sec = 30.0
    """For a complete head from its first byte, and for the first byte of a new connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._cycles: deque[RequestResponseCycle] = deque()
        """Requests without a complete response, in order. uvicorn tracks only the latest."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        detect_vanished_peer(transport.get_extra_info("socket"))
        super().connection_made(InOnePiece(transport, self.loop))  # type: ignore[arg-type]  # wraps a transport
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._disconnect_all()
        super().connection_lost(exc)

    def _disconnect_all(self) -> None:
        """Include requests followed by pipelined ones; their responses would be written forever."""
        self.pipeline.clear()
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._cycles.clear()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._deadline is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse("431 Request Header Fields Too Large")
        if len(self.pipeline) > MAX_PIPELINED:
            self._abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        super().on_headers_complete()
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        self._cycles.append(self.cycle)

    def _expect_head(self) -> None:
        self._stop_head_timer()
        self._head_bytes = 0
        self._deadline = self.loop.call_later(self.head_timeout_sec, self._refuse, "408 Request Timeout")

    def _stop_head_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: str) -> None:
        self._stop_head_timer()
        if not self.transport.is_closing():
            self.transport.write(
                f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
            )
            self.transport.close()

    def _abort(self) -> None:
        """Without a status, because another response on this connection may be partly written."""
        self._stop_head_timer()
        self.transport.abort()


def detect_vanished_peer(connection: socket.socket | None) -> None:
    """Release connections of clients that vanished without a FIN (a closed laptop, a lost network).

    Linux closes the connection when sent data stays unacknowledged; keepalive probes cover idle connections.
    """
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_TCP_OPTIONS = {
    "TCP_KEEPIDLE": KEEPALIVE_IDLE_SEC,
    "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_SEC,
    "TCP_KEEPCNT": VANISHED_AFTER_SEC // KEEPALIVE_INTERVAL_SEC,
    "TCP_USER_TIMEOUT": VANISHED_AFTER_SEC * 1000,
}
"""Not every system supports all of them."""
