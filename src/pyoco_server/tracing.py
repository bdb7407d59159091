"""Traces of this process: the span it is in, and where ended spans go.

While `active` is None, nothing happens and nothing of OpenTelemetry is imported; `pyoco_server.otel` sets it.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol, Self

from msgspec.structs import replace

from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.runs.traces import JOB, ends_a_span, place_of_job, spans_of_change
from pyoco_server.domain.traces import (
    DROPPED,
    MAX_TRACESTATE,
    Place,
    Span,
    SpanContext,
    Trace,
    context_of_attempt,
    nanoseconds,
    read_traceparent,
)
from pyoco_server.logs import bind, unbind


class Tracer(Protocol):
    def now(self) -> float: ...
    def new_trace_id(self) -> str: ...
    def new_span_id(self) -> str: ...
    def is_sampled(self, parent: SpanContext | None, trace_id: str, name: str) -> bool: ...
    def emit(self, span: Span) -> None:
        """Never blocks and never fails."""
        ...


active: Tracer | None = None


class Inside:
    """A context manager: the block is inside of a span, and so are its log lines.

    Without a context: inside of a trace that is not sampled and began here. Most are, so this costs little.
    """

    __slots__ = ("_fields", "_token", "context", "tracestate")

    def __init__(self, context: SpanContext | None, tracestate: str | None = None) -> None:
        self.context = context
        self.tracestate = tracestate

    def __enter__(self) -> None:
        self._token = _here.set(self)
        if self.context is not None:
            self._fields = bind({"trace_id": self.context.trace_id, "span_id": self.context.span_id})

    def __exit__(self, *_: object) -> None:
        if self.context is not None:
            unbind(self._fields)
        _here.reset(self._token)


_here: ContextVar[Inside | None] = ContextVar("pyoco_trace", default=None)


def here() -> Trace | None:
    """The span that the caller is in, for what it stores."""
    inside = None if active is None else _here.get()
    if inside is None:
        return None
    if inside.context is None:
        return DROPPED
    return Trace(traceparent=inside.context.traceparent, tracestate=inside.tracestate)


def continuing(trace: Trace | None) -> AbstractContextManager[None]:
    """Inside of a span that another process may have begun."""
    if active is None or trace is None:
        return nullcontext()
    context = read_traceparent(trace.traceparent)
    if context is None and not trace.is_dropped:
        return nullcontext()
    return Inside(context, trace.tracestate)


# Spans that begin and end in one process


class OpenSpan:
    """A context manager. What is set on it counts at its end."""

    def __init__(self, name: str, attributes: dict[str, Any], kind: str, above: Trace | None) -> None:
        self.name = name
        self.attributes = attributes
        self.kind = kind
        self.is_error = False
        self.description: str | None = None
        self._above = above
        self._inside: Inside | None = None

    def __enter__(self) -> Self:
        tracer = self._tracer = active
        if tracer is not None:
            self._inside = self._opened(tracer)
            self._inside.__enter__()
        return self

    def _opened(self, tracer: Tracer) -> Inside:
        self._parent, tracestate, is_dropped = self._place()
        if is_dropped:
            return Inside(None)
        trace_id = tracer.new_trace_id() if self._parent is None else self._parent.trace_id
        is_sampled = tracer.is_sampled(self._parent, trace_id, self.name)
        if self._parent is None and not is_sampled:
            return Inside(None)
        self._start = tracer.now()
        return Inside(SpanContext(trace_id, tracer.new_span_id(), is_sampled), tracestate)

    def _place(self) -> tuple[SpanContext | None, str | None, bool]:
        """What is above, and whether that is not sampled and has no ids."""
        if self._above is not None:
            return read_traceparent(self._above.traceparent), self._above.tracestate, False
        here = _here.get()
        return (None, None, False) if here is None else (here.context, here.tracestate, here.context is None)

    @property
    def is_sampled(self) -> bool:
        """Inside of the block: whether what is set on it will be read."""
        context = None if self._inside is None else self._inside.context
        return context is not None and context.is_sampled

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._inside is None or self._tracer is None:
            return
        self._inside.__exit__()
        context = self._inside.context
        if context is None or not context.is_sampled:
            return
        if kind is not None:
            self.is_error, self.description = True, kind.__name__
        self._tracer.emit(self._ended(context, self._tracer.now()))

    def _ended(self, context: SpanContext, now: float) -> Span:
        return Span(
            name=self.name,
            trace_id=context.trace_id,
            span_id=context.span_id,
            parent=self._parent,
            tracestate=None if self._inside is None else self._inside.tracestate,
            is_sampled=True,
            kind=self.kind,
            start_ns=nanoseconds(self._start),
            end_ns=nanoseconds(max(self._start, now)),
            attributes=self.attributes,
            status="ERROR" if self.is_error else "UNSET",
            description=self.description,
        )


def span(
    name: str, attributes: dict[str, Any], *, kind: str = "INTERNAL", above: Trace | None = None
) -> OpenSpan:
    """Below the span that the caller is in, or that of `above`."""
    return OpenSpan(name, attributes, kind, above)


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
    """The job, with a span for the attempt that begins; unchanged if what is above it is not sampled."""
    if active is None or not _is_sampled_below(job.trace, active):
        return job
    trace = job.trace or Trace()
    place = place_of_job(job.run_id, job.try_number, trace)
    is_sampled = active.is_sampled(place.parent, place.trace_id, JOB)
    own = SpanContext(place.trace_id, active.new_span_id(), is_sampled)
    return replace(job, trace=replace(trace, attempt=own.traceparent))


def fields_of(job: Job) -> dict[str, str]:
    """For the log lines of an attempt."""
    if active is None or job.trace is None or job.trace.is_dropped:
        return {}
    context = context_of_attempt(job.trace)
    return {} if context is None else {"trace_id": context.trace_id, "span_id": context.span_id}


def run_changed(before: RunSnapshot, after: RunSnapshot) -> None:
    """Called by whoever has written the change."""
    if active is not None and _is_sampled_below(before.trace, active) and ends_a_span(before, after):
        emit(spans_of_change(before, after))


def _is_sampled_below(trace: Trace | None, tracer: Tracer) -> bool:
    """Asked before anything is made: most runs are not sampled. True if that is not decided yet."""
    if trace is None or trace.is_dropped:
        return trace is None
    context = context_of_attempt(trace)
    if context is None:
        return True
    return context.is_sampled if trace.attempt else tracer.is_sampled(context, context.trace_id, JOB)


def emit(spans: Iterable[Span]) -> None:
    tracer = active
    if tracer is None:
        return
    for one in spans:
        is_sampled = one.is_sampled
        if is_sampled is None:
            is_sampled = tracer.is_sampled(one.parent, one.trace_id, one.name)
        if is_sampled:
            tracer.emit(one)


def below(place: Place, name: str, tracestate: str | None) -> AbstractContextManager[None]:
    """Inside of a span that no process holds."""
    if active is None:
        return nullcontext()
    if place.is_dropped:
        return Inside(None)
    is_sampled = active.is_sampled(place.parent, place.trace_id, name)
    own = SpanContext(place.trace_id, place.span_id, is_sampled)
    return Inside(own, tracestate)
