"""Child processes, which end if this process is killed; and free ports."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

STOP_TIMEOUT_SEC = 10.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def start_child(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | int | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in its own session, so that Ctrl-C reaches only us and we stop it in order."""
    child = subprocess.Popen(  # noqa: S603 - our own commands
        [str(part) for part in command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout is not None else None,
        start_new_session=True,
        pass_fds=pass_fds,
        preexec_fn=None if _libc is None else partial(end_with_parent, os.getpid()),  # noqa: PLW1509
    )
    if _libc is None:
        guard(child.pid)
    return child


_GUARD = """
import os, select, signal, sys
pid = int(sys.argv[1])
while not select.select([0], [], [], 1)[0]:
    os.kill(pid, 0)
os.kill(pid, signal.SIGTERM)
"""
"""Ends with an error, unseen, once there is no such process any more."""
_guards: list[subprocess.Popen[bytes]] = []


def guard(pid: int) -> None:
    """Send SIGTERM to a child when this process ends, for systems whose kernel does not.

    A process of its own waits for the end of a pipe that only this process holds open.
    """
    _guards[:] = [one for one in _guards if one.poll() is None]
    command = [sys.executable, "-I", "-S", "-c", _GUARD, str(pid)]
    _guards.append(
        subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    )


def stop_child(child: subprocess.Popen[bytes], timeout: float = STOP_TIMEOUT_SEC) -> int:
    """SIGTERM, then SIGKILL after `timeout`. Returns the exit code."""
    if child.poll() is None:
        child.terminate()
    return await_child(child, timeout)


def await_child(child: subprocess.Popen[bytes], timeout: float) -> int:
    """Wait for a stopping child, with SIGKILL after `timeout`. Returns the exit code."""
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def stop_group(child: subprocess.Popen[bytes], timeout: float = STOP_TIMEOUT_SEC) -> None:
    """Like `stop_child` for the child's whole process group."""
    _signal_group(child, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while _signal_group(child, 0) and time.monotonic() < deadline:
        child.poll()  # a zombie stays in the group until it is reaped
        time.sleep(0.01)
    _signal_group(child, signal.SIGKILL)
    child.wait()


def end_group(leader: int) -> None:
    """Kill a process group by its leader."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _signal_group(child: subprocess.Popen[bytes], sent: int) -> bool:
    """Whether the group still exists."""
    try:
        os.killpg(child.pid, sent)
    except ProcessLookupError:
        return False
    return True


# Loaded before the fork: between fork and exec nothing may be imported or allocated, because another
# thread could hold the lock.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def end_with_parent(parent: int, sent: int = signal.SIGTERM) -> None:
    """In a fork of `parent`: receive this signal from the kernel when the parent ends. Linux only.

    A parent that was killed right after the fork sends nothing any more, so its child ends here.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(sent))
        if os.getppid() != parent:
            os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that none escapes. Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def child_processes() -> set[int]:
    """Child pids of this process. Empty where the system does not list them."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            found.update(map(int, path.read_text().split()))
    return found


def boot_id() -> str:
    """Another one after every start of the system. Empty where the system has none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


# Ports

_BELOW_EPHEMERAL = range(20_000, 32_768)
"""Below the ephemeral range: an outgoing connection of any program could take a port from that range between
the check and its use, or during a restart of the server."""
_TRIES = 50


def free_port(host: str, preferred: int = 0) -> int:
    """`preferred` if it is free, else any free port. Raises OSError if there is none."""
    for port in (preferred, *random.sample(_BELOW_EPHEMERAL, _TRIES)):
        if port:
            with suppress(OSError):
                return bound(host, port)
    return bound(host, 0)


def is_taken(host: str, port: int) -> bool:
    try:
        bound(host, port)
    except OSError:
        return True
    return False


def bound(host: str, port: int) -> int:
    """The port that a listener on `port` would get. Raises OSError if it is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        found: int = probe.getsockname()[1]
        return found
