"""What a process costs, from /proc; and processes that are surely gone afterwards."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

END_SEC = 5.0


def cpu_seconds(pid: int) -> float:
    """Its own, and of those below it."""
    return sum(_cpu(one) for one in [pid, *descendants(pid)])


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory_mb(pids: Iterable[int]) -> float:
    """Of processes and those below them; what several share is counted once (the kernel's "PSS")."""
    return sum(_pss_mb(one) for pid in pids for one in [pid, *descendants(pid)])


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it may end while it is looked at
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += [int(child) for child in (task / "children").read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss_mb(pid: int) -> float:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def unwind_on_sigterm() -> None:
    """A benchmark that is ended leaves no process behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def stop(child: subprocess.Popen[bytes]) -> None:
    """Asked first, then killed: a process that hangs must not make the benchmark hang."""
    child.terminate()
    try:
        child.wait(END_SEC)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@contextmanager
def process(*command: str | Path, cwd: Path, **environ: str) -> Iterator[int]:
    """The id of a process with a group of its own, of which nothing is left afterwards."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **environ},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield child.pid
        finally:
            stop(child)
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def is_listening(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False
