"""How a command fails: what is wrong and what to do, on stderr, with exit code 1 (130 for Ctrl-C)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from pyoco_server.errors import ConfigError, IncompatibleNats, PyocoServerError

FAILED = 1
INTERRUPTED = 130


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
