"""The worker's side of the zygote: requests for new executors, and reports of their exits."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from typing import Protocol

from pyoco_server.engine.executors.zygote import ENDED, FAILED, FORK, REPORT, STARTED
from pyoco_server.processes import end_group, start_child, stop_child


class ZygoteEnded(Exception):
    """It was killed, and its executors with it. Another one can be started."""


class Forked(Protocol):
    """A process that the zygote starts."""

    def started(self, pid: int) -> None: ...
    def exited(self, code: int | None) -> None:
        """`code`: exit code or negative signal; None if the zygote has ended, too."""
        ...


class Zygote(asyncio.Protocol):
    """The process that forks executors."""

    def __init__(self, child: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._child = child
        self._channel = channel
        self._transport: asyncio.BaseTransport | None = None
        self._buffer = bytearray()
        self._asked: deque[tuple[asyncio.Future[None], Forked]] = deque()
        self._living: dict[int, Forked] = {}
        self.has_ended = False

    @classmethod
    async def start(cls) -> "Zygote":
        ours, theirs = socket.socketpair()
        child = start_child(
            [sys.executable, "-m", "pyoco_server.engine.executors.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        zygote = cls(child, ours)
        # Requests use the socket itself: a transport cannot send descriptors.
        reading = ours.dup()
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: zygote, sock=reading)
        except BaseException:  # cancelled
            reading.close()
            ours.close()
            stop_child(child)
            raise
        return zygote

    async def fork(self, descriptors: list[int], forked: Forked) -> None:
        """Start a process. It gets the descriptors; they are closed here.

        Raises OSError if no process can be started now, ZygoteEnded if a new zygote is needed.
        """
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append((asked, forked))
        try:
            socket.send_fds(self._channel, [FORK], descriptors)
        except OSError as error:
            self._asked.remove((asked, forked))
            self.has_ended = True
            raise ZygoteEnded from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        await asked

    async def stop(self) -> None:
        self.has_ended = True
        if self._transport is not None:
            self._transport.close()
        self._channel.close()
        await asyncio.to_thread(stop_child, self._child)

    # Reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= REPORT.size:
            kind, number, code = REPORT.unpack_from(self._buffer)
            del self._buffer[: REPORT.size]
            if kind == STARTED:
                self._started(number)
            elif kind == FAILED:
                self._failed(OSError(number, os.strerror(number)))
            elif kind == ENDED and number in self._living:
                self._living.pop(number).exited(code)

    def _started(self, pid: int) -> None:
        asked, forked = self._asked.popleft()
        self._living[pid] = forked
        forked.started(pid)
        if not asked.done():  # otherwise the request was cancelled: its channels are closed, and it exits
            asked.set_result(None)

    def _failed(self, error: OSError) -> None:
        asked, _ = self._asked.popleft()
        if not asked.done():
            asked.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The kernel ends its executors with it; their child processes are ended here."""
        was_stopped, self.has_ended = self.has_ended, True
        for asked, _ in self._asked:
            if not asked.done():
                asked.set_exception(ZygoteEnded())
        living, self._living = self._living, {}
        for pid, forked in living.items():
            if not was_stopped:
                end_group(pid)
            forked.exited(None)


def how_it_ended(code: int | None) -> str:
    """For messages; the code is that of `Forked.exited`."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
