"""Child processes that end with us: stopped politely, and by the kernel if we are killed."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

STOP_PATIENCE_SEC = 10.0
_PR_SET_PDEATHSIG = 1


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
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
    )


def stop_child(child: subprocess.Popen[bytes], patience: float = STOP_PATIENCE_SEC) -> int:
    """SIGTERM, then after `patience` SIGKILL. Answers with the exit code."""
    if child.poll() is None:
        child.terminate()
    try:
        return child.wait(patience)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


# Looked up before the fork: between fork and exec nothing may be imported or allocated that another
# thread could hold a lock on.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
