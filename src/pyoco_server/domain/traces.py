"""Traces: the W3C context that jobs and executions carry, and spans as values.

A span that no process holds for its whole life (a job on the queue, an execution) has ids that are derived
from what it stands for. So whoever continues the trace, or writes the end, needs no more than what is stored.
"""

import re
from hashlib import sha256
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

MAX_TRACESTATE = 512
"""Characters that a participant should at least pass on; a longer one is dropped."""
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


class SpanContext(Struct, frozen=True):
    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def read_traceparent(text: str | None) -> SpanContext | None:
    """None if it is missing or invalid."""
    found = _TRACEPARENT.fullmatch(text or "")
    return found and SpanContext(found[1], found[2], bool(int(found[3], 16) & 1))


class Trace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a run or an execution belongs in a trace."""

    traceparent: str | None = None
    """The span above: of a request, an event or an execution. None: the trace begins here."""
    tracestate: str | None = None
    attempt: str | None = None
    """The traceparent of the span of the run's newest attempt. None if it is not sampled: it has no span."""
    earlier: str | None = None
    """The same of the attempt before it."""
    taken_at: float | None = None
    """When a worker first took the job of the current try."""
    is_dropped: bool = False
    """The trace began with a request that is not sampled: no span is made below, and nothing has an id."""


DROPPED = Trace(is_dropped=True)


def above(trace: Trace | None) -> Trace | None:
    """Without attempts."""
    if trace is None or trace.is_dropped:
        return trace
    if trace.traceparent is None:
        return None
    return Trace(traceparent=trace.traceparent, tracestate=trace.tracestate)


def context_of_attempt(trace: Trace | None) -> SpanContext | None:
    """The span that an attempt is in: its own, or the one above it if it has none."""
    return None if trace is None else read_traceparent(trace.attempt or trace.traceparent)


def claimed(known: Trace | None, ours: Trace | None, now: float, *, is_same_try: bool) -> Trace | None:
    """After a claim. `known`: as stored before; `ours`: of the job, with the claiming attempt."""
    base = known or ours
    if base is None or base.is_dropped:
        return base
    taken_at = known.taken_at if known is not None and is_same_try else None
    return replace(
        base,
        attempt=None if ours is None else ours.attempt,
        earlier=None if known is None else known.attempt,
        taken_at=now if taken_at is None else taken_at,
    )


def tracestate_of(trace: Trace | None) -> str | None:
    return None if trace is None else trace.tracestate


class Place(Struct, frozen=True):
    """The ids of a span that no process holds."""

    trace_id: str
    span_id: str
    parent: SpanContext | None
    is_dropped: bool = False


def derived_place(trace: Trace | None, root: str, key: str) -> Place:
    """`root`: what the trace is about if it begins here. `key`: what the span stands for."""
    parent = None if trace is None else read_traceparent(trace.traceparent)
    trace_id = _digest(root)[:32] if parent is None else parent.trace_id
    return Place(trace_id, _digest(key)[-16:], parent, trace is not None and trace.is_dropped)


def _digest(text: str) -> str:
    return sha256(f"pyoco:{text}".encode()).hexdigest()


class SpanEvent(Struct, frozen=True):
    name: str
    at_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)


class Span(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A span that has ended."""

    name: str
    trace_id: str
    span_id: str
    start_ns: int
    end_ns: int
    parent: SpanContext | None = None
    tracestate: str | None = None
    is_sampled: bool | None = None
    """None: not decided yet."""
    kind: str = "INTERNAL"
    attributes: dict[str, Any] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    """Traceparents of other spans."""
    events: tuple[SpanEvent, ...] = ()
    status: str = "UNSET"
    description: str | None = None
    """Of an error."""
    scope: str = "pyoco_server"


def present(**attributes: Any) -> dict[str, Any]:
    """Attributes named `pyoco.*`, without those that are None."""
    return {f"pyoco.{name}": value for name, value in attributes.items() if value is not None}


def nanoseconds(at: float) -> int:
    return int(at * 1e9)
