"""Spans of tasks, made where they run: users' code sees `pyoco.task` as its current span.

Ended spans are collected, and the executor passes them to its worker with the progress and the end of a run.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, cast
from weakref import finalize

from msgspec.structs import replace
from opentelemetry import context as contexts, trace as otel
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span as OpenSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanContext as OtelContext, Status, StatusCode

from pyoco_server import tracing
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.secrets.masking import NO_MASKS, Masks
from pyoco_server.domain.traces import Span, SpanContext, SpanEvent, context_of_attempt, present
from pyoco_server.otel import Describe, OnTask
from pyoco_server.otel.exporting import SystemIds, context_of

MAX_COLLECTED = 2_048
"""The oldest are dropped."""


_MASKS = contexts.create_key("pyoco-masks")
"""In the context of a run that has secrets: a worker may run several flows at once, in threads."""


class _Collector(SpanProcessor):
    def __init__(self) -> None:
        self._ended: deque[Span] = deque(maxlen=MAX_COLLECTED)
        self._masks: dict[int, Masks] = {}
        """By the ids of open spans; `on_end` gets a copy of the span, not the one of `on_start`."""

    def on_start(self, span: OpenSpan, parent_context: Context | None = None) -> None:
        masks = contexts.get_value(_MASKS, parent_context) or contexts.get_value(_MASKS)
        if isinstance(masks, Masks) and span.context is not None:
            self._masks[span.context.span_id] = masks
            finalize(span, self._masks.pop, span.context.span_id, None)  # also if nobody ends it

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.add(_as_value(span, span.context, self._masks.get(span.context.span_id, NO_MASKS)))

    def add(self, found: Span) -> None:
        if tracing.active is not None:  # a worker that runs flows in a thread
            tracing.active.emit(found)
        else:
            self._ended.append(found)

    def take(self) -> tuple[Span, ...]:
        taken: list[Span] = []
        while self._ended:
            taken.append(self._ended.popleft())
        return tuple(taken)


_collector = _Collector()
_provider = TracerProvider(shutdown_on_exit=False, id_generator=SystemIds())
"""Of users' code, which may begin a trace: the sampler of the environment decides."""
_provider.add_span_processor(_collector)
_of_tasks = TracerProvider(ALWAYS_ON, shutdown_on_exit=False, id_generator=SystemIds())
"""Made for sampled runs only, so there is nothing to decide; and `TaskSpans` passes them on itself."""
_tracer = _of_tasks.get_tracer("pyoco_server")
take = _collector.take


def collect_for_everybody() -> None:
    if isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider):  # nobody has set one
        otel.set_tracer_provider(_provider)


class _Dropped(otel.NonRecordingSpan):
    """What users' code is in while a run is not sampled. Its ids are made if they are asked for, per run."""

    def __init__(self) -> None:
        super().__init__(otel.INVALID_SPAN_CONTEXT)
        self._own: OtelContext | None = None

    def renew(self) -> None:
        self._own = None

    def get_span_context(self) -> OtelContext:
        if self._own is None:
            self._own = OtelContext(_ids.generate_trace_id(), _ids.generate_span_id(), is_remote=True)
        return self._own


_ids = SystemIds()
_dropped = _Dropped()
_in_dropped = otel.set_span_in_context(_dropped, Context())


def around_flow(job: Job, describe: Describe, masks: Masks) -> "BelowRun":
    found = context_of_attempt(job.trace)
    if found is None:
        _dropped.renew()
        return BelowRun(_in_dropped)
    if found.is_sampled and job.trace is not None and job.trace.attempt is not None:
        return TaskSpans(context_of(found), job, describe, masks)
    return BelowRun(context_of(replace(found, is_sampled=False)))


class BelowRun:
    """Of a run that is not sampled: what a task makes, in any thread, begins no trace of its own."""

    def __init__(self, run: Context) -> None:
        self._run = run
        self._home = threading.get_ident()

    def __enter__(self) -> Callable[[OnTask], OnTask]:
        self._token = contexts.attach(self._run)
        return self._around

    def __exit__(self, *_: object) -> None:
        contexts.detach(self._token)

    def _around(self, on_task: OnTask) -> OnTask:
        def entered(name: str | None) -> None:
            if threading.get_ident() != self._home and name is not None:
                contexts.attach(self._run)  # the thread ends with the run
            on_task(name)

        return entered


class TaskSpans(BelowRun):
    """Of one run: a context manager that adds spans to a callback for tasks."""

    def __init__(self, run: Context, job: Job, describe: Describe, masks: Masks) -> None:
        super().__init__(contexts.set_value(_MASKS, masks, run) if masks else run)
        self._masks = masks
        self._attributes = present(run_id=job.run_id, flow=job.flow_name)
        self._kept = frozenset(() if job.kept is None else job.kept.records)
        self._describe = describe
        self._open: dict[int, tuple[otel.Span, str, Any]] = {}
        """By thread: each is in one task at a time."""

    def __exit__(self, *_: object) -> None:
        for span, name, _token in self._open.values():  # a task that ended its run by SystemExit
            span.set_status(Status(StatusCode.ERROR, "the task did not return"))
            self._end(span, name)
        super().__exit__()

    def _around(self, on_task: OnTask) -> OnTask:
        def entered(name: str | None) -> None:
            if name is None:
                on_task(None)
                self._left()
            else:
                self._entered(name)
                on_task(name)

        return entered

    def _entered(self, name: str) -> None:
        if name in self._kept:
            return
        span = _tracer.start_span("pyoco.task", self._run)
        token = contexts.attach(otel.set_span_in_context(span, self._run))
        self._open[threading.get_ident()] = (span, name, token)

    def _left(self) -> None:
        found = self._open.pop(threading.get_ident(), None)
        if found is None:
            return
        span, name, token = found
        contexts.detach(token)
        error = sys.exception()  # pyoco reports a failure while it handles the exception
        if error is not None and span.is_recording():
            self._failed(span, error)
        self._end(span, name)

    def _end(self, span: otel.Span, name: str) -> None:
        """Attributes of ours are added last: the SDK would check and copy each of them."""
        span.end()
        if isinstance(span, ReadableSpan):
            value = _as_value(span, span.get_span_context(), self._masks)
            value.attributes.update(self._attributes, **{"pyoco.task": name})
            _collector.add(value)

    def _failed(self, span: otel.Span, error: BaseException) -> None:
        raised = self._describe(error)
        span.add_event(
            "exception",
            {
                "exception.type": raised.exc_type,
                "exception.message": raised.exc_message,
                "exception.stacktrace": raised.exc_traceback or "",
            },
        )
        span.set_status(Status(StatusCode.ERROR, raised.exc_message))


def _as_value(span: ReadableSpan, context: OtelContext, masks: Masks) -> Span:
    value = _as_it_is(span, context)
    return _masked(value, masks) if masks else value


def _masked(span: Span, masks: Masks) -> Span:
    return replace(
        span,
        name=masks.text(span.name),
        attributes=masks.value(span.attributes),
        events=tuple(
            SpanEvent(masks.text(event.name), event.at_ns, masks.value(event.attributes))
            for event in span.events
        ),
        description=None if span.description is None else masks.text(span.description),
    )


def _as_it_is(span: ReadableSpan, context: OtelContext) -> Span:
    return Span(
        name=span.name,
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent=None if span.parent is None else _plain(span.parent),
        tracestate=context.trace_state.to_header() or None,
        is_sampled=True,
        kind=span.kind.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=cast("dict[str, Any]", span.attributes).copy(),  # not dict(): item by item, in Python
        links=tuple(_plain(link.context).traceparent for link in span.links),
        events=tuple(
            SpanEvent(event.name, event.timestamp, dict(event.attributes or {})) for event in span.events
        ),
        status=span.status.status_code.name,
        description=span.status.description,
        scope=span.instrumentation_scope.name if span.instrumentation_scope else "",
    )


def _plain(context: OtelContext) -> SpanContext:
    return SpanContext(
        f"{context.trace_id:032x}", f"{context.span_id:016x}", is_sampled=context.trace_flags.sampled
    )
