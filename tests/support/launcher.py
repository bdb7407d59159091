"""The launcher: a process that has imported what our commands import, and forks one of them per request.

What it forks is a process like any other, with a pid, signals, files and an environment of its own. Only the
start of Python and the imports are shared; they were nine tenths of what a short command took. What differs:
the command line and the environment in /proc are the launcher's, and so are the seed of `hash` and the limits
of resources.

It runs as a script and imports nothing of the tests, so that a command does not find it either.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

IMPORTED = (
    "pyoco_server.admin_cli",
    "pyoco_server.cli.client",
    "pyoco_server.cli.server",
    "pyoco_server.cli.worker",
    # What they import when they need it:
    "pyoco_server.cli.serving",
    "pyoco_server.cli.doctor",
    "pyoco_server.cli.serving",
    "encodings.idna",
    "httpcore2",
    "pydantic.dataclasses",
    "pyoco_server.http_client.transport",
    "uvicorn.lifespan.on",
    "uvloop",
)
DESCRIPTORS = 3
"""Of a request: the channel of the new process, its stdout and its stderr."""
FLUSH_FAILED = 120
"""What Python ends with when its last output cannot be written."""


class Launcher:
    """One thread, no event loop: it is safe to fork."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._living: dict[int, tuple[int, socket.socket]] = {}
        """The pid and the channel of each process, by the descriptor that becomes readable at its end."""
        self._on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
        self._poll = select.poll()  # it has no descriptor, as a selector might
        self._poll.register(requests, select.POLLIN)

    def serve(self) -> None:
        """Until pytest ends, however it does: what lives then ends with this process."""
        while True:
            for ready, _ in self._poll.poll():
                if ready in self._living:
                    self._report_end(ready)
                elif not self._serve_request():
                    return

    def _serve_request(self) -> bool:
        asked, fds, _, _ = socket.recv_fds(self._requests, 1, DESCRIPTORS)
        if not asked:
            return False
        channel = socket.socket(fileno=fds[0])
        with channel.makefile("rb") as text:
            request = json.loads(text.readline())
        everything = signal.valid_signals()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, everything)  # until the child can handle them
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            channel.close()
            processes = importlib.import_module("pyoco_server.processes")
            processes.end_with_parent(launcher, signal.SIGKILL)
            self._become(request, fds[1], fds[2], mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for fd in fds[1:]:
            os.close(fd)
        ended = os.pidfd_open(pid)
        self._living[ended] = (pid, channel)
        self._poll.register(ended, select.POLLIN)
        _send(channel, pid)
        return True

    def _report_end(self, ended: int) -> None:
        self._poll.unregister(ended)
        os.close(ended)
        pid, channel = self._living.pop(ended)
        with channel:
            _send(channel, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    # The child

    def _become(self, request: dict[str, Any], stdout: int, stderr: int, mask: set[int]) -> NoReturn:
        """As if Python had been started for this command."""
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        self._requests.close()
        for _, channel in self._living.values():
            channel.close()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["directory"])
        sys.argv = request["command"]
        signal.signal(signal.SIGINT, self._on_interrupt)
        code = FLUSH_FAILED
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = _flushed(_run(Path(sys.argv[0])))
        finally:
            os._exit(code)


def _send(channel: socket.socket, number: int) -> None:
    with suppress(ConnectionError):  # the test has ended and does not wait for it
        channel.sendall(b"%d\n" % number)


def _run(script: Path) -> int:
    """The script as `__main__`, and then what Python does at its end. Returns the exit code.

    Python itself would also take a thousand modules apart, for 0.4 s.
    """
    sys.path[0] = str(script.parent)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = str(script)
    try:
        exec(compile(script.read_bytes(), script, "exec"), vars(main))  # noqa: S102 - as Python does it
        code = 0
    except SystemExit as error:
        code = _code_of(error)
    except BaseException as error:  # noqa: BLE001
        _show(error)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code


def _code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stdout.flush()
    sys.stderr.write(f"{error.code}\n")
    return 1


def _show(error: BaseException) -> None:
    """Without the frame of this file."""
    sys.stdout.flush()
    trace = error.__traceback__ and error.__traceback__.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return FLUSH_FAILED
    if code == -signal.SIGINT:  # whoever waits is to see why it ended
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def main() -> None:
    launcher = Launcher(socket.socket(fileno=int(sys.argv[1])))
    sys.path[0] = ""  # nothing is found beside this file
    for module in IMPORTED:
        importlib.import_module(module)
    tasks = len(list(Path("/proc/self/task").iterdir()))
    if tasks != 1:
        raise RuntimeError(f"{tasks} threads after the imports: it is not safe to fork")
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at
    launcher.serve()


if __name__ == "__main__":
    main()
