"""How long a gateway keeps a small request waiting by work of its own, and what it grows by meanwhile."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from support.gateway_process import GatewayProcess

REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
TICK = 1.0 / os.sysconf("SC_CLK_TCK")
PATIENCE_SEC = 60.0
PAUSE_SEC = 0.005


class LoopLag:
    """Polls /health on a connection of its own.

    A machine that others keep busy answers late, too. So a late answer counts as long as the gateway itself
    computed meanwhile: the lesser of the time that passed and the processor time that it took.
    """

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self.worst_sec = 0.0
        self.polls = 0
        self.peak_mb = 0.0

    def __enter__(self) -> Self:
        self.peak_mb = self._gateway.rss_mb()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _poll(self) -> None:
        with socket.create_connection(("127.0.0.1", self._gateway.port), PATIENCE_SEC) as connection:
            while not self._stopping.is_set():
                began, worked = time.monotonic(), self._cpu_sec()
                connection.sendall(REQUEST)
                _read_answer(connection)
                took, worked = time.monotonic() - began, self._cpu_sec() - worked + TICK
                self.worst_sec = max(self.worst_sec, min(took, worked))
                self.peak_mb = max(self.peak_mb, self._gateway.rss_mb())
                self.polls += 1
                self._stopping.wait(PAUSE_SEC)

    def _cpu_sec(self) -> float:
        fields = Path(f"/proc/{self._gateway.program.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK


def _read_answer(connection: socket.socket) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head += _received(connection)
    head, _, body = head.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    lengths = [
        line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    ]
    while len(body) < int(lengths[0]):
        body += _received(connection)


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    assert data, "the gateway hung up"
    return data


@contextmanager
def unhurt(gateway: GatewayProcess, *, lag_sec: float, growth_mb: float) -> Iterator[None]:
    """What happens inside neither holds up the gateway nor makes it grow."""
    before = gateway.rss_mb()
    with LoopLag(gateway) as lag:
        yield
    assert lag.polls > 0
    assert lag.worst_sec <= lag_sec, f"/health waited {lag.worst_sec:.3f} s for the gateway's own work"
    assert lag.peak_mb - before <= growth_mb, f"it grew from {before:.0f} to {lag.peak_mb:.0f} MB"
