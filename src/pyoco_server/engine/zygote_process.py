"""The zygote as the worker sees it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque

from pyoco_server.engine.executor_messages import ExecutorSpec, frame
from pyoco_server.engine.zygote import ENDED, REPORT, STARTED
from pyoco_server.processes import start_child, stop_child

REMEMBER_SEC = 2.0
"""For so long it is known how an executor has ended."""


class Zygote(asyncio.Protocol):
    """The process that forks executors, and tells how they ended."""

    def __init__(self, child: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._child = child
        self._channel = channel
        self._buffer = bytearray()
        self._asked: deque[asyncio.Future[int]] = deque()
        self._exits: dict[int, asyncio.Future[int]] = {}

    @classmethod
    async def start(cls) -> "Zygote":
        ours, theirs = socket.socketpair()
        # One end is only for asking: descriptors cannot be sent through a transport.
        child = start_child(
            [sys.executable, "-m", "pyoco_server.engine.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        reading = ours.dup()
        zygote = cls(child, ours)
        ours.setblocking(True)
        await asyncio.get_running_loop().create_unix_connection(lambda: zygote, sock=reading)
        return zygote

    async def fork(self, spec: ExecutorSpec, descriptors: list[int]) -> int:
        """The new executor's pid. The descriptors become its own, and are closed here."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        socket.send_fds(self._channel, [frame(spec)], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return await asked

    def exit_code_of(self, pid: int) -> "asyncio.Future[int]":
        return self._exits.setdefault(pid, asyncio.get_running_loop().create_future())

    def stop(self) -> None:
        self._channel.close()
        stop_child(self._child)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= REPORT.size:
            kind, pid, code = REPORT.unpack_from(self._buffer)
            del self._buffer[: REPORT.size]
            if kind == STARTED:
                self._asked.popleft().set_result(pid)
            elif kind == ENDED:
                self._exited(pid, code)

    def _exited(self, pid: int, code: int) -> None:
        exited = self.exit_code_of(pid)
        if not exited.done():
            exited.set_result(code)
        asyncio.get_running_loop().call_later(REMEMBER_SEC, self._exits.pop, pid, None)
