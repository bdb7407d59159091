"""A page of the documentation as a script: files to write, commands to type, outputs to see."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
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


def steps(page: Path) -> Iterator[File | Typed]:
    for language, title, body in _FENCE.findall(page.read_text()):
        if language == "console":
            yield from _typed(title, body.splitlines())
        elif title:
            yield File(title, body)


def _typed(terminal: str, lines: list[str]) -> Iterator[Typed]:
    command, output = "", list[str]()
    for line in lines:
        if line.startswith("$ ") or line == "^C":
            if command or output:
                yield Typed(terminal, command, output)
            command, output = line.removeprefix("$ "), []
        else:
            output.append(line)
    yield Typed(terminal, command, output)


def pattern(lines: list[str]) -> str:
    """A regular expression for an output that is as shown, from its first line to its last."""
    return "".join(r"(?:.*\n)*?" if line == ANYTHING else line_pattern(line) + r"\n" for line in lines)


def line_pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split(ANYTHING)))
