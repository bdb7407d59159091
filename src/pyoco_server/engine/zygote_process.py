"""The zygote as the worker sees it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque

from pyoco_server.engine.zygote import ENDED, FORK, REPORT, STARTED
from pyoco_server.processes import start_child, stop_child

REMEMBER_SEC = 2.0
"""For so long it is known how an executor has ended."""


class ZygoteEnded(Exception):
    """Somebody has killed it. Its executors went with it; another can be started."""


class Zygote(asyncio.Protocol):
    """The process that forks executors, and tells how they ended."""

    def __init__(self, child: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._child = child
        self._channel = channel
        self._transport: asyncio.BaseTransport | None = None
        self._buffer = bytearray()
        self._asked: deque[asyncio.Future[int]] = deque()
        self._exits: dict[int, asyncio.Future[int]] = {}
        self.has_ended = False

    @classmethod
    async def start(cls) -> "Zygote":
        ours, theirs = socket.socketpair()
        child = start_child(
            [sys.executable, "-m", "pyoco_server.engine.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        zygote = cls(child, ours)
        # One end is only for asking: descriptors cannot be sent through a transport.
        reading = ours.dup()
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: zygote, sock=reading)
        except BaseException:  # we are stopped just now
            reading.close()
            ours.close()
            stop_child(child)
            raise
        return zygote

    async def fork(self, descriptors: list[int]) -> int:
        """The new executor's pid. The descriptors become its own, and are closed here."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        try:
            socket.send_fds(self._channel, [FORK], descriptors)
        except OSError as error:
            self._asked.remove(asked)
            self.has_ended = True
            raise ZygoteEnded from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return await asked

    def exit_code_of(self, pid: int) -> "asyncio.Future[int]":
        return self._exits.setdefault(pid, asyncio.get_running_loop().create_future())

    async def stop(self) -> None:
        self.has_ended = True
        if self._transport is not None:
            self._transport.close()
        self._channel.close()
        await asyncio.to_thread(stop_child, self._child)

    # What it says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= REPORT.size:
            kind, pid, code = REPORT.unpack_from(self._buffer)
            del self._buffer[: REPORT.size]
            if kind == STARTED:
                self._started(pid)
            elif kind == ENDED:
                self._exited(pid, code)

    def _started(self, pid: int) -> None:
        asked = self._asked.popleft()
        if not asked.done():  # else whoever asked was stopped: its channels are closed, and it ends
            asked.set_result(pid)

    def _exited(self, pid: int, code: int) -> None:
        exited = self.exit_code_of(pid)
        if not exited.done():
            exited.set_result(code)
        asyncio.get_running_loop().call_later(REMEMBER_SEC, self._exits.pop, pid, None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.has_ended = True
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(ZygoteEnded())
