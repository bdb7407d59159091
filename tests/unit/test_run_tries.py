"""Tries of a run: when a failed one is followed by another, and what the run shows meanwhile."""

from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.runs.changes import (
    Beat,
    Claim,
    Conclude,
    ConvergeCancel,
    GiveUp,
    Refusal,
    Report,
    RequestCancel,
    decide,
    next_wait_sec,
)
from pyoco_server.domain.runs.jobs import accept, job_of_next_try, message_id_of, pending, start_of
from pyoco_server.domain.runs.model import (
    FailureKind,
    Owner,
    RunRetry,
    RunSnapshot,
    RunStatus,
    TaskRecord,
    TaskState,
)
from pyoco_server.errors import InvalidRequest
from support.builders import NOW, RUN_ID, a_job, a_submission

FIRST = Owner("worker-a", "instance-1", 1)
THREE = RunRetry(max_attempts=3)


def running(owner: Owner = FIRST, **changes: Any) -> RunSnapshot:
    claimed = decide(pending(a_job(retry=THREE, **changes)), Claim(owner, 7), NOW)
    assert isinstance(claimed, RunSnapshot)
    return claimed


def failed(run: RunSnapshot, at: float = NOW + 1, **changes: Any) -> RunSnapshot:
    assert run.owner is not None
    change = Conclude(
        owner=run.owner,
        status=RunStatus.FAILED,
        error="ValueError: no",
        try_number=run.try_number,
        retry_at=at + 5,
        tasks={"a": TaskState.SUCCEEDED, "b": TaskState.RUNNING},
        task_records={
            "a": TaskRecord(state=TaskState.SUCCEEDED),
            "b": TaskRecord(state=TaskState.FAILED, error="ValueError: no", traceback="Traceback …"),
        },
    )
    ended = decide(run, replace(change, **changes), at)
    assert isinstance(ended, RunSnapshot)
    return ended


def claimed_again(run: RunSnapshot, owner: Owner = FIRST, job_seq: int = 8) -> RunSnapshot:
    claimed = decide(run, Claim(owner, job_seq, run.try_number), NOW + 6)
    assert isinstance(claimed, RunSnapshot)
    return claimed


def test_a_failed_try_makes_the_run_pending_again_with_its_failure_on_record() -> None:
    waiting = failed(running())
    assert (waiting.status, waiting.not_before, waiting.owner) == (RunStatus.PENDING, NOW + 6, None)
    assert (waiting.error, waiting.failure, waiting.end_time) == (None, None, None)
    (one,) = waiting.tries
    assert (one.n, one.started_at, one.ended_at, one.worker_id) == (1, NOW, NOW + 1, "worker-a")
    assert one.failure.kind is FailureKind.ERROR
    assert (one.failure.message, one.failure.task) == ("ValueError: no", "b")
    assert one.failure.traceback == "Traceback …"
    assert waiting.tasks["b"] is TaskState.FAILED, "no task of it runs any more"


def test_the_last_try_ends_the_run() -> None:
    run = failed(claimed_again(failed(claimed_again(failed(running())))))
    assert run.status is RunStatus.FAILED
    assert [one.n for one in run.tries] == [1, 2, 3]
    assert run.failure is not None
    assert (run.error, run.failure.message, run.failure.kind) == ("ValueError: no", "ValueError: no", "error")


def test_a_run_that_fails_without_a_policy_has_one_try() -> None:
    run = failed(replace(running(), retry=None))
    assert (run.status, [one.n for one in run.tries]) == (RunStatus.FAILED, [1])


def test_a_success_after_failures_keeps_them_and_has_no_failure() -> None:
    again = claimed_again(failed(running()))
    done = decide(again, Conclude(owner=FIRST, status=RunStatus.COMPLETED, result={"x": 1}), NOW + 9)
    assert isinstance(done, RunSnapshot)
    assert (done.status, done.failure, done.error) == (RunStatus.COMPLETED, None, None)
    assert [one.n for one in done.tries] == [1]


@pytest.mark.parametrize(
    ("kind", "on", "status"),
    [
        ("timeout", ("timeout",), "PENDING"),
        ("crash", ("timeout",), "FAILED"),
        ("error", ("error",), "PENDING"),
        ("flow_not_found", ("error", "timeout", "crash"), "FAILED"),
        ("invalid_job", ("error", "timeout", "crash"), "FAILED"),
    ],
)
def test_only_the_wanted_failures_are_retried(kind: str, on: tuple[str, ...], status: str) -> None:
    policy = RunRetry(max_attempts=3, on=tuple(map(FailureKind, on)))
    run = failed(replace(running(), retry=policy), kind=FailureKind(kind))
    assert run.status == status
    assert run.tries[-1].failure.kind == kind


def test_a_cancel_wins_over_a_retry() -> None:
    cancelling = decide(running(), RequestCancel(requested_by="me"), NOW)
    assert isinstance(cancelling, RunSnapshot)
    assert failed(cancelling).status is RunStatus.CANCELLED


def test_a_run_that_waits_for_its_next_try_is_cancelled_at_once() -> None:
    cancelling = decide(failed(running()), RequestCancel(requested_by="me"), NOW + 2)
    assert isinstance(cancelling, RunSnapshot)
    ended = decide(cancelling, ConvergeCancel(), NOW + 2)
    assert isinstance(ended, RunSnapshot)
    assert ended.status is RunStatus.CANCELLED


def test_the_job_of_an_earlier_try_claims_nothing() -> None:
    waiting = failed(running())
    late = Claim(Owner("worker-b", "instance-2", 2), 7, 1)
    assert decide(waiting, late, NOW + 2) is Refusal.EARLIER_TRY
    assert decide(claimed_again(waiting), late, NOW + 7) is Refusal.EARLIER_TRY


def test_a_worker_that_executes_the_next_try_is_fenced_in_the_earlier_one() -> None:
    """It has the same name in both: the first delivery of each job has the number 1."""
    again = claimed_again(failed(running()))
    assert again.owner == FIRST
    late = Conclude(owner=FIRST, status=RunStatus.COMPLETED, try_number=1)
    for change in (Beat(FIRST, 1), Report(FIRST, {}, {}, try_number=1), late):
        assert decide(again, change, NOW + 7) is Refusal.FENCED
        assert isinstance(decide(again, replace(change, try_number=2), NOW + 7), RunSnapshot)


def test_a_job_that_is_given_up_ends_its_own_try_only() -> None:
    given_up = GiveUp(
        error="max_deliver", kind=FailureKind.MAX_DELIVER, last_attempt=20, job_seq=7, try_number=1
    )
    assert decide(failed(running()), given_up, NOW + 2) is Refusal.EARLIER_TRY
    ended = decide(running(), given_up, NOW + 2)
    assert isinstance(ended, RunSnapshot)
    assert ended.failure is not None
    assert (ended.status, ended.failure.kind) == (RunStatus.FAILED, FailureKind.MAX_DELIVER)


def test_the_end_of_a_try_that_was_stored_although_the_answer_was_lost_is_not_refused() -> None:
    run = running()
    waiting = failed(run)
    repeated = Conclude(
        owner=FIRST, status=RunStatus.FAILED, error="ValueError: no", try_number=1, retry_at=NOW + 6
    )
    assert decide(waiting, repeated, NOW + 2) is waiting
    other = replace(repeated, owner=Owner("worker-b", "instance-2", 2))
    assert decide(waiting, other, NOW + 2) is Refusal.FENCED


def test_the_newest_twenty_tries_are_kept_in_short() -> None:
    run = replace(running(), retry=RunRetry(max_attempts=100))
    for _ in range(30):
        run = claimed_again(failed(run, error="x" * 50_000))
    assert [one.n for one in run.tries] == list(range(11, 31))
    assert run.try_number == 31
    assert {len(one.failure.message) for one in run.tries} == {2_000}


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RunRetry(), [5, 10, 20, 40]),
        (RunRetry(max_backoff_sec=12), [5, 10, 12, 12]),
        (RunRetry(backoff_sec=0), [0, 0, 0, 0]),
        (RunRetry(backoff_sec=3, factor=1), [3, 3, 3, 3]),
    ],
)
def test_the_wait_grows_up_to_its_limit(policy: RunRetry, waits: list[float]) -> None:
    assert [policy.wait_sec(n, 0.0) for n in (1, 2, 3, 4)] == waits
    assert policy.wait_sec(100, 0.0) <= policy.max_backoff_sec


def test_the_wait_varies_by_its_jitter() -> None:
    policy = RunRetry(jitter=0.2)
    assert (policy.wait_sec(1, -1.0), policy.wait_sec(1, 1.0)) == (4.0, 6.0)


def test_there_is_no_wait_where_there_is_no_next_try() -> None:
    failure = Conclude(owner=FIRST, status=RunStatus.FAILED)
    assert next_wait_sec(running(), failure, 0.0) == 5.0
    assert next_wait_sec(replace(running(), retry=None), failure, 0.0) is None
    assert next_wait_sec(running(), replace(failure, kind=FailureKind.FLOW_NOT_FOUND), 0.0) is None
    assert next_wait_sec(running(), replace(failure, status=RunStatus.COMPLETED), 0.0) is None


def test_the_job_of_the_next_try_is_another_message() -> None:
    job = a_job(run_id=RUN_ID, retry=THREE, params={"x": 1})
    waiting = failed(running(run_id=RUN_ID))
    again = job_of_next_try(job, waiting)
    assert (again.try_number, again.not_before, again.params) == (2, NOW + 6, {"x": 1})
    assert (message_id_of(job), message_id_of(again)) == (RUN_ID, f"{RUN_ID}.try2")


@pytest.mark.parametrize(
    ("given", "not_before"),
    [
        ({}, None),
        ({"delay_sec": 0.0}, None),
        ({"delay_sec": 60.0}, NOW + 60),
        ({"run_at": NOW - 60}, None),
        ({"run_at": NOW + 60}, NOW + 60),
    ],
)
def test_when_a_run_starts(given: dict[str, float], not_before: float | None) -> None:
    wanted = a_submission(**given)
    job = accept(wanted, RUN_ID, NOW, start_of(wanted, NOW))
    assert (job.not_before, pending(job).not_before) == (not_before, not_before)


def test_a_start_in_more_than_a_year_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="run_at: more than 366 days"):
        start_of(a_submission(run_at=NOW + 367 * 86_400), NOW)


def test_a_run_that_waited_too_long_is_not_started() -> None:
    waiting = pending(a_job(start_within_sec=10.0))
    late = decide(waiting, Claim(FIRST, 7, 1, is_expired=True), NOW + 20)
    assert isinstance(late, RunSnapshot)
    assert late.failure is not None
    assert (late.status, late.failure.kind, late.tries) == (RunStatus.FAILED, FailureKind.EXPIRED, ())
    assert late.error == "no worker started the run within 10 s"


def test_a_run_that_was_started_in_time_is_taken_over_later() -> None:
    run = replace(running(), start_within_sec=10.0)
    taken = decide(run, Claim(Owner("worker-b", "instance-2", 2), 7, 1, is_expired=True), NOW + 60)
    assert isinstance(taken, RunSnapshot)
    assert taken.status is RunStatus.RUNNING
