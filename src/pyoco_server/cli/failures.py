"""How a command fails: what is wrong and what to do, on stderr, with exit code 1 (130 for Ctrl-C)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import cyclopts

from pyoco_server.errors import ConfigError, IncompatibleNats, PyocoServerError

FAILED = 1
INTERRUPTED = 130


def run_app(app: cyclopts.App, name: str | None = None) -> None:
    """Arguments that cannot be used end with 1, as every failure; the library alone would say 2."""
    try:
        app(exit_on_error=False)
    except cyclopts.CycloptsError:  # it has been printed, with what is wrong
        fail(f"What it takes:  {name or app.name[0]} --help")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextmanager
def told_to_the_user() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ConfigError as error:
        fail("The settings cannot be used:", *(f"  {problem}" for problem in error.problems))
    except PyocoServerError as error:
        fail(f"{error.entry.err_id} {error.detail}")
    except IncompatibleNats as error:
        fail(str(error))


def fail(*lines: str) -> NoReturn:
    for line in lines:
        print(line, file=sys.stderr)
    sys.exit(FAILED)
