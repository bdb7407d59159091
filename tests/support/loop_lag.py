"""How long a gateway keeps a small request waiting by work of its own, and what it grows by meanwhile."""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from support.gateway_process import GatewayProcess
from support.waiting import PATIENCE_SEC, load_factor

REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
TICK = 1.0 / os.sysconf("SC_CLK_TCK")
PAUSE_SEC = 0.005
SO_TIMESTAMPNS = 35
"""Linux: the kernel notes when each packet arrived."""
TIMESTAMP = struct.Struct("qq")


class LoopLag:
    """Polls /health on a connection of its own.

    A busy machine delays both ends, which is not the gateway's fault. So an answer counts as late only by the
    lesser of two figures: the time until it arrived, as the kernel notes it, whenever this process gets to
    read it; and the processor time that the gateway took meanwhile, in all its threads, since any of them
    may hold the interpreter. A gateway that blocks without computing is not seen; nothing in it may do that.
    """

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self.worst_sec = 0.0
        self.polls = 0
        self.doing = ""
        """What the test does now; the failure names what it did at the worst time."""
        self.worst_doing = ""
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _poll(self) -> None:
        try:
            self._poll_until_stopped()
        except (AssertionError, OSError) as failure:
            self._failure = failure

    def _poll_until_stopped(self) -> None:
        while not self._stopping.is_set():
            with socket.create_connection(("127.0.0.1", self._gateway.port), PATIENCE_SEC) as connection:
                connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                while not self._stopping.is_set() and self._polled(connection):
                    self._stopping.wait(PAUSE_SEC)

    def _polled(self, connection: socket.socket) -> bool:
        """False: it was closed, as a connection is that was idle while this process got no processor."""
        worked, began = self._cpu_sec(), time.time()
        try:
            connection.sendall(REQUEST)
            at = _answered_at(connection)
        except ConnectionError:
            return False
        worked = self._cpu_sec() - worked + TICK
        late_sec = min(at - began, worked)
        if late_sec > self.worst_sec:
            self.worst_sec, self.worst_doing = late_sec, self.doing
        self.polls += 1
        return True

    def _cpu_sec(self) -> float:
        fields = Path(f"/proc/{self._gateway.program.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK


def _answered_at(connection: socket.socket) -> float:
    """When the whole answer had arrived."""
    at, head = _received(connection)
    while b"\r\n\r\n" not in head:
        at, more = _received(connection)
        head += more
    head, _, body = head.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    lengths = [
        line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    ]
    while len(body) < int(lengths[0]):
        at, more = _received(connection)
        body += more
    return at


def _received(connection: socket.socket) -> tuple[float, bytes]:
    data, notes, _, _ = connection.recvmsg(65_536, socket.CMSG_SPACE(TIMESTAMP.size))
    if not data:
        raise ConnectionResetError("the gateway hung up")
    for level, kind, value in notes:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = TIMESTAMP.unpack(value)
            return seconds + nanoseconds / 1e9, data
    return time.time(), data


@contextmanager
def unhurt(gateway: GatewayProcess, *, lag_sec: float, growth_mb: float) -> Iterator[LoopLag]:
    """What happens inside neither holds up the gateway nor makes it grow.

    On a busy machine the same work also takes more processor time: caches and cores are shared.
    """
    before = gateway.rss_mb()
    gateway.forget_peak()
    with LoopLag(gateway) as lag:
        yield lag
    grown = gateway.peak_mb() - before
    assert lag.polls > 0
    assert lag.worst_sec <= lag_sec * load_factor(), (
        f"/health waited {lag.worst_sec:.3f} s for the gateway's own work, at {lag.worst_doing or 'this'}"
    )
    assert grown <= growth_mb, f"it grew from {before:.0f} to {before + grown:.0f} MB"
