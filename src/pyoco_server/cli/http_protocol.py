"""HTTP as uvicorn speaks it, with limits on the head of a request, and answers that travel in one piece."""

import asyncio
import socket
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
"""What has arrived of a request line and headers that have not ended yet."""
MAX_HELD_BYTES = 16 * 1024
MAX_PIPELINED = 100
"""Requests that one connection may send ahead of their answers."""
VANISHED_AFTER_SEC = 20
"""A peer that acknowledges nothing for this long is gone; by itself the kernel retries for 15 minutes."""
KEEPALIVE_IDLE_SEC = 10
KEEPALIVE_INTERVAL_SEC = 5


class InOnePiece:
    """A transport on which the head of an answer waits for its body, if that comes at once.

    uvicorn writes them one after the other: two calls of the system, and two times that the client wakes up.
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
            self._loop.call_soon(self._let_go)

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def _let_go(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)


class BoundedHead(HttpToolsProtocol):
    """Hangs up on who sends headers without end, in size or in time."""

    head_timeout_sec = 30.0
    """For a whole head, from the first byte on, and for the first byte of a new connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._cycles: deque[RequestResponseCycle] = deque()
        """Requests without a whole answer, in order. uvicorn itself knows the newest alone."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        notice_vanished_peer(transport.get_extra_info("socket"))
        super().connection_made(InOnePiece(transport, self.loop))  # type: ignore[arg-type]  # it stands in for one
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        self._disconnect_all()
        super().connection_lost(exc)

    def _disconnect_all(self) -> None:
        """Also a request with pipelined ones behind it: else its answer would be written for ever."""
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
            self._hang_up()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        self._cycles.append(self.cycle)

    def _expect_head(self) -> None:
        self._head_is_there()
        self._head_bytes = 0
        self._deadline = self.loop.call_later(self.head_timeout_sec, self._refuse, "408 Request Timeout")

    def _head_is_there(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: str) -> None:
        self._head_is_there()
        if not self.transport.is_closing():
            self.transport.write(
                f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
            )
            self.transport.close()

    def _hang_up(self) -> None:
        """Without a status: another answer of this connection may be half written."""
        self._head_is_there()
        self.transport.abort()


def notice_vanished_peer(connection: socket.socket | None) -> None:
    """A client that vanished without a FIN (a closed lid, a lost network) must not hold its place.

    Linux ends the connection when what was sent stays unacknowledged; probes find out when nothing is sent.
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
"""Not every system has all of them."""
