"""The zygote: the parent process of a worker's executors, which forks them on request.

A fresh Python takes a third of a second for the imports that a fork shares. The zygote has one thread and
runs no flows, so it is safe to fork; users' code is imported in the executor, after the fork.

Each executor leads a session and a process group, and the whole group ends with it: child processes of a run
do not outlive their executor. On Linux this includes processes that have left the group, because they become
children of the zygote when their parent ends.
"""

import asyncio
import errno
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from typing import NoReturn, Protocol

from pyoco_server import otel
from pyoco_server.engine.executors.executor import Executor
from pyoco_server.engine.executors.protocol import ExecutorTickets
from pyoco_server.engine.output import Ends, OutputPipes
from pyoco_server.processes import (
    adopt_orphans,
    child_processes,
    end_group,
    end_with_parent,
    start_child,
    stop_child,
)

FORK = b"f"
"""A request; the descriptors of the new executor come with it."""
DESCRIPTORS = 7
"""Work, control, tickets, and the ends of the output pipes."""
STARTED, ENDED, FAILED = 0, 1, 2
REPORT = struct.Struct("!Bii")
"""(STARTED, pid, 0) or (FAILED, errno, 0) as the reply to a request; (ENDED, pid, exit code or negative
signal) when an executor and its child processes have ended."""
END_TIMEOUT_SEC = 5.0


class ForkServer:
    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._executors: set[int] = set()
        self._is_stopping = False

    def serve(self) -> None:
        """Until the worker exits or sends SIGTERM."""
        wake = self._wake_on_signals()
        with suppress(BrokenPipeError, ConnectionResetError):  # the worker has exited
            while not self._is_stopping:
                ready, _, _ = select.select([self._worker.fileno(), wake], [], [])
                if wake in ready:
                    os.read(wake, 512)
                self._report_ended()
                if self._worker.fileno() in ready and not self._serve_request():
                    break
        self._end_all()

    def _wake_on_signals(self) -> int:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        return reading

    def _stop(self, *_: object) -> None:
        self._is_stopping = True

    # Starting executors

    def _serve_request(self) -> bool:
        """Fork one executor with the received descriptors. False: the worker has exited."""
        asked, fds, _, _ = socket.recv_fds(self._worker, len(FORK), DESCRIPTORS)
        if not asked:
            return False
        try:
            report = (STARTED, self._fork(fds), 0)
        except OSError as error:  # no processes or descriptors left: the worker retries
            report = (FAILED, error.errno or errno.EAGAIN, 0)
        finally:
            for fd in fds:
                os.close(fd)
        self._worker.sendall(REPORT.pack(*report))
        return True

    def _fork(self, fds: list[int]) -> int:
        if len(fds) != DESCRIPTORS:  # too many open files
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        waiting, leading = os.pipe()
        zygote = os.getpid()
        try:
            pid = os.fork()
            if pid == 0:
                os.close(waiting)
                self._become_executor(fds, leading, zygote)
        except OSError:
            os.close(waiting)
            raise
        finally:
            os.close(leading)
        self._executors.add(pid)
        os.read(waiting, 1)  # EOF: the executor leads its group, which can be killed
        os.close(waiting)
        return pid

    def _become_executor(self, fds: list[int], leading: int, zygote: int) -> NoReturn:
        code = 1
        try:
            self._detach(leading, zygote)
            for fd in fds:
                os.set_inheritable(fd, False)
            work, control, tickets, *ends = fds
            pipes = OutputPipes(Ends((ends[0], ends[1]), (ends[2], ends[3])))
            pipes.start()
            executor = Executor(
                socket.socket(fileno=work), socket.socket(fileno=control), ExecutorTickets(tickets), pipes
            )
            executor.keep_channels_from_forks()
            executor.serve()
            code = 0
        except (BrokenPipeError, ConnectionResetError):  # the worker has exited
            code = 0
        finally:
            with suppress(Exception):  # a task may have replaced the streams
                sys.stdout.flush()
                sys.stderr.flush()
            _exit(code)

    def _detach(self, leading: int, zygote: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        adopt_orphans()
        end_with_parent(zygote, signal.SIGKILL)  # works even if a task holds the interpreter lock
        os.close(leading)
        self._worker.close()

    # Ending executors

    def _report_ended(self) -> None:
        while (ended := _next_ended()) is not None:
            pid, code = ended
            self._end_orphans()
            if pid in self._executors:
                self._executors.discard(pid)
                self._worker.sendall(REPORT.pack(ENDED, pid, code))

    def _end_orphans(self) -> None:
        """Processes that have left the group of an executor that has ended."""
        for pid in child_processes() - self._executors:
            end_group(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _end_all(self) -> None:
        for pid in self._executors:
            end_group(pid)
        deadline = time.monotonic() + END_TIMEOUT_SEC
        with suppress(ChildProcessError):
            while time.monotonic() < deadline:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                self._executors.discard(pid)
                self._end_orphans()
                if pid == 0:
                    time.sleep(0.005)


_exit = os._exit  # bound now: a task may replace the function of the module


def _next_ended() -> tuple[int, int] | None:
    """Reap one ended child and kill the rest of its group. Returns pid and exit code."""
    try:
        if hasattr(os, "waitid"):  # not on every macOS
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return None
            end_group(found.si_pid)  # before it is reaped: its pid cannot be reused yet
            pid, status = os.waitpid(found.si_pid, 0)
        else:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return None
            end_group(pid)
    except ChildProcessError:
        return None
    return pid, os.waitstatus_to_exitcode(status)


# The worker's side: requests for new executors, and reports of their exits


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


# The process itself


def main() -> None:
    worker = socket.socket(fileno=int(sys.argv[1]))
    otel.preload()
    gc.freeze()  # children need not scan the imported modules, which would copy their pages
    adopt_orphans()
    ForkServer(worker).serve()


if __name__ == "__main__":
    main()
