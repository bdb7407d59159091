"""Structured logs: one line of JSON per event, for every logger of the process.

A log call has a constant message and its data in fields (`log.info("run claimed", action="run.claimed",
run_id=...)`), so that lines can be searched by field. The origin and traceback of an error are added here,
never by the caller.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from traceback import extract_tb, format_exception
from types import TracebackType
from typing import Any, TextIO

from pyoco_server.config import NatsBackendConfig, settings_named
from pyoco_server.environment import language
from pyoco_server.errors import LoggingFailed, NatsUnavailable, PyocoServerError, entries

_QUIET = ("nats", "uvicorn", "uvicorn.access", "uvicorn.error", "asyncio", "httpcore2", "httpx2")
_FIELDS = "pyoco_fields"
"""Attribute of a log record that holds the fields."""


_bound: ContextVar[Mapping[str, Any]] = ContextVar("pyoco_log_fields", default={})  # noqa: B039 - read only


@contextmanager
def bound_fields(**fields: Any) -> Iterator[None]:
    """Fields of every line logged in the block."""
    token = bind(fields)
    try:
        yield
    finally:
        unbind(token)


def bind(fields: Mapping[str, Any]) -> Token[Mapping[str, Any]]:
    """The same for callers to whom a context manager is too slow, until `unbind`."""
    return _bound.set({**_bound.get(), **fields})


def unbind(token: Token[Mapping[str, Any]]) -> None:
    _bound.reset(token)


class Logger:
    """A logger of the standard library whose calls take fields, e.g. `log.info("run ended", run_id=...)`.

    A program that uses this package as a library receives the lines in its own logs.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: Any) -> None:
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, **fields: Any) -> None:
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, **fields: Any) -> None:
        """With the exception that is being handled."""
        self._log(logging.ERROR, message, {"exc_info": True, **fields})

    def _log(self, level: int, message: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            exc_info = fields.pop("exc_info", None)
            extra = {_FIELDS: {**_bound.get(), **fields}}
            self._logger.log(level, message, exc_info=exc_info, extra=extra, stacklevel=_CALLER)


_CALLER = 3
"""The frame whose place a line names: above `_log` and the method of the level."""


def get_logger(name: str) -> Logger:
    return Logger(name)


def configure_logging(
    *,
    service: str,
    level: str | None = None,
    log_format: str | None = None,
    utc: bool | None = None,
    include_traceback: bool | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send all logs of this process to `stream` (default: stdout) as `service`, e.g. `pyoco-server:worker`.

    Missing arguments come from PYOCO_LOG_LEVEL, _FORMAT, _UTC and _INCLUDE_TRACEBACK. Without a format, a
    terminal gets text and everything else JSON. Raises ConfigError.
    """
    is_all_given = None not in (level, log_format, utc, include_traceback)
    settings = {} if is_all_given else settings_named("PYOCO_LOG_")

    def setting(name: str) -> Any:
        return settings.get(name, getattr(NatsBackendConfig, name))

    target = stream or sys.stdout
    chosen = log_format or settings.get("log_format") or ("text" if target.isatty() else "json")
    handler = _Handler(target)
    handler.setFormatter(
        _LineFormatter(
            service,
            _render_json if chosen == "json" else _render_text,
            utc=setting("log_utc") if utc is None else utc,
            include_traceback=setting("log_include_traceback")
            if include_traceback is None
            else include_traceback,
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level or setting("log_level"))
    for name in _QUIET:
        # Warnings of these libraries matter to an operator, their info lines do not.
        library = logging.getLogger(name)
        library.handlers = []
        library.propagate = True
        library.setLevel(max(logging.WARNING, root.level))
        library.addFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    """False for a complaint of asyncio about its own streams, whenever a TLS connection ends."""
    return not record.getMessage().startswith("returning true from eof_received()")


def configure_unless_configured(service: str) -> None:
    """Configure logging unless the program has done so itself."""
    if not logging.getLogger().handlers:
        configure_logging(service=service)


Expected = type[Exception] | tuple[type[Exception], ...]


@contextmanager
def best_effort(
    log: Logger,
    action: str,
    error: type[PyocoServerError],
    *,
    expected: Expected = NatsUnavailable,
    **fields: Any,
) -> Iterator[None]:
    """Work whose failure does not concern the caller: an `expected` failure is logged as `error`.

    Any other exception is a bug and reaches the caller.
    """
    try:
        yield
    except expected as cause:
        _log_expected(log, action, error, cause, fields)


@contextmanager
def surviving(
    log: Logger,
    action: str,
    error: type[PyocoServerError],
    *,
    expected: Expected = NatsUnavailable,
    **fields: Any,
) -> Iterator[None]:
    """One iteration of a loop that must continue, or a step that must not prevent the next.

    An `expected` failure is logged as `error`. Any other exception is a bug and logged at level ERROR with
    its traceback. The loop pauses between iterations anyway.
    """
    try:
        yield
    except expected as cause:
        _log_expected(log, action, error, cause, fields)
    except Exception:
        log.exception("unexpected error; continuing", action=action, **fields)


def _log_expected(
    log: Logger, action: str, error: type[PyocoServerError], cause: Exception, fields: Mapping[str, Any]
) -> None:
    entry = error.entry
    log.warning(entry.en, action=action, err_id=entry.err_id, msg_id=entry.msg_id, exc_info=cause, **fields)


class _Handler(logging.StreamHandler[TextIO]):
    """A lost log line must never fail a run; it is reported once on stderr."""

    _is_reported = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - the name logging calls
        if not self._is_reported:
            self._is_reported = True
            entry = LoggingFailed.entry
            sys.stderr.write(f"{entry.err_id} {entry.msg_id} {entry.message(language())}\n")


class _LineFormatter(logging.Formatter):
    """Formats our lines and those of libraries. Plain code instead of a processor chain, for speed."""

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
            "level": record.levelname,
            "service": self._service,
            "message": record.getMessage(),
        }
        fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
        if "action" in fields:  # first, for readability
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
            line.update(exception_fields(error))
            if isinstance(error, PyocoServerError):
                for name, value in error.ids.items():
                    line.setdefault(name, value)
        if not self._include_traceback:
            line.pop("exc_traceback", None)
        if "msg_id" in line and language() == "ja":
            _translate_message(line)
        return self._render(line)

    def _time_of(self, record: logging.LogRecord) -> str:
        if self._utc:
            at = datetime.fromtimestamp(record.created, UTC)
            return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
        return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="microseconds")


def _translate_message(line: dict[str, Any]) -> None:
    """Use the Japanese text of the contract; a more specific message moves to `detail`."""
    entry = entries().get(line["msg_id"])
    if entry is None:
        return
    if line["message"] != entry.en:
        line.setdefault("detail", line["message"])
    line["message"] = entry.ja


def exception_fields(error: BaseException) -> dict[str, str]:
    """Fields of a log line about an exception."""
    fields = {
        "exc_type": type(error).__name__,
        "exc_message": _text_of(error),
        "exc_origin": _origin(error.__traceback__),
        "exc_traceback": "".join(format_exception(error)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - a user's __str__ may do anything
        return f"(str() raised {type(failure).__name__})"


_json = json.JSONEncoder(ensure_ascii=False, default=repr).encode
_plain_json = json.JSONEncoder(default=repr, skipkeys=True).encode


def _render_json(line: Mapping[str, Any]) -> str:
    try:
        text = _json(line)
        if not text.isascii():
            text.encode()
    except (TypeError, ValueError):  # a non-string key or a lone surrogate must not lose the line
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
    """For a terminal: `12:00:01 INFO  message  key=value …`, with the traceback of an error below."""
    clock = str(event.get("ts", ""))[11:19]
    data = "  ".join(f"{key}={_one_line(value)}" for key, value in event.items() if key not in _TEXT_HIDES)
    line = f"{clock} {event.get('level', ''):<7} {_one_line(event.get('message'))}  {data}".rstrip()
    is_error = event.get("level") in ("ERROR", "CRITICAL")  # no traceback for refused requests
    traceback = str(event.get("exc_traceback") or "") if is_error else ""
    return "\n".join([line, *(f"    {_one_line(part)}" for part in traceback.rstrip().split("\n") if part)])


def _one_line(value: object) -> str:
    """Escape control characters, so that logged data cannot forge lines or control the terminal."""
    text = value if isinstance(value, str) else repr(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
