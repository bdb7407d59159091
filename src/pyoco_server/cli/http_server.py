"""The HTTP server of a gateway: uvicorn's protocol with limits, listen addresses and options."""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pyoco_server.cli import server_texts as texts
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import InvalidCliInput
from pyoco_server.processes import bound, free_port

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


DRAIN_SEC = 5


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to us, because the worker and NATS must be stopped in order."""
        yield


def http_options(app: Any, config: NatsBackendConfig, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(config.trusted_proxies),
        forwarded_allow_ips=config.trusted_proxies or None,
        timeout_graceful_shutdown=DRAIN_SEC,
        **options,
    )


# Listen addresses: whether a port is free, which program holds it, and its local URL.

_LISTENS = "0A"
"""The state in /proc/net/tcp."""


def require_free(host: str, port: int, option: str = "--port") -> None:
    """Raises InvalidCliInput with the program that holds the port, or another reason."""
    try:
        bound(host, port)
    except (OSError, OverflowError) as error:
        raise InvalidCliInput(_refusal(error, host, port, option)) from error


def _refusal(error: OSError | OverflowError, host: str, port: int, option: str) -> str:
    address = f"{host}:{port}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        holder = holder_of(port) or texts.ANOTHER_PROGRAM()
        return texts.PORT_IN_USE(address=address, holder=holder, option=option, free=free_port(host))
    if isinstance(error, PermissionError):
        return texts.PORT_FORBIDDEN(address=address, option=option, free=free_port(host))
    reason = getattr(error, "strerror", None) or error
    return texts.CANNOT_LISTEN(address=address, reason=reason)


def holder_of(port: int) -> str | None:
    """The program that listens on a port, as `name (pid 123)`; None if unknown."""
    inodes = set(_listening_inodes(port))
    for process in Path("/proc").glob("[0-9]*"):
        if inodes & set(_socket_inodes(process)):
            return f"{_name(process)} (pid {process.name})"
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _socket_inodes(process: Path) -> Iterator[str]:
    """Readable for our own processes only, for root for all."""
    try:
        for descriptor in (process / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]
    except OSError:  # the process has ended, or belongs to another user
        return


def _name(process: Path) -> str:
    """The name of the script rather than its interpreter."""
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    script = next((word for word in words[1:2] if word.startswith("/")), words[0])
    return Path(script).name or (process / "comm").read_text().strip()


WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not listened on


def local_url(host: str, port: int) -> str:
    """The URL for clients on this machine."""
    name = "127.0.0.1" if host in WILDCARDS else host
    return f"http://[{name}]:{port}" if ":" in name and not name.startswith("[") else f"http://{name}:{port}"
