"""Structured logs: one line of JSON per event, for every logger of the process.

A log call has a constant message and its data in fields (`log.info("run claimed", action="run.claimed",
run_id=...)`), so that a line can be found by what it is about. Where and why an error happened is added
here, never by the caller.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from traceback import extract_tb, format_exception
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.processors import CallsiteParameter
from structlog.typing import EventDict, Processor, WrappedLogger

from pyoco_server.errors import LoggingFailed, PyocoServerError

Logger = structlog.stdlib.BoundLogger

_CALLSITE = {
    CallsiteParameter.PATHNAME,
    CallsiteParameter.LINENO,
    CallsiteParameter.FUNC_NAME,
}
_ORDER = ["ts", "level", "service", "message", "action"]
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
    renderer: Processor = (
        structlog.processors.JSONRenderer(ensure_ascii=False, default=repr)
        if log_format == "json"
        else _render_text
    )
    handler = _Handler(stream or sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                _add_fields,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.CallsiteParameterAdder(_CALLSITE),
                structlog.processors.TimeStamper(fmt="iso", utc=utc, key="ts"),
                _add_service(service),
                _describe_exception(include_traceback=include_traceback),
                structlog.processors.EventRenamer("message"),
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _order_fields, renderer],
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


def _add_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    fields: EventDict = getattr(event["_record"], _FIELDS, {})
    return {**fields, **event}


def _add_service(service: str) -> Processor:
    def processor(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        event["func"] = event.pop("func_name", None)
        return event

    return processor


def _describe_exception(*, include_traceback: bool) -> Processor:
    def processor(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        error = _exception_of(event.pop("exc_info", None))
        if error is None:
            return event
        event["exc_type"] = type(error).__name__
        event["exc_message"] = str(error)
        event["exc_origin"] = _origin(error.__traceback__)
        if include_traceback:
            event["exc_traceback"] = "".join(format_exception(error))
        if isinstance(error, PyocoServerError):
            for key, value in error.ids.items():
                event.setdefault(key, value)
        return event

    return processor


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


def _order_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The same few fields first on every line: a person reads them too."""
    first = {key: event[key] for key in _ORDER if key in event}
    rest = {key: value for key, value in event.items() if key not in first and value is not None}
    return {**first, **rest}


_TEXT_HIDES = {"ts", "level", "service", "message", "logger", "pathname", "lineno", "func", "exc_traceback"}


def _render_text(_logger: WrappedLogger, _method: str, event: Mapping[str, Any]) -> str:
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
