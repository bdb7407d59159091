"""Export spans by OpenTelemetry's SDK, configured by its standard environment variables."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Attributes, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext as OtelContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.span import TraceState

from pyoco_server.domain.traces import Span, SpanContext, read_traceparent
from pyoco_server.logs import get_logger

log = get_logger(__name__)

FLUSH_SEC = 3.0
"""Limit for the last export: a collector that is away must not delay a stop."""
BATCH = 128
"""Spans per request. To encode the 512 of the SDK takes the interpreter lock for 27 ms, and runs are late."""
_SAMPLED, _DROPPED = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)
_ANY_SAMPLED = OtelContext(1, 1, is_remote=False, trace_flags=_SAMPLED)
"""Only sampled spans are emitted."""


_FOLLOWING = {"", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}
"""Samplers that decide as the parent did: they need not be asked."""


class SystemIds(IdGenerator):
    """From the system: a task may seed `random`, and two runs of one trace must not have the same ids."""

    def generate_span_id(self) -> int:
        return int.from_bytes(os.urandom(8)) or 1

    def generate_trace_id(self) -> int:
        return int.from_bytes(os.urandom(16)) or 1


class Exporting:
    """The tracer of a gateway or a worker."""

    def __init__(self, resource: Resource, exporters: Sequence[SpanExporter]) -> None:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=SystemIds())
        self._sampler = provider.sampler
        self._threshold = _threshold(self._sampler)
        self._follows_parents = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() in _FOLLOWING
        self._ids = provider.id_generator
        readable = Readable(provider.resource)
        self._processors = [_in_batches(Reported(exporter, readable)) for exporter in exporters]

    def now(self) -> float:
        return time.time()

    def new_trace_id(self) -> str:
        return f"{self._ids.generate_trace_id():032x}"

    def new_span_id(self) -> str:
        return f"{self._ids.generate_span_id():016x}"

    def is_sampled(self, parent: SpanContext | None, trace_id: str, name: str) -> bool:
        if parent is not None and self._follows_parents:
            return parent.is_sampled
        if parent is None and self._threshold is not None:
            return int(trace_id[16:], 16) < self._threshold
        above = Context() if parent is None else context_of(parent)
        decision = self._sampler.should_sample(above, int(trace_id, 16), name).decision
        return decision is Decision.RECORD_AND_SAMPLE

    def emit(self, span: Span) -> None:
        """Into the buffers of the exporters; a full one drops the oldest span."""
        ended = _Ended(span)
        for processor in self._processors:
            processor.on_end(ended)

    def stop(self) -> None:
        """Export what is buffered, in a thread that is left behind after `FLUSH_SEC`."""
        stopping = [
            threading.Thread(target=processor.shutdown, daemon=True) for processor in self._processors
        ]
        for thread in stopping:
            thread.start()
        deadline = time.monotonic() + FLUSH_SEC
        for thread in stopping:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in stopping):
            log.warning("not all traces were exported in time", action="traces.dropped")


def _threshold(sampler: Sampler) -> int | None:
    """Of the sampler by ratio, which is asked for every request. None: ask the sampler itself."""
    of_roots = getattr(sampler, "_root", sampler)
    return of_roots.bound if isinstance(of_roots, TraceIdRatioBased) else None


class _Ended(ReadableSpan):
    """In a buffer: made into what an exporter reads by the thread that exports, many at a time."""

    def __init__(self, span: Span) -> None:
        self.span = span

    @property
    def context(self) -> OtelContext:
        return _ANY_SAMPLED


class Readable:
    """Spans as exporters of OpenTelemetry read them."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._scopes: dict[str, InstrumentationScope] = {}

    def __call__(self, span: Span) -> ReadableSpan:
        state = TraceState.from_header([span.tracestate]) if span.tracestate else None
        own = SpanContext(span.trace_id, span.span_id, is_sampled=True)
        return ReadableSpan(
            name=span.name,
            context=otel_context(own, state),
            parent=None if span.parent is None else otel_context(span.parent),
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(one.name, one.attributes, one.at_ns) for one in span.events],
            links=[Link(otel_context(link)) for link in map(read_traceparent, span.links) if link],
            kind=SpanKind[span.kind],
            status=Status(StatusCode[span.status], span.description),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope(span.scope),
        )

    def _scope(self, name: str) -> InstrumentationScope:
        if name not in self._scopes:
            self._scopes[name] = InstrumentationScope(name)
        return self._scopes[name]


def _in_batches(exporter: SpanExporter) -> BatchSpanProcessor:
    """The variables of the environment count, if there are any."""
    if os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") or os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE"):
        return BatchSpanProcessor(exporter)
    return BatchSpanProcessor(exporter, max_export_batch_size=BATCH)


def otel_context(context: SpanContext, state: TraceState | None = None) -> OtelContext:
    flags = _SAMPLED if context.is_sampled else _DROPPED
    return OtelContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=flags,
        trace_state=state,
    )


def context_of(parent: SpanContext) -> Context:
    return set_span_in_context(NonRecordingSpan(otel_context(parent)), Context())


# Setting up


def start_exporting(service: str) -> Exporting:
    """Raises whatever an exporter raises for its settings."""
    tracer = Exporting(_resource(service), [_exporter(name) for name in _names()])
    _take_over_complaints()
    return tracer


def _resource(service: str) -> Resource:
    """The environment counts before our own name."""
    found = Resource.create()
    ours: dict[str, Any] = {}
    if str(found.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        ours[SERVICE_NAME] = service
    if SERVICE_VERSION not in found.attributes:
        ours[SERVICE_VERSION] = version("pyoco-server")
    merged = found.merge(Resource(ours))
    return _Hashed(merged.attributes, merged.schema_url)


class _Hashed(Resource):
    """The encoder asks for the hash with every span, and the SDK makes it of all attributes each time."""

    def __init__(self, attributes: Attributes, schema_url: str | None) -> None:
        super().__init__(attributes, schema_url)
        self._hash = super().__hash__()

    __eq__ = Resource.__eq__

    def __hash__(self) -> int:
        return self._hash


def _names() -> list[str]:
    listed = os.environ.get("OTEL_TRACES_EXPORTER", "").split(",")
    return [name.strip() for name in listed if name.strip()] or ["otlp"]


def _exporter(name: str) -> SpanExporter:
    """By its name in `OTEL_TRACES_EXPORTER`; any installed package may bring one. Raises LookupError."""
    if name == "otlp":
        name = "otlp_proto_grpc" if _protocol() == "grpc" else "otlp_proto_http"
    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        exporter: SpanExporter = found.load()()
        return exporter
    raise LookupError(f"no installed package has the exporter {name!r} (OTEL_TRACES_EXPORTER)")


def _protocol() -> str:
    variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    return next((found for name in variables if (found := os.environ.get(name, "").strip())), "")


# Failures are logged once, until an export succeeds


class Reported(SpanExporter):
    def __init__(self, exporter: SpanExporter, readable: Readable) -> None:
        self._exporter = exporter
        self._readable = readable
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(
                [self._readable(one.span) for one in spans if isinstance(one, _Ended)]
            )
        except Exception as error:  # noqa: BLE001 - the thread of the exporter must survive it
            _complaints.last, result = f"{type(error).__name__}: {error}", SpanExportResult.FAILURE
        has_failed = result is not SpanExportResult.SUCCESS
        if has_failed and not self._is_failing:
            log.warning(
                "traces cannot be exported; runs are not affected",
                action="traces.export_failed",
                reason=_complaints.last,
            )
        elif self._is_failing and not has_failed:
            log.info("traces are exported again", action="traces.export_works")
        self._is_failing = has_failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _Complaints(logging.Handler):
    """OpenTelemetry logs every failed batch and every retry. The newest text becomes a reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


_complaints = _Complaints()


def _take_over_complaints() -> None:
    """After the set-up, whose warnings about settings are worth a line each."""
    theirs = logging.getLogger("opentelemetry")
    theirs.handlers = [_complaints]
    theirs.propagate = False
