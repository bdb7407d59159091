"""A command that is forked (`support/launcher.py`) behaves as one that starts a Python of its own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.forked import Forked, Launcher
from support.programs import Programs, command_of
from support.waiting import PATIENCE_SEC, until_now

TESTS = Path(__file__).parents[1]

Process = subprocess.Popen[bytes] | Forked
Start = Callable[[Path, Mapping[str, str], Path], Process]
"""A script, an environment, and the file for what it prints."""


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "ONLY_HERE": "1"}


@pytest.fixture(scope="module")
def launcher(environ: dict[str, str]) -> Iterator[Launcher]:
    found = Launcher({**environ, "OF_THE_LAUNCHER": "1"})
    yield found
    found.close()


@pytest.fixture
def both(launcher: Launcher) -> tuple[Start, Start]:
    """Fresh, then forked."""

    def fresh(script: Path, environ: Mapping[str, str], output: Path) -> Process:
        with output.open("wb") as sink:
            command = [sys.executable, str(script), "a", "b c"]
            return subprocess.Popen(
                command,
                env=environ,
                cwd=script.parent,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )

    def forked(script: Path, environ: Mapping[str, str], output: Path) -> Process:
        with output.open("wb") as sink:
            return launcher.start([str(script), "a", "b c"], script.parent, environ, sink, sink)

    return fresh, forked


class Bench:
    """Runs a script both ways."""

    def __init__(self, both: tuple[Start, Start], environ: dict[str, str], directory: Path) -> None:
        self._both = both
        self._environ = environ
        self._directory = directory

    def ends(self, source: str, sent: signal.Signals | None = None) -> list[tuple[int, str]]:
        """Exit codes and outputs. The signal is sent when the script has printed `ready`."""
        (self._directory / "script").write_text(source)
        return [self._end(start, sent) for start in self._both]

    def _end(self, start: Start, sent: signal.Signals | None) -> tuple[int, str]:
        output = self._directory / "output"
        with start(self._directory / "script", self._environ, output) as process:
            if sent is not None:
                until_now(lambda: "ready" in output.read_text())
                process.send_signal(sent)
            code = process.wait(PATIENCE_SEC)
        return code, output.read_text()


@pytest.fixture
def bench(both: tuple[Start, Start], environ: dict[str, str], tmp_path: Path) -> Bench:
    return Bench(both, environ, tmp_path)


FACTS = """
import gc, json, locale, os, resource, signal, subprocess, sys, threading, time

def buffering(stream):
    return [stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty()]

print(json.dumps({
    "arguments": sys.argv,
    "main": [__name__, __file__, sys.modules["__main__"].__file__],
    "path": sys.path,
    "environ": dict(os.environ),
    "environ of a child": sorted(subprocess.check_output("env", text=True).splitlines()),
    "directory": os.getcwd(),
    "handlers": {one: str(signal.getsignal(one)).partition(" at ")[0] for one in signal.valid_signals()},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "wakeup": signal.set_wakeup_fd(-1),
    "files": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in ("0", "1", "2")},
    "open": [fd for fd in range(1024) if os.path.exists(f"/proc/self/fd/{fd}")],
    "streams": [buffering(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "flags": list(sys.flags),
    "locale": locale.setlocale(locale.LC_ALL),
    "threads": threading.active_count(),
    "garbage": [gc.isenabled(), gc.get_threshold()],
    "switch interval": sys.getswitchinterval(),
    "group": [os.getpgrp(), os.getsid(0)],
    "limits": [resource.getrlimit(one) for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
    "umask": os.umask(0),
    "timezone": time.tzname,
}))
"""


def test_what_a_process_finds_is_the_same(bench: Bench) -> None:
    (_, fresh), (_, forked) = bench.ends(FACTS)
    assert json.loads(forked) == json.loads(fresh)
    assert "ONLY_HERE" in fresh


ENDS = {
    "its end": ("print('x')", 0),
    "a code": ("import sys; sys.exit(3)", 3),
    "no code": ("import sys; sys.exit()", 0),
    "a code that is too large": ("import sys; sys.exit(257)", 1),
    "a text": ("import sys; print('out'); sys.exit('reason')", 1),
    "an error": ("print('out')\ndef f(): 1 / 0\nf()", 1),
    "an interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
    "an unwritable output": (
        "import os; print('x'); os.dup2(os.open('/dev/full', os.O_WRONLY), 1); os.close(2)",
        120,
    ),
}


@pytest.mark.parametrize(("source", "code"), ENDS.values(), ids=ENDS)
def test_a_process_ends_in_the_same_way(bench: Bench, source: str, code: int) -> None:
    fresh, forked = bench.ends(source)
    assert forked == fresh
    assert fresh[0] == code


# Many short sleeps: a signal that arrives just before a system call is handled after it.
WAITS = "print('ready', flush=True)\n{0}for _ in range(60_000): time.sleep(0.01)"
SIGNALS = {
    "interrupted": (WAITS.format(""), signal.SIGINT, -signal.SIGINT),
    "interrupted, and ends by itself": (
        f"try:\n    {WAITS.format('    ')}\nexcept KeyboardInterrupt:\n    sys.exit(130)",
        signal.SIGINT,
        130,
    ),
    "ended": (WAITS.format(""), signal.SIGTERM, -signal.SIGTERM),
    "killed": (WAITS.format(""), signal.SIGKILL, -signal.SIGKILL),
}


@pytest.mark.parametrize(("source", "sent", "code"), SIGNALS.values(), ids=SIGNALS)
def test_a_signal_has_the_same_effect(bench: Bench, source: str, sent: signal.Signals, code: int) -> None:
    fresh, forked = bench.ends(f"import sys, time\n{source}", sent)
    assert forked == fresh
    assert fresh[0] == code


ORDER = """
import atexit, os, subprocess, sys, threading, time
atexit.register(print, "first registered")
atexit.register(print, "second registered")
print("held back")
print("error", file=sys.stderr)
subprocess.run(["echo", "of a child"])
os.write(1, b"unbuffered\\n")

def late():
    threading.main_thread().join()
    print("of a thread")

threading.Thread(target=late).start()
sys.exit("reason")
"""


def test_outputs_come_in_the_same_order(bench: Bench) -> None:
    fresh, forked = bench.ends(ORDER)
    assert forked == fresh
    assert fresh[1].index("of a child") < fresh[1].index("held back") < fresh[1].index("of a thread")


def test_two_processes_do_not_draw_the_same_numbers(bench: Bench) -> None:
    source = "import random, uuid_utils; print(random.random(), uuid_utils.uuid7(), uuid_utils.uuid4())"
    drawn = [bench.ends(source)[1][1].split() for _ in range(2)]
    assert not set(drawn[0]) & set(drawn[1])


# Which of the two a test gets


@pytest.mark.parametrize(
    ("changed", "is_forked"), [({}, True), ({"LC_ALL": "C"}, False), ({"TZ": "UTC"}, False)]
)
def test_what_python_reads_at_its_start_needs_a_start(
    programs: Programs, changed: dict[str, str], *, is_forked: bool
) -> None:
    with programs.started("pyoco-server", "up", "--port", "0", **changed) as up:
        until_now(lambda: re.search("launcher.py|pyoco-server", command_of(up.pid)))
        assert ("launcher.py" in command_of(up.pid)) == is_forked
        assert up.pid in programs.pids()


@pytest.mark.fresh_start
def test_a_test_may_ask_for_a_start(programs: Programs) -> None:
    with programs.started("pyoco-server", "up", "--port", "0") as up:
        until_now(lambda: "pyoco-server" in command_of(up.pid))


# Nothing hangs and nothing is left


def is_gone(pid: int) -> bool:
    """A process that has ended has no command any more, even if nobody has waited for it."""
    return not command_of(pid)


def test_without_its_launcher_a_test_fails_and_is_shown_why(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text("import time; time.sleep(600)")
    launcher = Launcher(environ)

    def start() -> Forked:
        with (tmp_path / "output").open("wb") as sink:
            return launcher.start([str(tmp_path / "script")], tmp_path, environ, sink, sink)

    process = start()
    os.kill(launcher.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="the launcher has ended with -9"), process:
        process.wait()
    with pytest.raises(RuntimeError, match="the launcher has ended with -9"):
        start()
    until_now(lambda: is_gone(process.pid))
    launcher.close()


def test_a_launcher_that_cannot_start_is_shown_with_its_error(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "pyoco_server.py").write_text("raise ImportError('broken')")
    launcher = Launcher({**environ, "PYTHONPATH": str(tmp_path)})
    with (tmp_path / "output").open("wb") as sink, pytest.raises(RuntimeError, match="ImportError: broken"):
        launcher.start(["script"], tmp_path, environ, sink, sink)
    launcher.close()


PYTEST = """
import os, sys
from pathlib import Path
from support.forked import Launcher

launcher, here = Launcher(dict(os.environ)), Path.cwd()
with open("output", "wb") as sink:
    process = launcher.start([str(here / "script")], here, dict(os.environ), sink, sink)
print(launcher.pid, process.pid, flush=True)
process.wait(600)
"""


def test_everything_ends_when_pytest_is_killed(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text("import time; time.sleep(600)")
    with subprocess.Popen(
        [sys.executable, "-c", PYTEST],
        env={**environ, "PYTHONPATH": str(TESTS)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as like_pytest:
        assert like_pytest.stdout is not None
        pids: list[Any] = like_pytest.stdout.readline().split()
        like_pytest.kill()
    assert len(pids) == 2
    for pid in pids:
        until_now(lambda pid=pid: is_gone(int(pid)))  # type: ignore[misc]
