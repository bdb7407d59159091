"""Somebody with a few terminals in one directory, who follows a page of the documentation to the letter.

The ports are the test's own, set as the tutorial describes it: by PYOCO_HTTP_PORT. They replace the
default ones in the files, commands and outputs of the page.
"""

import re
import shlex
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from support.nats_server import free_port
from support.page import File, NotRun, Step, Typed, line_pattern, pattern
from support.programs import Program, Programs
from support.shell import Shell, open_shell
from support.waiting import until_now

STAYING = ("pyoco-server up", "pyoco-server mcp", "pyoco-worker", "python receiver.py")
"""Commands that run until they are stopped."""
READING = re.compile(
    r"pyoco-client (get|list|list-vnext|logs|waits|workers|executions (get|events)|events summary"
    r"|dead-letters list|deliveries list)\b"
    r"|curl -s http\S+$"
)
"""Commands that a reader types again if the server is not ready with what they show."""
INSTALLATION = re.compile(r"(python3 -m venv|pip install) [^&]+(&& \. \S+)?")
"""Commands that are typed only where nothing is installed."""
INSTALLED = {
    "PIP_NO_BUILD_ISOLATION": "false",  # no isolation: what builds the wheel is installed
    "PYTEST_ADDOPTS": "-p no:asyncio",  # it warns of options that no page needs
}
"""Settings for an environment that has what the pages install, and more."""
DEFAULT_HTTP = "http://127.0.0.1:8000"
DEFAULT_NATS = "nats://127.0.0.1:4222"
OTHER_PORTS = ("8765", "8001", "8100")
"""Of a receiver, of a worker and of tools for agents."""
_SETTING = re.compile(r"[A-Z_]+=")


class Desk:
    def __init__(self, programs: Programs, *, installs: bool = False) -> None:
        port = free_port()
        self._programs = programs
        self._installs = installs
        self._programs.environ |= {
            "PYOCO_HTTP_PORT": str(port),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **({} if installs else INSTALLED),
        }
        self._stack = ExitStack()
        self._shell: Shell | None = None
        self._running: dict[str, tuple[Program, ExitStack]] = {}
        self._seen: dict[str, int] = {}
        self._http = f"http://127.0.0.1:{port}"
        self._nats = DEFAULT_NATS
        self._other_ports = {written: str(free_port()) for written in OTHER_PORTS}

    def __enter__(self) -> Self:
        self._shell = self._stack.enter_context(open_shell(self._programs))
        return self

    def __exit__(self, *_: object) -> None:
        for _program, stack in self._running.values():
            stack.close()
        self._stack.close()

    def do(self, step: Step) -> None:
        match step:
            case NotRun():
                pass
            case File():
                self._write(step)
            case Typed(command="^C"):
                self._interrupt(step.terminal)
            case Typed(command=""):
                self._look(step)
            case Typed() if _is_staying(step.command):
                self._start(step)
            case Typed() if self._installs or not INSTALLATION.fullmatch(step.command):
                self._type(step)

    @property
    def busy_terminals(self) -> list[str]:
        return list(self._running)

    def _write(self, file: File) -> None:
        """A worker that follows the directory has a second to notice, as it has with a person."""
        path = self._programs.directory / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        option = f"--flows {Path(file.path).parent}"
        followers = [program for program, _ in self._running.values() if option in program.command]
        printed = [len(program.output) for program in followers]
        path.write_text(self._here(file.text))
        for program, start in zip(followers, printed, strict=True):
            assert program.says(r"flows\.(reloaded|unusable).*", start)[1] == "reloaded", program.output

    def _start(self, step: Typed) -> None:
        environ, command = _settings_and_command(self._here(step.command))
        if self._runs_already(step.terminal, command):
            return
        stack = ExitStack()
        program = stack.enter_context(self._programs.started(*command, **environ))
        self._running[step.terminal], self._seen[step.terminal] = (program, stack), 0
        if command[:2] == ["pyoco-server", "up"]:
            self._notice_nats(program)
        self._look(step)
        if command[:2] == ["pyoco-server", "mcp"]:
            program.says("Ctrl-C stops it")
        elif command[0].startswith("pyoco-"):
            program.says("worker ready" if "worker" in step.command else "gateway ready")

    def _runs_already(self, terminal: str, command: list[str]) -> bool:
        """A page may find what the page before it has started."""
        if terminal not in self._running:
            return False
        assert self._running[terminal][0].command == " ".join(command), f"{terminal} is busy"
        return True

    def _notice_nats(self, server: Program) -> None:
        """NATS takes another port if it has to, and the first line shows which."""
        self._nats = server.says(r"NATS +started here at (nats://[\d.:]+),")[1]

    def _look(self, step: Typed) -> None:
        """What is shown is printed by the program of that terminal, in this order, perhaps with more."""
        program, _ = self._running[step.terminal]
        for line in step.output:
            found = program.says(line_pattern(self._here(line)), self._seen[step.terminal])
            self._seen[step.terminal] = found.end()

    def _interrupt(self, terminal: str) -> None:
        program, stack = self._running.pop(terminal)
        with stack:
            assert program.ends_after(signal.SIGINT) == 130

    def _type(self, step: Typed) -> None:
        if READING.match(step.command) and step.output:
            until_now(lambda: self._printed(step), lambda printed: self._is_as_shown(printed, step))
        else:
            printed = self._printed(step)
            shown = "\n".join(step.output)
            assert self._is_as_shown(printed, step), f"$ {step.command}\n{printed}\nis not\n{shown}"

    def _printed(self, step: Typed) -> str:
        assert self._shell is not None
        printed = self._shell.run(self._here(step.command), step.exit_code)
        return printed if not printed or printed.endswith("\n") else printed + "\n"  # curl ends no line

    def _is_as_shown(self, printed: str, step: Typed) -> bool:
        """Where a page shows nothing, only the exit code counts."""
        shown = [self._here(line) for line in step.output]
        return not shown or re.fullmatch(pattern(shown), printed) is not None

    def _here(self, text: str) -> str:
        here = text.replace(DEFAULT_HTTP, self._http).replace(DEFAULT_NATS, self._nats)
        return re.sub("|".join(OTHER_PORTS), lambda port: self._other_ports[port[0]], here)


def _is_staying(command: str) -> bool:
    return any(name in command for name in STAYING) and " ".join(
        _settings_and_command(command)[1]
    ).startswith(STAYING)


def _settings_and_command(command: str) -> tuple[dict[str, str], list[str]]:
    words = shlex.split(command)
    settings = [word for word in words if _SETTING.match(word)]
    return dict(word.split("=", 1) for word in settings), words[len(settings) :]
