"""How a command fails: what is wrong and what to do, on stderr, with exit code 1 (130 for Ctrl-C)."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import cyclopts

from pyoco_server.cli import argument_texts
from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.argument_errors import command_line, example, explained
from pyoco_server.cli.japanese_help import JapaneseHelp
from pyoco_server.cli.language import language
from pyoco_server.errors import ConfigError, ErrorEntry, IncompatibleNats, InvalidCliInput, PyocoServerError

FAILED = 1
INTERRUPTED = 130


def run_app(app: cyclopts.App, launcher: cyclopts.App | None = None) -> None:
    """Arguments that cannot be used end with 1, as every failure; the library alone would say 2.

    `launcher` reads the options that stand before the command, where there are any.
    """
    _write_what_can_be_written()
    if language() == "ja":
        app.help_formatter = JapaneseHelp()
    try:
        (launcher or app)(sys.argv[1:], exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        fail_arguments(app, error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def fail_arguments(app: cyclopts.App, error: cyclopts.CycloptsError) -> NoReturn:
    """MSG-PYOCO-0018 with what is wrong, an example, and where to read more."""
    fail(
        _invalid_arguments(explained(error)),
        argument_texts.EXAMPLE(command=example(app, error)),
        argument_texts.USAGE(command=command_line(app, error)),
    )


def _invalid_arguments(detail: str) -> str:
    entry = InvalidCliInput.entry
    return f"{entry.err_id} {entry.msg_id} {entry.message(language())}: {detail}"


def _write_what_can_be_written() -> None:
    """A terminal that is not UTF-8 shows a `?` for what it does not have; that is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def told_to_the_user() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ConfigError as error:
        fail(texts.BAD_SETTINGS(), *(f"  {problem}" for problem in error.problems))
    except InvalidCliInput as error:
        fail(_invalid_arguments(error.detail))
    except PyocoServerError as error:
        fail(with_message(error.entry, error.detail))
    except IncompatibleNats as error:
        fail(str(error))


def with_message(entry: ErrorEntry, detail: str) -> str:
    """The id and what happened; in Japanese with the catalogue's message, because details are English."""
    message = f"{entry.ja}: " if language() == "ja" else ""
    return f"{entry.err_id} {message}{detail}"


def fail(*lines: str) -> NoReturn:
    for line in lines:
        print(line, file=sys.stderr)
    sys.exit(FAILED)
