"""The zygote: the parent process of a worker's executors, which forks them on request.

A fresh Python takes a third of a second for the imports that a fork shares. The zygote has one thread and
runs no flows, so it is safe to fork; users' code is imported in the executor, after the fork.

Each executor leads a session and a process group, and the whole group ends with it: child processes of a run
do not outlive their executor. On Linux this includes processes that have left the group, because they become
children of the zygote when their parent ends.
"""

import errno
import gc
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import NoReturn

from pyoco_server.engine.executors.executor import Executor
from pyoco_server.engine.executors.protocol import ExecutorTickets
from pyoco_server.engine.output import Ends, OutputPipes
from pyoco_server.processes import adopt_orphans, child_processes, end_group, end_with_parent

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
        try:
            pid = os.fork()
            if pid == 0:
                os.close(waiting)
                self._become_executor(fds, leading)
        except OSError:
            os.close(waiting)
            raise
        finally:
            os.close(leading)
        self._executors.add(pid)
        os.read(waiting, 1)  # EOF: the executor leads its group, which can be killed
        os.close(waiting)
        return pid

    def _become_executor(self, fds: list[int], leading: int) -> NoReturn:
        code = 1
        try:
            self._detach(leading)
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

    def _detach(self, leading: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        adopt_orphans()
        end_with_parent(signal.SIGKILL)  # works even if a task holds the interpreter lock
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


def main() -> None:
    worker = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()  # children need not scan the imported modules, which would copy their pages
    adopt_orphans()
    ForkServer(worker).serve()


if __name__ == "__main__":
    main()
