"""Our commands as processes that are forked from a launcher (`launcher.py`), one per pytest process."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from support import launcher
from support.waiting import PATIENCE_SEC

COMMANDS = frozenset(
    {"pyoco-client", "pyoco-server", "pyoco-server-admin", "pyoco-worker"}
    if hasattr(os, "pidfd_open")
    else ()
)
"""Which are forked; none where the launcher cannot wait for them (macOS)."""
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TZ")
"""How the variables begin that Python and the C library read at their start, and never again."""


def start_settings(environ: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in environ.items() if name.startswith(READ_AT_START))


class Forked:
    """A process, with what we use of `subprocess.Popen`."""

    def __init__(self, channel: socket.socket, source: "Launcher") -> None:
        self._channel = channel
        self._numbers = channel.makefile("rb")
        self._source = source
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = self._next()

    def poll(self) -> int | None:
        with suppress(TimeoutError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = PATIENCE_SEC) -> int:
        if self.returncode is None:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise TimeoutError(f"{self.pid} still runs after {timeout} s")
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._end()
        return self.returncode

    def _end(self) -> int:
        try:
            return self._next()
        except ConnectionError:
            raise self._source.ended() from None

    def send_signal(self, sent: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, sent)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._numbers.close()
            self._channel.close()

    def _next(self) -> int:
        """The next number from the launcher: first the pid, then the exit code."""
        line = self._numbers.readline()
        if not line:
            raise ConnectionResetError
        return int(line)


class Launcher:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as this object
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, launcher.__file__, str(theirs.fileno())],
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def start(
        self,
        command: Sequence[str],
        directory: Path,
        environ: Mapping[str, str],
        stdout: IO[bytes] | IO[str],
        stderr: IO[bytes] | IO[str],
    ) -> Forked:
        request = {"command": command, "directory": str(directory), "environ": dict(environ)}
        channel, theirs = socket.socketpair()
        try:
            with theirs:
                fds = [theirs.fileno(), stdout.fileno(), stderr.fileno()]
                socket.send_fds(self._requests, [b"f"], fds)
            channel.sendall(json.dumps(request).encode() + b"\n")
            return Forked(channel, self)
        except ConnectionError:
            channel.close()
            raise self.ended() from None

    def ended(self) -> RuntimeError:
        """Why nothing can be started, and nothing is known of what was."""
        code = self._process.wait(PATIENCE_SEC)
        self._log.seek(0)
        return RuntimeError(f"the launcher has ended with {code}:\n{self._log.read()}")

    def close(self) -> None:
        atexit.unregister(self.close)
        with suppress(OSError):  # it has ended already
            self._requests.shutdown(socket.SHUT_RDWR)
        self._requests.close()
        self._process.wait(PATIENCE_SEC)
        self._log.close()


_launchers: dict[frozenset[tuple[str, str]], Launcher] = {}
_lock = threading.Lock()


def launcher_for(environ: Mapping[str, str]) -> Launcher:
    """One for each kind of Python that the variables ask for."""
    with _lock:
        key = start_settings(environ)
        if key not in _launchers or _launchers[key].has_ended:
            _launchers[key] = Launcher(environ)
        return _launchers[key]
