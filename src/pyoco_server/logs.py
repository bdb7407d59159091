"""Structured logs: one line of JSON per event, for every logger of the process.

A log call has a constant message and its data in fields (`log.info("run claimed", action="run.claimed",
run_id=...)`), so that a line can be found by what it is about. Where and why an error happened is added
here, never by the caller.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from traceback import extract_tb, format_exception
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from pyoco_server.errors import LoggingFailed, PyocoServerError

Logger = structlog.stdlib.BoundLogger

_QUIET = ("nats", "uvicorn.access", "uvicorn.error", "asyncio", "httpcore2", "httpx2")
_FIELDS = "pyoco_fields"
"""The attribute of a log record that holds a line's fields."""


def _hand_to_logging(
    _logger: WrappedLogger, _method: str, event: EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    """A line as `logging` takes it: the constant message, and the fields in one attribute of the record."""
    message, exc_info = event.pop("event"), event.pop("exc_info", None)
    return (message,), {"exc_info": exc_info, "extra": {_FIELDS: event}}


_loggers = structlog.stdlib.LoggerFactory()
_PROCESSORS: list[Processor] = [
    structlog.stdlib.filter_by_level,
    structlog.contextvars.merge_contextvars,
    _hand_to_logging,
]


def get_logger(name: str) -> Logger:
    """A logger that hands its lines to the standard library's, and changes nothing for anybody else.

    A program that uses us as a library sees them wherever its own logs go.
    """
    logger: Logger = structlog.wrap_logger(
        _loggers(name), processors=_PROCESSORS, wrapper_class=structlog.stdlib.BoundLogger
    ).bind()
    return logger


def configure_logging(
    *,
    service: str,
    level: str = "INFO",
    log_format: str = "json",
    utc: bool = True,
    include_traceback: bool = True,
    stream: TextIO | None = None,
) -> None:
    """Send all logs of this process to `stream` (stdout) as `service`, e.g. `pyoco-server:worker`."""
    handler = _Handler(stream or sys.stdout)
    handler.setFormatter(
        _LineFormatter(
            service,
            _render_json if log_format == "json" else _render_text,
            utc=utc,
            include_traceback=include_traceback,
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _QUIET:
        # Their warnings matter to an operator, their chatter does not.
        library = logging.getLogger(name)
        library.handlers = []
        library.propagate = True
        library.setLevel(max(logging.WARNING, root.level))


@contextmanager
def best_effort(log: Logger, action: str, error: type[PyocoServerError], **fields: Any) -> Iterator[None]:
    """Work that may fail without harm to its caller: the failure is logged under `action`, never hidden."""
    try:
        yield
    except Exception as cause:
        log.warning(
            error.entry.en,
            action=action,
            err_id=error.entry.err_id,
            msg_id=error.entry.msg_id,
            exc_info=cause,
            **fields,
        )


class _Handler(logging.StreamHandler[TextIO]):
    """Losing a log line must never cost a run; it is said once on stderr."""

    _complained = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - the name logging calls
        if not self._complained:
            self._complained = True
            entry = LoggingFailed.entry
            sys.stderr.write(f"{entry.err_id} {entry.msg_id} {entry.en}\n")


class _LineFormatter(logging.Formatter):
    """Our own lines and those of libraries alike. Plain code instead of a chain: each run has a line."""

    def __init__(
        self, service: str, render: Callable[[Mapping[str, Any]], str], *, utc: bool, include_traceback: bool
    ) -> None:
        super().__init__()
        self._service = service
        self._render = render
        self._utc = utc
        self._include_traceback = include_traceback

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": self._time_of(record),
            "level": record.levelname.lower(),
            "service": self._service,
            "message": record.getMessage(),
        }
        fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
        if "action" in fields:  # the same few fields first on every line: a person reads them too
            line["action"] = fields["action"]
        for name, value in fields.items():
            if value is not None:
                line.setdefault(name, value)
        line["logger"] = record.name
        line["pathname"] = record.pathname
        line["lineno"] = record.lineno
        line["func"] = record.funcName
        error = _exception_of(record.exc_info)
        if error is not None:
            line.update(_described(error, include_traceback=self._include_traceback))
            if isinstance(error, PyocoServerError):
                for name, value in error.ids.items():
                    line.setdefault(name, value)
        return self._render(line)

    def _time_of(self, record: logging.LogRecord) -> str:
        if self._utc:
            at = datetime.fromtimestamp(record.created, UTC)
            return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
        return datetime.fromtimestamp(record.created).isoformat(timespec="microseconds")  # noqa: DTZ006


def _described(error: BaseException, *, include_traceback: bool) -> dict[str, Any]:
    line = {
        "exc_type": type(error).__name__,
        "exc_message": str(error),
        "exc_origin": _origin(error.__traceback__),
    }
    if include_traceback:
        line["exc_traceback"] = "".join(format_exception(error))
    return {name: value for name, value in line.items() if value is not None}


_json = json.JSONEncoder(ensure_ascii=False, default=repr).encode
_plain_json = json.JSONEncoder(default=repr, skipkeys=True).encode


def _render_json(line: Mapping[str, Any]) -> str:
    try:
        text = _json(line)
        if not text.isascii():
            text.encode()
    except (TypeError, ValueError):  # a key that is no text, half a surrogate: a line is not lost for that
        return _plain_json(line)
    return text


def _exception_of(exc_info: object) -> BaseException | None:
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as error, _):
            return error
        case True:
            return sys.exc_info()[1]
        case _:
            return None


def _origin(traceback: TracebackType | None) -> str | None:
    """Where the exception was raised: the innermost frame."""
    frames = extract_tb(traceback)
    if not frames:
        return None
    last = frames[-1]
    return f"{last.filename}:{last.lineno} {last.name}"


_TEXT_HIDES = {"ts", "level", "service", "message", "logger", "pathname", "lineno", "func", "exc_traceback"}


def _render_text(event: Mapping[str, Any]) -> str:
    """For a terminal: `12:00:01 INFO  message  key=value …`, the traceback below."""
    clock = str(event.get("ts", ""))[11:19]
    data = "  ".join(f"{key}={_one_line(value)}" for key, value in event.items() if key not in _TEXT_HIDES)
    line = (
        f"{clock} {str(event.get('level', '')).upper():<7} {_one_line(event.get('message'))}  {data}".rstrip()
    )
    traceback = event.get("exc_traceback")
    return f"{line}\n{traceback}".rstrip() if traceback else line


def _one_line(value: object) -> str:
    """Control characters would let logged data forge lines or colour the operator's terminal."""
    text = value if isinstance(value, str) else repr(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
