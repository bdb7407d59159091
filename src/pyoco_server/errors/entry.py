"""What an error consists of, and the two that stop a start."""

from dataclasses import dataclass
from functools import cache
from http import HTTPStatus as Status
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    number: int
    detail: str
    ja: str
    en: str
    status: Status | None = None
    """HTTP status; None for errors that appear only in logs and on the command line."""

    @property
    def err_id(self) -> str:
        return f"ERR-PYOCO-{self.number:04d}"

    @property
    def msg_id(self) -> str:
        return f"MSG-PYOCO-{self.number:04d}"

    def message(self, language: str) -> str:
        return self.ja if language == "ja" else self.en


class PyocoServerError(Exception):
    """Base of all errors of this package that have an id."""

    entry: ClassVar[ErrorEntry]
    own_status: ClassVar[Status | None] = None
    """Instead of that of the entry."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(detail or self.entry.detail)

    @property
    def detail(self) -> str:
        return str(self)

    @property
    def status(self) -> Status:
        return self.own_status or self.entry.status or Status.INTERNAL_SERVER_ERROR

    @property
    def ids(self) -> dict[str, str]:
        """The two ids as log fields."""
        return {"err_id": self.entry.err_id, "msg_id": self.entry.msg_id}


@cache
def entries() -> dict[str, ErrorEntry]:
    return {kind.entry.msg_id: kind.entry for kind in PyocoServerError.__subclasses__()}


class ConfigError(Exception):
    """Invalid settings. The text lists each key and value; the program does not start."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class IncompatibleNats(Exception):
    """A NATS server or stream that the product cannot use; a retry would not help."""
