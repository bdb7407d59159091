"""The tutorial is run to the letter: its files are written, its commands typed, its outputs compared.

The ports are the tests' own, set as the page tells a reader to: by PYOCO_HTTP_PORT, PYOCO_SERVER_URL and
PYOCO_NATS_URL. `pip install pyoco-server` is taken as done.
"""

import re
import shlex
import signal
from contextlib import ExitStack, closing
from pathlib import Path

from support.nats_server import free_port
from support.page import File, Typed, line_pattern, pattern, steps
from support.programs import Program, Programs
from support.shell import Shell, open_shell

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
INSTALL = "pip install pyoco-server"
STAYING = ("pyoco-server up", "pyoco-worker")
"""Commands that go on until they are told to stop."""
DEFAULT_HTTP = "http://127.0.0.1:8000"
DEFAULT_NATS = "nats://127.0.0.1:4222"


class Desk:
    """Somebody with a few terminals in one directory, who follows a page."""

    def __init__(self, programs: Programs, shell: Shell) -> None:
        self._programs = programs
        self._shell = shell
        self._running: dict[str, tuple[Program, ExitStack]] = {}
        self._seen: dict[str, int] = {}
        self._http = f"http://127.0.0.1:{programs.environ['PYOCO_HTTP_PORT']}"
        self._nats = DEFAULT_NATS

    def do(self, step: File | Typed) -> None:
        if isinstance(step, File):
            self._write(step)
        elif step.command == "^C":
            self._interrupt(step.terminal)
        elif step.command.startswith(STAYING):
            self._start(step)
        elif not step.command:
            self._look(step)
        elif step.command != INSTALL:
            self._type(step)

    @property
    def busy_terminals(self) -> list[str]:
        return list(self._running)

    def close(self) -> None:
        for _, stack in self._running.values():
            stack.close()

    def _write(self, file: File) -> None:
        path = self._programs.directory / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)

    def _start(self, step: Typed) -> None:
        assert step.terminal not in self._running, f"{step.terminal} is busy"
        stack = ExitStack()
        program = stack.enter_context(self._programs.started(*shlex.split(step.command)))
        self._running[step.terminal], self._seen[step.terminal] = (program, stack), 0
        if step.command.startswith("pyoco-server"):
            self._tell_workers(program)
        self._look(step)

    def _tell_workers(self, server: Program) -> None:
        """As the page says: NATS takes another port if it has to, and the first line shows which."""
        self._nats = server.says(r"NATS +started here at (nats://[\d.:]+),")[1]
        self._programs.environ["PYOCO_NATS_URL"] = self._nats

    def _look(self, step: Typed) -> None:
        """What is shown is said by the program of that terminal, in this order, perhaps with more between."""
        program, _ = self._running[step.terminal]
        for line in step.output:
            found = program.says(f"(?s:.{{{self._seen[step.terminal]},}}?)" + line_pattern(self._here(line)))
            self._seen[step.terminal] = found.end()

    def _interrupt(self, terminal: str) -> None:
        program, stack = self._running.pop(terminal)
        if program.command.startswith("pyoco-server"):
            del self._programs.environ["PYOCO_NATS_URL"]  # a reader's server has a NATS of its own, too
        with stack:
            assert program.ends_after(signal.SIGINT) == 130

    def _type(self, step: Typed) -> None:
        output = self._shell.run(self._here(step.command))
        expected = [self._here(line) for line in step.output]
        if output and not output.endswith("\n"):
            output += "\n"  # curl ends no line
        assert re.fullmatch(pattern(expected), output), f"$ {step.command}\n{output}\nis not\n{expected}"

    def _here(self, line: str) -> str:
        return line.replace(DEFAULT_HTTP, self._http).replace(DEFAULT_NATS, self._nats)


def test_the_tutorial_does_what_it_says(programs: Programs) -> None:
    port = free_port()
    programs.environ |= {
        "PYOCO_HTTP_PORT": str(port),
        "PYOCO_SERVER_URL": f"http://127.0.0.1:{port}",
        "PIP_NO_BUILD_ISOLATION": "false",  # which means: no isolation; what builds the wheel is installed
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    with open_shell(programs) as shell, closing(Desk(programs, shell)) as desk:
        for step in steps(TUTORIAL):
            desk.do(step)
        assert desk.busy_terminals == [], "the page leaves something running"
