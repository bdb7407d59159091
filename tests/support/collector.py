"""A collector of traces: a real receiver of OTLP over HTTP, and the trees in what it got."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.waiting import until_now


@dataclass(frozen=True)
class Seen:
    """A span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    kind: int
    is_error: bool
    description: str
    attributes: dict[str, Any]
    links: tuple[str, ...]
    events: tuple[tuple[str, dict[str, Any]], ...]
    service: str
    scope: str
    state: str

    @property
    def label(self) -> str:
        """With what tells it from its siblings."""
        task = self.attributes.get("pyoco.task")
        return self.name if task is None else f"{self.name} {task}"


@dataclass
class Collector:
    port: int = 0
    spans: list[Seen] = field(default_factory=list)
    requests: int = 0
    status: int = 200

    @property
    def environ(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def receive(self, body: bytes) -> None:
        self.requests += 1
        if self.status == 200:
            self.spans += _spans_in(ExportTraceServiceRequest.FromString(body))

    def named(self, name: str, count: int = 1, **attributes: Any) -> list[Seen]:
        """Waits for so many of them."""
        wanted = {f"pyoco.{key}": value for key, value in attributes.items()}

        def look() -> list[Seen]:
            return [s for s in list(self.spans) if s.name == name and wanted.items() <= s.attributes.items()]

        return until_now(look, lambda found: len(found) >= count)

    def one(self, name: str, **attributes: Any) -> Seen:
        (found,) = self.named(name, **attributes)
        return found

    def children(self, of: Seen) -> list[Seen]:
        return sorted(
            (s for s in list(self.spans) if (s.trace_id, s.parent_id) == (of.trace_id, of.span_id)),
            key=lambda span: (span.start_ns, span.label),
        )

    def tree(self, of: Seen) -> dict[str, Any]:
        """Labels below a span."""
        return {f"{child.label}": self.tree(child) for child in self.children(of)}

    def roots(self, trace_id: str) -> list[Seen]:
        """Spans of a trace whose parent did not arrive. One tree has one."""
        known = {span.span_id for span in self.spans}
        return [s for s in self.spans if s.trace_id == trace_id and s.parent_id not in known]


def _spans_in(request: ExportTraceServiceRequest) -> Iterator[Seen]:
    for resource in request.resource_spans:
        service = _attributes(resource.resource.attributes).get("service.name", "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Seen(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    kind=span.kind,
                    is_error=span.status.code == span.status.STATUS_CODE_ERROR,
                    description=span.status.message,
                    attributes=_attributes(span.attributes),
                    links=tuple(link.span_id.hex() for link in span.links),
                    events=tuple((event.name, _attributes(event.attributes)) for event in span.events),
                    service=service,
                    scope=scope.scope.name,
                    state=span.trace_state,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind) if kind else None
        found[pair.key] = MessageToDict(value) if kind in ("array_value", "kvlist_value") else value
    return found


@contextmanager
def collector() -> Iterator[Collector]:
    """On a free port of this machine."""
    into = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            into.receive(body)
            self.send_response(into.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    into.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield into
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
