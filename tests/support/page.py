"""A page of the documentation as a script: files to write, commands to type, outputs to see.

| block | is |
|---|---|
| `console` | commands after `$ ` (with `\\` or a here-document over several lines), their output; `^C` |
| `sh` | one script; a block with the title `Output` after it is what it prints |
| `text` | something to look at |
| any other, with a title | a file of that name |

Readers do not see a comment before a block. It has the reason for which the block is not run (`<!-- not run:
systemd -->`), or the exit code of its last command (`<!-- exit code: 1 -->`).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(
    r"(?:^<!-- (not run|exit code): (.+?) -->\n)?"
    r'^```(\w+)(?: title="([^"]+)")?\n'
    r"(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_HERE_DOCUMENT = re.compile(r"<<'?(\w+)'?")
CONSOLE = "\n```console"
ANYTHING = "…"
"""In a line: any text. As a line: any lines, or none."""


class File(NamedTuple):
    path: str
    text: str


class Typed(NamedTuple):
    """A command (or ^C, or nothing: a look at a program that runs) in a terminal, and what must be seen."""

    terminal: str
    command: str
    output: list[str]
    exit_code: int = 0


class NotRun(NamedTuple):
    reason: str
    text: str


Step = File | Typed | NotRun


def steps(page: Path) -> list[Step]:
    found: list[Step] = []
    for kind, said, language, title, body in _BLOCK.findall(page.read_text()):
        if title == "Output":
            found[-1] = _with_output(found[-1], body.splitlines())
        elif kind == "not run":
            found.append(NotRun(said, body))
        else:
            found += _steps_of(language, title, body, int(said or 0))
    return found


def _steps_of(language: str, title: str, body: str, exit_code: int) -> list[Step]:
    if language == "console":
        *before, last = _typed(title, iter(body.splitlines()))
        return [*before, last._replace(exit_code=exit_code)]
    if language == "sh":
        return [Typed(title, body.rstrip("\n"), [], exit_code)]
    if language == "text":
        return []
    assert title, f"a block that is neither run nor a file nor marked as `not run`:\n{body}"
    return [File(title, body)]


def _with_output(step: Step, output: list[str]) -> Step:
    assert isinstance(step, Typed), f"an output, but of what?\n{output}"
    return step._replace(output=output)


def _typed(terminal: str, lines: Iterator[str]) -> Iterator[Typed]:
    command, output = "", list[str]()
    for line in lines:
        if line.startswith("$ ") or line == "^C":
            if command or output:
                yield Typed(terminal, command, output)
            command, output = _whole(line.removeprefix("$ "), lines), []
        else:
            output.append(line)
    yield Typed(terminal, command, output)


def _whole(command: str, lines: Iterator[str]) -> str:
    """With the lines that continue it."""
    while command.endswith("\\"):
        command += "\n" + next(lines)
    if here := _HERE_DOCUMENT.search(command):
        while not command.endswith("\n" + here[1]):
            command += "\n" + next(lines)
    return command


def pattern(lines: list[str]) -> str:
    """A regular expression for an output that is as shown, from its first line to its last."""
    return "".join(r"(?:.*\n)*?" if line == ANYTHING else line_pattern(line) + r"\n" for line in lines)


def line_pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split(ANYTHING)))
