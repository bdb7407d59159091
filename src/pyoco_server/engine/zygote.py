"""The parent of a worker's executors: it has everything imported, and forks one whenever it is asked.

A fresh Python takes a third of a second to import what a fork shares at once. This process has one thread and
runs no flows, so forking it is safe; users' code is imported after the fork, in the executor.
"""

import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import NoReturn

from pyoco_server.engine.executor import Executor
from pyoco_server.engine.output_pipes import Ends, OutputPipes
from pyoco_server.engine.tickets import ExecutorTickets

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
FORK = b"f"
"""A request, with the descriptors of the new executor."""
DESCRIPTORS = 7
"""Work, control, tickets, and the ends of the pipes of its output."""
STARTED, ENDED = 0, 1
REPORT = struct.Struct("!Bii")
"""(STARTED, pid, 0) in answer to a request; (ENDED, pid, exit code or negative signal) whenever one ends."""


def main() -> None:
    worker = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()  # what is imported stays: children need not look through it, nor copy its pages to do so
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    with suppress(BrokenPipeError, ConnectionResetError):  # the worker went away while we spoke to it
        while True:
            ready, _, _ = select.select([worker.fileno(), wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 512)
            _report_ended(worker)
            if worker.fileno() in ready and not _serve_request(worker):
                return


def _report_ended(worker: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        worker.sendall(REPORT.pack(ENDED, pid, os.waitstatus_to_exitcode(status)))


def _serve_request(worker: socket.socket) -> bool:
    """One executor, with the channels and tickets that came along. False: the worker is gone."""
    asked, fds, _, _ = socket.recv_fds(worker, len(FORK), DESCRIPTORS)
    if not asked:
        return False
    pid = os.fork()
    if pid == 0:
        _become_executor(worker, fds)
    for fd in fds:
        os.close(fd)
    worker.sendall(REPORT.pack(STARTED, pid, 0))
    return True


def _become_executor(worker: socket.socket, fds: list[int]) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if _libc is not None:  # a task that never lets go of the interpreter hears nothing else
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        worker.close()
        work, control, tickets, *ends = fds
        pipes = OutputPipes(Ends((ends[0], ends[1]), (ends[2], ends[3])))
        pipes.start()
        executor = Executor(
            socket.socket(fileno=work), socket.socket(fileno=control), ExecutorTickets(tickets), pipes
        )
        executor.serve()
        code = 0
    except (BrokenPipeError, ConnectionResetError):  # as above
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
