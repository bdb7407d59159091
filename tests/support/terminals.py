"""Our commands in a terminal, and what a person sees there."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pexpect
import pyte

from support.programs import SCRIPTS, Programs
from support.waiting import PATIENCE_SEC


class Terminal:
    """A screen that somebody looks at; it is read while something is waited for."""

    def __init__(self, child: pexpect.spawn, columns: int, lines: int) -> None:
        self._child = child
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display if line.strip()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def shows(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE_SEC
        while (found := re.search(pattern, self.text)) is None:
            assert self._read(), f"ended and never showed {pattern!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"never showed {pattern!r}:\n{self.text}"
        return found

    def press_ctrl_c(self) -> None:
        self._child.sendcontrol("c")

    def ends(self) -> int | None:
        """Its exit code, when all that it wrote was read."""
        deadline = time.monotonic() + PATIENCE_SEC
        while self._read():
            assert time.monotonic() < deadline, f"does not end:\n{self.text}"
        self._child.wait()
        code: int | None = self._child.exitstatus
        return code

    def column_of(self, word: str, line: str) -> int:
        """In cells: a wide character has two."""
        return sum(_cells(character) for character in line[: line.index(word)])

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            data = self._child.read_nonblocking(65536, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True


@contextmanager
def in_terminal(
    programs: Programs, *command: str, columns: int = 80, lines: int = 24, **environ: str
) -> Iterator[Terminal]:
    plain = {k: v for k, v in programs.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    child = pexpect.spawn(
        str(SCRIPTS / command[0]),
        list(command[1:]),
        cwd=str(programs.directory),
        env={**plain, "TERM": "xterm-256color", **environ},
        dimensions=(lines, columns),
        timeout=PATIENCE_SEC,
    )
    try:
        yield Terminal(child, columns, lines)
    finally:
        if child.isalive():
            child.kill(signal.SIGKILL)
        child.close()


def _cells(character: str) -> int:
    return int(pyte.screens.wcwidth(character))
