"""Traces: which context goes where, and which spans end with which change of a run or an execution."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pyoco_server import tracing
from pyoco_server.domain import codec
from pyoco_server.domain.executions.events import Failure
from pyoco_server.domain.executions.model import Execution, ExecutionStatus
from pyoco_server.domain.executions.traces import place_of_execution, span_of_execution
from pyoco_server.domain.runs.changes import Claim, Conclude, Expire, GiveUp, RequestCancel, RunChange, decide
from pyoco_server.domain.runs.jobs import Job, job_of_next_try, pending
from pyoco_server.domain.runs.model import FailureKind, Owner, RunRetry, RunSnapshot, RunStatus
from pyoco_server.domain.runs.traces import place_of_job, spans_of_change
from pyoco_server.domain.traces import DROPPED, MAX_TRACESTATE, SpanContext, Trace, read_traceparent
from pyoco_server.logs import get_logger
from support.builders import NOW, OWNER, a_job, a_snapshot
from support.captured_logs import capture_logs
from support.recorded_traces import Recording

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
LATER = Owner("worker-b", "instance-9", OWNER.attempt + 1)


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Recording:
    found = Recording()
    monkeypatch.setattr(tracing, "active", found)
    return found


# The context of W3C


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"{PARENT}-more",
        f"{PARENT}\n",
    ],
)
def test_an_invalid_traceparent_counts_as_none(text: str | None) -> None:
    assert read_traceparent(text) is None
    assert tracing.trace_of_headers(text, "vendor=1") is None


def test_a_traceparent_is_read_and_written(tracer: Recording) -> None:
    context = read_traceparent(PARENT)
    assert context == SpanContext(TRACE_ID, SPAN_ID, is_sampled=True)
    assert context.traceparent == PARENT
    assert tracing.trace_of_headers(PARENT, "v=1") == Trace(traceparent=PARENT, tracestate="v=1")
    assert tracing.trace_of_headers(PARENT, "v" * (MAX_TRACESTATE + 1)) == Trace(traceparent=PARENT)


def test_without_a_tracer_nothing_is_carried_and_jobs_are_the_same_objects() -> None:
    job = a_job()
    with tracing.continuing(Trace(traceparent=PARENT)), tracing.span("x", {}):
        assert tracing.here() is None
        assert tracing.carrying(job) is job
        assert tracing.attempted(job) is job
    assert b"traceparent" not in codec.encode_job(job)


def test_a_job_is_below_the_span_that_submits_it_and_lines_name_that_span(tracer: Recording) -> None:
    with (
        tracing.continuing(Trace(traceparent=PARENT, tracestate="v=1")),
        tracing.span("POST", {"a": 1}, kind="SERVER") as span,
        capture_logs() as lines,
    ):
        job = tracing.carrying(a_job())
        get_logger("x").info("inside")
        span.name = "POST /runs"
    (request,) = tracer.spans
    assert (request.name, request.kind, request.attributes) == ("POST /runs", "SERVER", {"a": 1})
    assert (request.trace_id, request.parent) == (TRACE_ID, read_traceparent(PARENT))
    assert job.trace == Trace(traceparent=f"00-{TRACE_ID}-{request.span_id}-01", tracestate="v=1")
    assert (lines[0]["trace_id"], lines[0]["span_id"]) == (TRACE_ID, request.span_id)
    assert tracing.here() is None


def test_what_the_sender_does_not_sample_is_carried_and_has_no_span(tracer: Recording) -> None:
    with (
        tracing.continuing(Trace(traceparent=f"{PARENT[:-2]}00")),
        tracing.span("POST", {}),
        capture_logs() as lines,
    ):
        carried = tracing.carrying(a_job())
        job = tracing.attempted(carried)
        get_logger("x").info("inside")
    assert carried.trace
    assert carried.trace.traceparent
    assert carried.trace.traceparent.endswith("-00")
    assert job is carried
    assert tracing.fields_of(job)["trace_id"] == lines[0]["trace_id"] == TRACE_ID
    _, after = lived(job, Conclude(owner=OWNER, status=RunStatus.COMPLETED))
    assert after.status is RunStatus.COMPLETED
    assert tracer.spans == []


class Refusing(Recording):
    """Samples no new trace, and is asked for nothing else than that."""

    def __init__(self) -> None:
        super().__init__(samples=False)

    def new_span_id(self) -> str:
        raise AssertionError("a trace that is not sampled has no spans")

    emit = now = new_span_id  # type: ignore[assignment]


def test_a_trace_that_begins_here_and_is_not_sampled_costs_one_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No ids, no spans, no fields of log lines, at the gateway and at every worker; also in what follows."""
    monkeypatch.setattr(tracing, "active", Refusing())
    with tracing.span("POST", {}) as request, tracing.span("pyoco.event", {}), capture_logs() as lines:
        carried = tracing.carrying(a_job(retry=RunRetry(max_attempts=2)))
        of_execution = tracing.here()
        get_logger("x").info("inside")
    assert not request.is_sampled
    assert "trace_id" not in lines[0]
    assert carried.trace == of_execution == DROPPED
    received = codec.decode_job(codec.encode_job(carried))
    job = tracing.attempted(received)
    assert job is received
    assert tracing.fields_of(job) == {}
    failed = Conclude(owner=OWNER, status=RunStatus.FAILED, error="no", retry_at=NOW + 10)
    claimed, waiting = lived(job, failed)
    assert claimed.trace == job_of_next_try(job, waiting).trace == DROPPED


def test_an_execution_of_such_a_trace_has_no_span_and_nor_have_its_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracer = Recording()  # samples whatever it is asked for
    monkeypatch.setattr(tracing, "active", tracer)
    state = an_execution(trace=DROPPED)
    tracing.emit([span_of_execution(replace(state, status=ExecutionStatus.COMPLETED))])
    with tracing.below(place_of_execution(state), "pyoco.execution", None):
        assert tracing.carrying(a_job()).trace == DROPPED
    with tracing.continuing(DROPPED), tracing.span("pyoco.event", {}):
        assert tracing.here() == DROPPED
    assert tracer.spans == []


def test_an_exception_is_on_its_span(tracer: Recording) -> None:
    with pytest.raises(KeyError), tracing.span("x", {}):
        raise KeyError("secret")
    (span,) = tracer.spans
    assert (span.status, span.description) == ("ERROR", "KeyError")


# Runs


class OlderJob(msgspec.Struct):
    """What an older worker reads."""

    run_id: str
    flow_name: str
    tag: str
    submitted_at: float


def test_an_older_worker_reads_a_job_with_a_trace_and_a_newer_one_reads_a_job_without() -> None:
    job = replace(a_job(), trace=Trace(traceparent=PARENT))
    assert msgspec.json.decode(codec.encode_job(job), type=OlderJob).run_id == job.run_id
    assert codec.decode_job(codec.encode_job(job)) == job
    older = msgspec.json.encode(OlderJob(job.run_id, job.flow_name, job.tag, job.submitted_at))
    assert codec.decode_job(older).trace is None


def changed(run: RunSnapshot, change: RunChange, now: float) -> RunSnapshot:
    """As `change_run` does it, without a store."""
    after = decide(run, change, now)
    assert isinstance(after, RunSnapshot)
    tracing.run_changed(run, after)
    return after


def lived(job: Job, *changes: RunChange) -> tuple[RunSnapshot, RunSnapshot]:
    """The run when it was claimed, and after the changes."""
    claim = Claim(OWNER, 1, job.try_number, trace=job.trace)
    first = run = changed(pending(job), claim, NOW + 2)
    for seconds, change in enumerate(changes, 3):
        run = changed(run, change, NOW + seconds)
    return first, run


def traced(**changes: Any) -> Job:
    return tracing.attempted(replace(a_job(**changes), submitted_at=NOW, trace=Trace(traceparent=PARENT)))


def test_the_end_of_a_run_ends_its_attempt_and_its_time_on_the_queue(tracer: Recording) -> None:
    job = traced()
    lived(job, RequestCancel(requested_by="me"), Conclude(owner=OWNER, status=RunStatus.CANCELLED))
    attempt, queued = tracer.spans
    assert (queued.name, queued.start_ns, queued.end_ns) == ("pyoco.job", NOW * 1e9, (NOW + 2) * 1e9)
    assert (attempt.name, attempt.start_ns, attempt.end_ns) == ("pyoco.run", (NOW + 2) * 1e9, (NOW + 4) * 1e9)
    assert queued.parent == read_traceparent(PARENT)
    assert attempt.parent == SpanContext(TRACE_ID, queued.span_id, is_sampled=True)
    assert job.trace
    assert job.trace.attempt == f"00-{TRACE_ID}-{attempt.span_id}-01"
    assert attempt.attributes["pyoco.status"] == "CANCELLED"
    assert attempt.links == ()


def test_whoever_takes_a_run_over_ends_the_lost_attempt_and_links_to_it(tracer: Recording) -> None:
    job = traced()
    again = tracing.attempted(replace(job, trace=Trace(traceparent=PARENT)))
    lived(job, Claim(LATER, 1, trace=again.trace), Conclude(owner=LATER, status=RunStatus.COMPLETED))
    lost, second, queued = tracer.spans
    assert (lost.attributes["pyoco.status"], lost.status) == ("LOST", "ERROR")
    assert lost.end_ns == (NOW + 2) * 1e9  # the last heartbeat
    assert lost.parent == second.parent == SpanContext(TRACE_ID, queued.span_id, is_sampled=True)
    assert job.trace
    assert second.links == (job.trace.attempt,)
    assert queued.end_ns == (NOW + 2) * 1e9  # when it was first taken


def test_a_next_try_is_a_job_below_the_same_parent_and_links_to_the_try_before(tracer: Recording) -> None:
    job = traced(retry=RunRetry(max_attempts=2))
    failed = Conclude(owner=OWNER, status=RunStatus.FAILED, error="no", retry_at=NOW + 10)
    _, waiting = lived(job, failed)
    next_job = job_of_next_try(job, waiting)
    assert next_job.trace == Trace(traceparent=PARENT)
    next_job = tracing.attempted(next_job)
    run = changed(waiting, Claim(OWNER, 2, 2, trace=next_job.trace), NOW + 12)
    changed(run, Conclude(owner=OWNER, status=RunStatus.COMPLETED), NOW + 13)
    attempt, queued, next_attempt, next_queued = tracer.spans
    assert (attempt.status, attempt.description) == ("ERROR", "no")
    assert attempt.attributes["pyoco.failure"] == "error"
    assert (queued.parent, queued.trace_id) == (next_queued.parent, next_queued.trace_id)
    assert queued.span_id != next_queued.span_id
    assert (next_queued.start_ns, next_queued.end_ns) == ((NOW + 10) * 1e9, (NOW + 12) * 1e9)
    assert next_attempt.links == (f"00-{TRACE_ID}-{attempt.span_id}-01",)


def test_a_run_that_no_worker_took_has_only_its_time_on_the_queue(tracer: Recording) -> None:
    run = pending(replace(a_job(start_within_sec=1.0), submitted_at=NOW, trace=Trace(traceparent=PARENT)))
    changed(run, Expire(), NOW + 5)
    (queued,) = tracer.spans
    assert (queued.name, queued.end_ns, queued.status) == ("pyoco.job", (NOW + 5) * 1e9, "ERROR")


def test_a_gateway_that_gives_a_run_up_ends_its_last_attempt(tracer: Recording) -> None:
    give_up = GiveUp(error="killed every worker", kind=FailureKind.MAX_DELIVER, last_attempt=OWNER.attempt)
    lived(traced(), give_up)
    assert [(span.name, span.status) for span in tracer.spans] == [
        ("pyoco.run", "ERROR"),
        ("pyoco.job", "UNSET"),
    ]


def test_a_job_without_a_context_has_the_same_trace_in_every_attempt(tracer: Recording) -> None:
    job = a_job()
    first, second = tracing.attempted(job), tracing.attempted(job)
    contexts = [read_traceparent(job.trace.attempt) for job in (first, second) if job.trace]
    assert len({context.trace_id for context in contexts if context}) == 1
    assert len({context.span_id for context in contexts if context}) == 2
    assert place_of_job(first.run_id, 1, None).parent is None


def test_a_worker_without_traces_keeps_the_context_and_adds_nothing() -> None:
    job = replace(a_job(), trace=Trace(traceparent=PARENT))
    claimed, after = lived(job, Conclude(owner=OWNER, status=RunStatus.COMPLETED))
    assert claimed.trace
    assert (claimed.trace.traceparent, claimed.trace.attempt) == (PARENT, None)
    assert after.trace == claimed.trace


def test_changes_that_end_nothing_have_no_span() -> None:
    run = a_snapshot(RunStatus.RUNNING)
    assert list(spans_of_change(run, replace(run, heartbeat_at=NOW + 1))) == []
    ended = replace(run, status=RunStatus.COMPLETED)
    assert list(spans_of_change(ended, replace(ended, retried_as="x"))) == []


# Executions


def an_execution(trace: Trace) -> Execution:
    return Execution(
        execution_id="e1",
        graph_id="g",
        graph_version=1,
        created_at=NOW,
        updated_at=NOW,
        version=1,
        trace=trace,
    )


def test_an_execution_has_the_same_span_wherever_it_is_continued() -> None:
    state = an_execution(trace=Trace(traceparent=PARENT))
    ended = replace(
        state, status=ExecutionStatus.FAILED, failed_at=NOW + 9, error=Failure("no"), failed_node_id="n"
    )
    span = span_of_execution(ended)
    assert (span.trace_id, span.span_id) == (TRACE_ID, place_of_execution(state).span_id)
    assert (span.start_ns, span.end_ns) == (NOW * 1e9, (NOW + 9) * 1e9)
    assert (span.status, span.description) == ("ERROR", "no")
    root = place_of_execution(replace(state, trace=None))
    assert root.parent is None
    assert root.trace_id != TRACE_ID
