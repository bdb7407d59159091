"""A shell that somebody types into."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from support.programs import Programs
from support.waiting import PATIENCE_SEC


class Shell:
    """A shell that keeps its variables from one command to the next."""

    END = "--- end of the command, exit code "

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, command: str, expected_code: int = 0) -> str:
        """All that it printed, if it ends with that code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho '{self.END}'$?\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            text, end, exit_code = line.partition(self.END)  # what was printed last may have no line end
            lines.append(text)
            if end:
                assert exit_code == f"{expected_code}\n", (
                    f"$ {command}\n{''.join(lines)}\nexit code {exit_code}"
                )
                return "".join(lines)
        raise AssertionError(f"the shell ended in {command}: {''.join(lines)}")


@contextmanager
def open_shell(programs: Programs) -> Iterator[Shell]:
    with subprocess.Popen(
        ["timeout", str(4 * PATIENCE_SEC), "bash"],
        cwd=programs.directory,
        env={**programs.environ, "PATH": f"{programs.scripts}{os.pathsep}{programs.environ['PATH']}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Shell(process)
        finally:
            process.kill()
