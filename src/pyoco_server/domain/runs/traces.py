"""The spans of a run, from its snapshots: `pyoco.job` for each try, `pyoco.run` for each attempt.

A span is complete when a change ends what it stands for, and whoever has written that change emits it. The
span of an attempt whose worker died is emitted by whoever takes the run over.
"""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from pyoco_server.domain.runs.model import RunFailure, RunSnapshot, RunStatus
from pyoco_server.domain.traces import (
    Place,
    Span,
    SpanContext,
    Trace,
    derived_place,
    nanoseconds,
    present,
    read_traceparent,
    tracestate_of,
)

JOB, RUN = "pyoco.job", "pyoco.run"
LOST = "the worker was lost; the job was redelivered"


def place_of_job(run_id: str, try_number: int, trace: Trace | None) -> Place:
    return derived_place(trace, f"run:{run_id}", f"job:{run_id}:{try_number}")


def ends_a_span(before: RunSnapshot, after: RunSnapshot) -> bool:
    return not before.status.is_terminal and (after.status.is_terminal or not _is_same_attempt(before, after))


def spans_of_change(before: RunSnapshot, after: RunSnapshot) -> Iterator[Span]:
    """The spans that end with this change."""
    if not ends_a_span(before, after):
        return
    attempt = read_traceparent(before.trace.attempt) if before.trace else None
    place = place_of_job(before.run_id, before.try_number, before.trace)
    attributes = _attributes(before)
    if attempt is not None and before.start_time is not None:
        job = SpanContext(place.trace_id, place.span_id, attempt.is_sampled)
        yield _run_span(before, after, attempt, job, attributes)
    if after.status.is_terminal or (before.owner is not None and after.owner is None):
        yield _job_span(before, after, place, None if attempt is None else attempt.is_sampled, attributes)


def _is_same_attempt(before: RunSnapshot, after: RunSnapshot) -> bool:
    return before.worker_id is None or before.owner == after.owner


def _run_span(
    before: RunSnapshot, after: RunSnapshot, attempt: SpanContext, job: SpanContext, of_run: dict[str, Any]
) -> Span:
    is_taken_over = after.owner is not None and after.owner != before.owner
    start = before.start_time or 0.0
    end = before.heartbeat_at if is_taken_over else after.updated_at
    span = Span(
        name=RUN,
        trace_id=attempt.trace_id,
        span_id=attempt.span_id,
        parent=job,
        is_sampled=attempt.is_sampled,
        tracestate=tracestate_of(before.trace),
        kind="CONSUMER",
        start_ns=nanoseconds(start),
        end_ns=nanoseconds(max(start, end)),
        links=(before.trace.earlier,) if before.trace and before.trace.earlier else (),
        attributes=of_run
        | present(
            worker_id=before.worker_id,
            attempt=before.attempt,
            status="LOST" if is_taken_over else _status(after).value,
        ),
    )
    if is_taken_over:
        return replace(span, status="ERROR", description=LOST)
    return _with_failure(span, _failure(after))


def _job_span(
    before: RunSnapshot,
    after: RunSnapshot,
    place: Place,
    is_sampled: bool | None,  # noqa: FBT001
    of_run: dict[str, Any],
) -> Span:
    """From the time when the try could start until a worker took it, or to its end if none did."""
    taken_at = before.trace.taken_at if before.trace and before.owner else None
    end = (before.start_time or after.updated_at) if taken_at is None else taken_at
    start = min(end, max(before.submitted_at or 0.0, before.not_before or 0.0))
    span = Span(
        name=JOB,
        trace_id=place.trace_id,
        span_id=place.span_id,
        parent=place.parent,
        is_sampled=is_sampled,
        tracestate=tracestate_of(before.trace),
        start_ns=nanoseconds(start),
        end_ns=nanoseconds(end),
        attributes=of_run,
    )
    return span if before.owner is not None else _with_failure(span, after.failure)


def _attributes(run: RunSnapshot) -> dict[str, Any]:
    return present(
        run_id=run.run_id,
        flow=run.flow_name,
        tag=run.tag,
        execution_id=run.execution_id,
        node_id=run.node_id,
        schedule_id=run.schedule_id,
        **{"try": run.try_number},
    )


def _status(after: RunSnapshot) -> RunStatus:
    """Of the attempt: a failed try leaves the run PENDING."""
    return RunStatus.FAILED if after.status is RunStatus.PENDING else after.status


def _failure(after: RunSnapshot) -> RunFailure | None:
    return after.tries[-1].failure if after.status is RunStatus.PENDING and after.tries else after.failure


def _with_failure(span: Span, failure: RunFailure | None) -> Span:
    if failure is None:
        return span
    kind = present(failure=failure.kind.value, failed_task=failure.task)
    return replace(span, status="ERROR", description=failure.message, attributes=span.attributes | kind)
