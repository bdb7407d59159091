"""A tracer in memory."""

import itertools

from pyoco_server.domain.traces import Span, SpanContext
from support.builders import NOW


class Recording:
    """A tracer that keeps what it gets. It samples what its parent does; new traces if `samples`."""

    def __init__(self, *, samples: bool = True) -> None:
        self.spans: list[Span] = []
        self._samples = samples
        self._numbers = itertools.count(1)

    def now(self) -> float:
        return NOW

    def new_trace_id(self) -> str:
        return f"{next(self._numbers):032x}"

    def new_span_id(self) -> str:
        return f"{next(self._numbers):016x}"

    def is_sampled(self, parent: SpanContext | None, _trace_id: str, _name: str) -> bool:
        return self._samples if parent is None else parent.is_sampled

    def emit(self, span: Span) -> None:
        self.spans.append(span)
