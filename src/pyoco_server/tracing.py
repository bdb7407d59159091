"""Traces of this process: the span it is in, and where ended spans go.

While `active` is None, nothing happens and nothing of OpenTelemetry is imported; `pyoco_server.otel` sets it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.runs.traces import JOB, place_of_job, spans_of_change
from pyoco_server.domain.traces import (
    MAX_TRACESTATE,
    Place,
    Span,
    SpanContext,
    Trace,
    nanoseconds,
    read_traceparent,
    tracestate_of,
)
from pyoco_server.logs import bound_fields


class Tracer(Protocol):
    def now(self) -> float: ...
    def new_trace_id(self) -> str: ...
    def new_span_id(self) -> str: ...
    def is_sampled(self, parent: SpanContext | None, trace_id: str, name: str) -> bool: ...
    def emit(self, span: Span) -> None:
        """Never blocks and never fails."""
        ...


active: Tracer | None = None
_here: ContextVar[Trace | None] = ContextVar("pyoco_trace", default=None)


def here() -> Trace | None:
    """The span that the caller is in, for what it stores."""
    return None if active is None else _here.get()


def log_fields(traceparent: str | None) -> dict[str, str]:
    context = read_traceparent(traceparent)
    return {} if context is None else {"trace_id": context.trace_id, "span_id": context.span_id}


@contextmanager
def _entered(trace: Trace | None) -> Iterator[None]:
    token = _here.set(trace)
    try:
        with bound_fields(**log_fields(None if trace is None else trace.traceparent)):
            yield
    finally:
        _here.reset(token)


def continuing(trace: Trace | None) -> AbstractContextManager[None]:
    """Inside of a span that another process may have begun."""
    return nullcontext() if active is None or trace is None else _entered(trace)


# Spans that begin and end in one process


@dataclass
class OpenSpan:
    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    is_error: bool = False


@contextmanager
def span(name: str, attributes: Mapping[str, Any], kind: str = "INTERNAL") -> Iterator[OpenSpan]:
    """A span below the one that the caller is in. What is set on it counts at its end."""
    opened = OpenSpan(name)
    if active is None:
        yield opened
        return
    tracer, trace = active, _here.get()
    parent = read_traceparent(trace.traceparent) if trace else None
    trace_id = tracer.new_trace_id() if parent is None else parent.trace_id
    own = SpanContext(trace_id, tracer.new_span_id(), tracer.is_sampled(parent, trace_id, name))
    opened.attributes.update(attributes)
    start = tracer.now()
    try:
        with _entered(Trace(traceparent=own.traceparent, tracestate=tracestate_of(trace))):
            yield opened
    except BaseException as error:
        opened.is_error, opened.error = True, type(error).__name__
        raise
    finally:
        if own.is_sampled:
            tracer.emit(_ended(opened, own, parent, trace, kind, (start, tracer.now())))


def _ended(
    opened: OpenSpan,
    own: SpanContext,
    parent: SpanContext | None,
    trace: Trace | None,
    kind: str,
    times: tuple[float, float],
) -> Span:
    return Span(
        name=opened.name,
        trace_id=own.trace_id,
        span_id=own.span_id,
        parent=parent,
        tracestate=tracestate_of(trace),
        is_sampled=True,
        kind=kind,
        start_ns=nanoseconds(times[0]),
        end_ns=nanoseconds(max(times)),
        attributes=opened.attributes,
        status="ERROR" if opened.is_error else "UNSET",
        description=opened.error,
    )


def trace_of_headers(traceparent: str | None, tracestate: str | None) -> Trace | None:
    """Of a request; None if it has no valid context."""
    if read_traceparent(traceparent) is None:
        return None
    kept = tracestate if tracestate and len(tracestate) <= MAX_TRACESTATE else None
    return Trace(traceparent=traceparent, tracestate=kept)


# Runs


def carrying(job: Job) -> Job:
    """The job, below the span that the caller is in."""
    trace = here()
    return job if trace is None else replace(job, trace=trace)


def attempted(job: Job) -> Job:
    """The job, with a span for the attempt that begins."""
    if active is None:
        return job
    trace = job.trace or Trace()
    place = place_of_job(job.run_id, job.try_number, trace)
    is_sampled = active.is_sampled(place.parent, place.trace_id, JOB)
    own = SpanContext(place.trace_id, active.new_span_id(), is_sampled)
    return replace(job, trace=replace(trace, attempt=own.traceparent))


def fields_of(job: Job) -> dict[str, str]:
    """For the log lines of an attempt."""
    return {} if active is None or job.trace is None else log_fields(job.trace.attempt)


def run_changed(before: RunSnapshot, after: RunSnapshot) -> None:
    """Called by whoever has written the change."""
    if active is not None:
        emit(spans_of_change(before, after))


def emit(spans: Iterable[Span]) -> None:
    tracer = active
    if tracer is None:
        return
    for one in spans:
        is_sampled = one.is_sampled
        if is_sampled is None:
            is_sampled = tracer.is_sampled(one.parent, one.trace_id, one.name)
        if is_sampled:
            tracer.emit(replace(one, is_sampled=True))


def below(place: Place, name: str, tracestate: str | None) -> AbstractContextManager[None]:
    """Inside of a span that no process holds."""
    if active is None:
        return nullcontext()
    is_sampled = active.is_sampled(place.parent, place.trace_id, name)
    own = SpanContext(place.trace_id, place.span_id, is_sampled)
    return _entered(Trace(traceparent=own.traceparent, tracestate=tracestate))
