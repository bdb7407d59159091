"""HTTP as uvicorn speaks it, with limits on the head of a request, and answers that travel in one piece."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""What has arrived of a request line and headers that have not ended yet."""
HEAD_PATIENCE_SEC = 30.0
"""For a whole head, from the first byte on, and for the first byte of a new connection."""
MAX_HELD_BYTES = 16 * 1024


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

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(InOnePiece(transport, self.loop))  # type: ignore[arg-type]  # it stands in for one
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._deadline is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse("431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head_is_there()
        self._head_bytes = 0
        self._deadline = self.loop.call_later(HEAD_PATIENCE_SEC, self._refuse, "408 Request Timeout")

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
