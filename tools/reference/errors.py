"""docs/reference/errors.md: every error that has an id."""

from collections.abc import Iterator
from http import HTTPStatus

from pyoco_server import errors as catalogue
from pyoco_server.errors import ErrorEntry, PyocoServerError
from tools.reference.tables import code, table

_HEAD = """# Errors

Every error response has the same body. `message` is English or Japanese, by `Accept-Language`. `detail` names
the cause and its place: a text, or a list with one object per invalid field.

```json
{
  "detail": "run not found",
  "err_id": "ERR-PYOCO-0005",
  "msg_id": "MSG-PYOCO-0005",
  "message": "The run was not found"
}
```

Errors without a status are met in logs and on the command line only. The `msg_id` has the same number.

"""


def page(_current: str) -> str:
    catalogue: dict[int, tuple[ErrorEntry, set[int]]] = {}
    for error in sorted(errors(), key=lambda one: one.entry.number):
        entry = error.entry
        _, statuses = catalogue.setdefault(entry.number, (entry, set()))
        if entry.status is not None:
            statuses.add(_status(error))
    rows = (_row(entry, statuses) for _, (entry, statuses) in sorted(catalogue.items()))
    return _HEAD + table(("id", "status", "detail", "message", "message (ja)"), rows)


def errors(of: type[PyocoServerError] = PyocoServerError) -> Iterator[type[PyocoServerError]]:
    """All classes of the catalogue itself; what adapters derive from them adds no ids."""
    for error in of.__subclasses__():
        if error.__module__.startswith(catalogue.__name__):
            yield error
            yield from errors(error)


def _status(error: type[PyocoServerError]) -> int:
    status: HTTPStatus = error.__new__(error).status
    return int(status)


def _row(entry: ErrorEntry, statuses: set[int]) -> tuple[str, ...]:
    answered = ", ".join(map(str, sorted(statuses))) or "–"
    return code(entry.err_id), answered, entry.detail, entry.en, entry.ja
