"""docs/reference/commands.md: every command and option, from the parsers."""

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import cyclopts
from cyclopts.argument import Argument

from pyoco_server import admin_cli
from pyoco_server.cli import client, server, worker
from tools.reference.tables import code, table

PROGRAMS: dict[str, cyclopts.App] = {
    "pyoco-server": server.app,
    "pyoco-worker": worker.app,
    "pyoco-client": client.app,
    "pyoco-server-admin": admin_cli.app,
}

_HEAD = """# Commands

All commands with their options and defaults. Every command has `--help`.

Exit codes: 0 for success, 1 for a failure (invalid arguments included), 130 after Ctrl-C. Results go to
stdout, errors with advice to stderr. An option takes precedence over the environment, and the environment
over `.env`.
"""


class Command(NamedTuple):
    words: str
    """How it is called, e.g. `pyoco-client submit`."""
    purpose: str
    arguments: list[Argument]


def page(_current: str) -> str:
    return _HEAD + "".join(map(_section, commands()))


def commands() -> Iterator[Command]:
    for program, app in PROGRAMS.items():
        yield Command(program, app.help, _shown(app.meta if _has_launcher(app) else app))
        yield from _below(program, app)


def _has_launcher(app: cyclopts.App) -> bool:
    """Options before the command belong to a function of their own."""
    return app.meta.default_command is not None


def _below(words: str, app: cyclopts.App) -> Iterator[Command]:
    for name in app:
        if not name.startswith("-"):
            command = app[name]
            yield Command(f"{words} {name}", inspect.cleandoc(command.help).split("\n\n")[0], _shown(command))
            yield from _below(f"{words} {name}", command)


def _shown(app: cyclopts.App) -> list[Argument]:
    if app.default_command is None:
        return []
    arguments = app.assemble_argument_collection(parse_docstring=True)
    return [argument for argument in arguments if argument.show and argument.parse]


def _section(command: Command) -> str:
    level = "##" if " " not in command.words else "###"
    head = f"\n{level} {command.words}\n\n{command.purpose}\n"
    return head + (
        "\n" + table(("option", "default", "meaning"), map(_row, command.arguments))
        if command.arguments
        else ""
    )


def _row(argument: Argument) -> tuple[str, ...]:
    return ", ".join(map(code, names(argument))), _default(argument), _meaning(argument)


def names(argument: Argument) -> list[str]:
    """A positional one by its name in capitals."""
    if argument.field_info.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return [argument.name.removeprefix("--").replace("-", "_").upper()]
    return list(argument.names)


def _default(argument: Argument) -> str:
    default: Any = argument.field_info.default
    if argument.required:
        return "required"
    if default is None or default is inspect.Parameter.empty or argument.hint is bool:
        return "–"
    return code(f"{default:g}" if isinstance(default, float) else default)


def _meaning(argument: Argument) -> str:
    text = " ".join((argument.parameter.help or "").split()).replace("|", r"\|").replace("*.py", r"\*.py")
    choices = argument.get_choices()
    return f"{text} One of {', '.join(map(code, choices))}." if choices else text
