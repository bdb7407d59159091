"""Our commands as real processes, and whether any of them is left."""

import os
import re
import secrets
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from support.forked import COMMANDS, Forked, launcher_for, start_settings
from support.waiting import PATIENCE_SEC, until_now

SCRIPTS = Path(sysconfig.get_path("scripts"))
SETTINGS = ("PYOCO_", "AX_", "OTEL_")
"""How the variables begin that set something. Nothing of the machine's own may reach what a test starts."""
Process = subprocess.Popen[bytes] | Forked
Output = IO[bytes] | IO[str]


class Programs:
    """Starts commands in one directory, and finds all their processes by a mark in the environment."""

    forks = True
    """Our commands are forked from a launcher, where that makes no difference."""

    def __init__(self, directory: Path, **environ: str) -> None:
        proc()  # or none of them would be found again
        self.directory = directory
        self.scripts = SCRIPTS
        self._mark = f"STARTED_BY_TEST={secrets.token_hex(8)}"
        self._forked: list[Forked] = []
        plain = {
            **{key: value for key, value in os.environ.items() if not key.startswith(SETTINGS)},
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "LC_ALL": "C.UTF-8",
            **environ,
        }
        name, _, value = self._mark.partition("=")
        self._plain_environ = plain
        self.environ = {**plain, name: value}

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """To its end."""
        with (
            tempfile.TemporaryFile("w+") as stdout,
            tempfile.TemporaryFile("w+") as stderr,
            self._start(command, environ, stdout, stderr) as process,
        ):
            try:
                code = process.wait(PATIENCE_SEC)
            finally:
                process.kill()
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(command, code, stdout.read(), stderr.read())

    @contextmanager
    def started(self, *command: str, **environ: str) -> Iterator["Program"]:
        """Until the test ends it, or the block does."""
        output = self.directory / f"output-{secrets.token_hex(4)}"
        with output.open("wb") as sink, self._start(command, environ, sink, sink) as process:
            try:
                yield Program(process, output, " ".join(command))
            finally:
                process.kill()

    def _start(
        self, command: Sequence[str], environ: Mapping[str, str], stdout: Output, stderr: Output
    ) -> Process:
        whole = {**self.environ, **environ}
        path = [str(self.scripts / command[0]), *command[1:]]
        if (
            not self.forks
            or command[0] not in COMMANDS
            or start_settings(whole) != start_settings(self._plain_environ)
        ):
            return subprocess.Popen(
                path,
                cwd=self.directory,
                env=whole,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        forked = launcher_for(self._plain_environ).start(path, self.directory, whole, stdout, stderr)
        self._forked.append(forked)
        return forked

    def pids(self) -> set[int]:
        """Every process of ours that runs now. What is forked shows the environment of its launcher."""
        marked = {pid for pid in _all_pids() if self._mark.encode() in _environ_of(pid).split(b"\0")}
        return marked | {forked.pid for forked in self._forked if forked.poll() is None}

    def kill(self, pid: int) -> None:
        """One of ours, by its id."""
        assert pid in self.pids()
        os.kill(pid, signal.SIGKILL)

    def are_gone(self) -> bool:
        deadline = time.monotonic() + PATIENCE_SEC
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.pids()


class FreshPrograms(Programs):
    """Each command starts a Python of its own, as for a user."""

    forks = False


class Program:
    def __init__(self, process: Process, output: Path, command: str) -> None:
        self._process = process
        self._output = output
        self.command = command

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def says(self, pattern: str, start: int = 0) -> re.Match[str]:
        """Waits until its output has `pattern`, not before the character `start`."""
        deadline = time.monotonic() + PATIENCE_SEC
        while (found := re.compile(pattern).search(self.output, start)) is None:
            ended = self._process.poll()
            assert ended is None, f"ended with {ended} and never said {pattern!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"never said {pattern!r}:\n{self.output}"
            time.sleep(0.02)
        return found

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, signal_: signal.Signals) -> None:
        self._process.send_signal(signal_)

    def exit_code(self) -> int:
        """Waits for its end."""
        return self._process.wait(PATIENCE_SEC)

    def ends_after(self, sent: signal.Signals) -> int:
        """Its exit code after a signal."""
        self._process.send_signal(sent)
        return self._process.wait(PATIENCE_SEC)


def proc(path: str = "") -> Path:
    """What Linux shows of processes. A test that has to see it is skipped elsewhere, on macOS say."""
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc, to observe processes")
    return Path("/proc") / path


def _all_pids() -> list[int]:
    return [int(path.name) for path in proc().iterdir() if path.name.isdigit()]


def _environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or it is somebody else's
        return b""


def children_of(pid: int) -> list[int]:
    return [child for child in _all_pids() if _parent_of(child) == pid]


def _parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return None


def freeze(pid: int) -> None:
    """Until none of its threads runs any more: that is a moment after the signal."""
    proc()
    os.kill(pid, signal.SIGSTOP)
    until_now(lambda: threads_of(pid), lambda states: states == {"T"})


def threads_of(pid: int) -> set[str]:
    """What its threads do, as letters: `T` for one that was stopped."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}


def command_of(pid: int) -> str:
    """Empty when it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def peak_memory_of(pid: int) -> int:
    """In bytes: the most that the process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
