"""How a command fails: what is wrong and what to do, on stderr, with exit code 1 (130 for Ctrl-C)."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import cyclopts

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.language import language
from pyoco_server.errors import ConfigError, ErrorEntry, IncompatibleNats, PyocoServerError

FAILED = 1
INTERRUPTED = 130


def run_app(app: cyclopts.App, name: str | None = None) -> None:
    """Arguments that cannot be used end with 1, as every failure; the library alone would say 2."""
    _write_what_can_be_written()
    try:
        app(exit_on_error=False)
    except cyclopts.CycloptsError as error:  # it has been printed, with what is wrong
        command = " ".join([name or app.name[0], *(error.command_chain or [])])
        fail(texts.WHAT_IT_TAKES(command=command))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


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
