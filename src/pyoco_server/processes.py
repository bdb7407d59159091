"""Child processes that end with us: stopped politely, and by the kernel if we are killed."""

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
from pathlib import Path
from typing import IO

STOP_PATIENCE_SEC = 10.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def start_child(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | int | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in its own process group, so that Ctrl-C reaches us alone and we stop it in order."""
    return subprocess.Popen(  # noqa: S603 - the commands are ours
        [str(part) for part in command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout is not None else None,
        start_new_session=True,
        pass_fds=pass_fds,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
    )


def stop_child(child: subprocess.Popen[bytes], patience: float = STOP_PATIENCE_SEC) -> int:
    """SIGTERM, then after `patience` SIGKILL. Answers with the exit code."""
    if child.poll() is None:
        child.terminate()
    return await_child(child, patience)


def await_child(child: subprocess.Popen[bytes], patience: float) -> int:
    """Of one that was asked to stop: after `patience` SIGKILL. Answers with the exit code."""
    try:
        return child.wait(patience)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def stop_family(child: subprocess.Popen[bytes], patience: float = STOP_PATIENCE_SEC) -> None:
    """Like `stop_child`, with all that the child has started: it leads a process group of its own."""
    _signal_family(child, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while _signal_family(child, 0) and time.monotonic() < deadline:
        child.poll()  # one that has ended is of the group until it is asked for
        time.sleep(0.01)
    _signal_family(child, signal.SIGKILL)
    child.wait()


def end_group(leader: int) -> None:
    """Kill a process with its group, which it leads."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _signal_family(child: subprocess.Popen[bytes], sent: int) -> bool:
    """Whether there was anybody to send it to."""
    try:
        os.killpg(child.pid, sent)
    except ProcessLookupError:
        return False
    return True


# Looked up before the fork: between fork and exec nothing may be imported or allocated that another
# thread could hold a lock on.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def end_with_parent(sent: int = signal.SIGTERM) -> None:
    """Have the kernel send us this signal when our parent ends. Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(sent))


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent has ended, so that none gets away. Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def child_processes() -> set[int]:
    """Of this process. Empty where the system does not list them."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            found.update(map(int, path.read_text().split()))
    return found


# A port to listen on that stays free for a while.

_QUIET = range(20_000, 32_768)
"""Systems take the local ports of outgoing connections from above. One of those may be taken by anybody's
connection between the look and the use of it, or while the server on it is being restarted."""
_TRIES = 50


def free_port(host: str, preferred: int = 0) -> int:
    """`preferred` if nobody uses it, else any free one. Raises OSError if there is none."""
    for port in (preferred, *random.sample(_QUIET, _TRIES)):
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
    """The port that listening on `port` would get. Raises OSError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        found: int = probe.getsockname()[1]
        return found
