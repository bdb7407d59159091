"""The state machine of a run: `decide(snapshot, change, now)`.

The decision about a requested change is the next snapshot, or a refusal with its reason. The caller writes
the snapshot with the revision it was decided on, and decides again after a conflict.

Two rules are enforced only here:

* Cancel wins. From CANCELLING the only way out is CANCELLED, whatever the flow returned meanwhile; a
  cancelled run has no next try.
* Fencing. A running snapshot belongs to its owner; a later delivery of the same job may take it over, an
  earlier one never. A second job of the run never does, nor the job of an earlier try.

Every try of a run has a job of its own. A failed try that may be repeated makes the run PENDING again,
without an owner; the job of the next try is queued after that, so whoever finds the job of an earlier try can
complete the sequence.
"""

from enum import StrEnum
from typing import Any, Literal, TypeVar, assert_never

from msgspec import Struct

from pyoco_server.domain.artifacts import RunArtifact, added
from pyoco_server.domain.large_values import Place, below
from pyoco_server.domain.runs.ends import ended, later
from pyoco_server.domain.runs.failures import failure_of, with_failed_try
from pyoco_server.domain.runs.model import (
    CodeWheel,
    FailureKind,
    Owner,
    RunFailure,
    RunLimit,
    RunProgress,
    RunSnapshot,
    RunStatus,
    TaskRecord,
    TaskState,
    replace,
    settled,
    settled_records,
)
from pyoco_server.domain.traces import Trace, claimed

T = TypeVar("T")


class Claim(Struct, frozen=True):
    """A worker received the job and claims the run."""

    owner: Owner
    job_seq: int | None = None
    """Stream sequence of the job."""
    try_number: int = 1
    """The try that the job is for."""
    is_expired: bool = False
    """The job waited longer than the run may wait for its first start."""
    trace: Trace | None = None


class Report(Struct, frozen=True):
    """Progress report of the owner, whose try is `try_number`; None: the current one."""

    owner: Owner
    tasks: dict[str, TaskState]
    task_records: dict[str, TaskRecord]
    task_dependencies: dict[str, tuple[str, ...]] | None = None
    task_records_truncated: bool = False
    try_number: int | None = None
    progress: RunProgress | None = None


class Beat(Struct, frozen=True):
    """Heartbeat of the owner. `try_number`: see `Report`."""

    owner: Owner
    try_number: int | None = None


class KeepArtifact(Struct, frozen=True):
    """A task of the owner has saved a file. `try_number`: see `Report`."""

    owner: Owner
    artifact: RunArtifact
    try_number: int | None = None


class Conclude(Struct, frozen=True, kw_only=True):
    """The owner's flow has ended. `try_number`: see `Report`."""

    owner: Owner
    status: Literal[RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED]
    tasks: dict[str, TaskState] | None = None
    task_records: dict[str, TaskRecord] | None = None
    task_dependencies: dict[str, tuple[str, ...]] | None = None
    task_records_truncated: bool = False
    result: Any = None
    result_truncated: bool = False
    warnings: tuple[str, ...] = ()
    error: str | None = None
    kind: FailureKind = FailureKind.ERROR
    traceback: str | None = None
    """Of the exception that ended the flow."""
    try_number: int | None = None
    retry_at: float | None = None
    """When the next try starts, if there is one; None: there is none."""
    wheels: tuple[CodeWheel, ...] | None = None
    values: tuple[Place, ...] = ()
    progress: RunProgress | None = None


class RequestCancel(Struct, frozen=True, kw_only=True):
    """A cancel request."""

    requested_by: str
    reason: str | None = None


class ConvergeCancel(Struct, frozen=True):
    """End a cancelled run that no worker holds, or whose worker exceeded the grace period."""

    is_overdue: bool = False
    """The grace period is over; the run ends regardless of its owner."""


class GiveUp(Struct, frozen=True, kw_only=True):
    """Fail a run without a job, or one that has used up its deliveries up to `last_attempt`."""

    error: str
    kind: FailureKind
    last_attempt: int
    job_seq: int | None = None
    """The job concerned; None: any."""
    try_number: int | None = None
    """The try that the job is for; None: the current one."""


class Expire(Struct, frozen=True):
    """The time for the run's first start is over."""


class Admit(Struct, frozen=True):
    """The run got its place in all limits; its job is queued next."""

    limits: tuple[RunLimit, ...]
    limit_rules: str


class GiveUpPlaces(Struct, frozen=True):
    """Void the places that were taken for a waiting run: they name the revision before this change."""


class LinkRetry(Struct, frozen=True):
    """The run has ended, and another one repeats it."""

    run_id: str


ByOwner = Report | Beat | KeepArtifact | Conclude
RunChange = (
    Claim | ByOwner | RequestCancel | ConvergeCancel | GiveUp | Expire | LinkRetry | Admit | GiveUpPlaces
)


class Refusal(StrEnum):
    TERMINAL = "terminal"
    """The run has ended and cannot change."""
    FENCED = "fenced"
    """Another delivery of the job owns the run."""
    OTHER_JOB = "other_job"
    """Another job executes the run; this one is redundant."""
    EARLIER_TRY = "earlier_try"
    """The job's try has failed; the next one may lack its job."""


def decide(  # noqa: C901, PLR0911, PLR0912 - one return per kind of change
    snapshot: RunSnapshot, change: RunChange, now: float
) -> RunSnapshot | Refusal:
    """The snapshot after `change`, or a refusal. `snapshot` itself if there is nothing to write."""
    if isinstance(change, RequestCancel):  # idempotent, also after the run has ended
        return _request_cancel(snapshot, change, now)
    if isinstance(change, LinkRetry):
        return _link_retry(snapshot, change, now)
    if snapshot.status.is_terminal:
        return Refusal.TERMINAL
    match change:
        case Claim():
            return _claim(snapshot, change, now)
        case Report():
            return _report(snapshot, change, now)
        case Beat():
            return _beat(snapshot, change, now)
        case KeepArtifact():
            return _keep_artifact(snapshot, change, now)
        case Conclude():
            return _conclude(snapshot, change, now)
        case ConvergeCancel():
            return _converge_cancel(snapshot, change, now)
        case GiveUp():
            return _give_up(snapshot, change, now)
        case Expire():
            return _expire(snapshot, now)
        case Admit() | GiveUpPlaces():
            return _decide_waiting(snapshot, change, now)
        case _:
            assert_never(change)


def _claim(snapshot: RunSnapshot, change: Claim, now: float) -> RunSnapshot | Refusal:
    refusal = _refuse_claim(snapshot, change)
    if refusal is not None:
        return refusal
    if snapshot.owner == change.owner:  # our earlier claim was stored after all
        return snapshot
    if snapshot.status is RunStatus.CANCELLING:
        return ended(snapshot, RunStatus.CANCELLED, now)
    if change.is_expired and not _has_started(snapshot):
        return _expire(snapshot, now)
    return replace(
        snapshot,
        status=RunStatus.RUNNING,
        worker_id=change.owner.worker_id,
        instance_id=change.owner.instance_id,
        attempt=change.owner.attempt,
        job_seq=change.job_seq,
        tasks=_kept(snapshot, snapshot.tasks),
        task_records=_kept(snapshot, snapshot.task_records or {}),
        task_records_truncated=False,
        task_dependencies=snapshot.task_dependencies if snapshot.kept_tasks else None,
        progress=None,
        start_time=now,
        waited_sec=_waited(snapshot, now),
        trace=claimed(snapshot.trace, change.trace, now, is_same_try=snapshot.owner is not None),
        heartbeat_at=now,
        updated_at=later(snapshot, now),
    )


def _waited(snapshot: RunSnapshot, now: float) -> float | None:
    """Until the first start; later ones change nothing."""
    if snapshot.waited_sec is not None or snapshot.submitted_at is None or _has_started(snapshot):
        return snapshot.waited_sec
    return max(0.0, now - max(snapshot.submitted_at, snapshot.not_before or 0.0))


def _kept(snapshot: RunSnapshot, by_task: dict[str, T]) -> dict[str, T]:
    return {name: by_task[name] for name in snapshot.kept_tasks or () if name in by_task}


def _refuse_claim(snapshot: RunSnapshot, change: Claim) -> Refusal | None:
    if change.try_number < snapshot.try_number:
        return Refusal.EARLIER_TRY
    if _is_of_another_job(snapshot, change.job_seq):
        return Refusal.OTHER_JOB
    held = snapshot.owner
    if held is None or held == change.owner or held.attempt < change.owner.attempt:
        return None
    return Refusal.FENCED


def _is_of_another_job(snapshot: RunSnapshot, job_seq: int | None) -> bool:
    """Whether the run is certainly held under another job."""
    if snapshot.owner is None or snapshot.job_seq is None or job_seq is None:
        return False
    return snapshot.job_seq != job_seq


def _is_owned(snapshot: RunSnapshot, change: ByOwner) -> bool:
    """Every try counts its own deliveries: a worker that executes two of them has the same name in both."""
    return snapshot.owner == change.owner and change.try_number in (None, snapshot.try_number)


def _report(snapshot: RunSnapshot, change: Report, now: float) -> RunSnapshot | Refusal:
    if not _is_owned(snapshot, change):
        return Refusal.FENCED
    return replace(
        snapshot,
        tasks=change.tasks,
        task_records=change.task_records,
        task_records_truncated=change.task_records_truncated,
        task_dependencies=change.task_dependencies or snapshot.task_dependencies,
        progress=change.progress,
        heartbeat_at=now,
        updated_at=later(snapshot, now),
    )


def _beat(snapshot: RunSnapshot, change: Beat, now: float) -> RunSnapshot | Refusal:
    """A heartbeat leaves `updated_at` unchanged, so that lists do not reorder every second."""
    if not _is_owned(snapshot, change):
        return Refusal.FENCED
    return replace(snapshot, heartbeat_at=now)


def _keep_artifact(snapshot: RunSnapshot, change: KeepArtifact, now: float) -> RunSnapshot | Refusal:
    if not _is_owned(snapshot, change):
        return Refusal.FENCED
    if change.artifact in snapshot.artifacts:
        return snapshot
    artifacts = added(snapshot.artifacts, change.artifact)
    return replace(snapshot, artifacts=artifacts, heartbeat_at=now, updated_at=later(snapshot, now))


def _conclude(snapshot: RunSnapshot, change: Conclude, now: float) -> RunSnapshot | Refusal:
    if _was_recorded(snapshot, change):
        return snapshot
    if not _is_owned(snapshot, change):
        return Refusal.FENCED
    known = replace(
        snapshot,
        tasks=snapshot.tasks if change.tasks is None else change.tasks,
        task_records=snapshot.task_records if change.task_records is None else change.task_records,
        task_records_truncated=snapshot.task_records_truncated
        if change.task_records is None
        else change.task_records_truncated,
        task_dependencies=change.task_dependencies or snapshot.task_dependencies,
        wheels=change.wheels,
        progress=change.progress or snapshot.progress,
    )
    if snapshot.status is RunStatus.CANCELLING:
        return ended(known, RunStatus.CANCELLED, now)
    known = replace(
        known,
        result_truncated=change.result_truncated,
        warnings=change.warnings,
        values=(*below(known.values, "params"), *change.values),
    )
    if change.status is not RunStatus.FAILED:
        return ended(known, change.status, now, error=change.error, result=change.result)
    failure = failure_of(known, change.kind, change.error or "", change.traceback)
    failed = with_failed_try(known, failure, now)
    if change.retry_at is not None and _may_retry(snapshot, change.kind):
        return _waiting_for_next_try(failed, change.retry_at, now)
    return ended(failed, RunStatus.FAILED, now, error=change.error, failure=failure)


def _was_recorded(snapshot: RunSnapshot, change: Conclude) -> bool:
    """Whether the failed try was stored after all, and the run waits for the next."""
    return (
        snapshot.status is RunStatus.PENDING
        and change.try_number is not None
        and snapshot.try_number == change.try_number + 1
        and snapshot.tries[-1].worker_id == change.owner.worker_id
    )


def _may_retry(snapshot: RunSnapshot, kind: FailureKind) -> bool:
    policy = snapshot.retry
    return policy is not None and kind in policy.on and snapshot.try_number < policy.max_attempts


def next_wait_sec(snapshot: RunSnapshot, change: Conclude, jitter: float) -> float | None:
    """The time until the next try after a failure; None: there is none."""
    if change.status is not RunStatus.FAILED or not _may_retry(snapshot, change.kind):
        return None
    policy = snapshot.retry
    return None if policy is None else policy.wait_sec(snapshot.try_number, jitter)


def _waiting_for_next_try(snapshot: RunSnapshot, retry_at: float, now: float) -> RunSnapshot:
    """The tasks of the failed try stay visible until the next one starts.

    So does `job_seq`: a gateway finds the job there if the worker could not queue the next one.
    """
    return replace(
        snapshot,
        status=RunStatus.PENDING,
        tasks=settled(snapshot.tasks, RunStatus.FAILED),
        task_records=settled_records(snapshot.task_records, RunStatus.FAILED),
        worker_id=None,
        instance_id=None,
        attempt=None,
        not_before=retry_at,
        start_time=None,
        heartbeat_at=now,
        updated_at=later(snapshot, now),
    )


def _request_cancel(snapshot: RunSnapshot, change: RequestCancel, now: float) -> RunSnapshot:
    if snapshot.status.is_terminal or snapshot.status is RunStatus.CANCELLING:
        return snapshot
    return replace(
        snapshot,
        status=RunStatus.CANCELLING,
        cancel_requested_at=now,
        cancel_requested_by=change.requested_by,
        cancel_reason=change.reason,
        updated_at=later(snapshot, now),
    )


def _link_retry(snapshot: RunSnapshot, change: LinkRetry, now: float) -> RunSnapshot:
    """Run ids are ordered by time, so the links of concurrent retries end in the same state."""
    newest = max(change.run_id, snapshot.retried_as or "")
    if newest == snapshot.retried_as or not snapshot.status.is_terminal:
        return snapshot
    return replace(snapshot, retried_as=newest, updated_at=later(snapshot, now))


def _converge_cancel(snapshot: RunSnapshot, change: ConvergeCancel, now: float) -> RunSnapshot:
    if snapshot.status is RunStatus.CANCELLING and (snapshot.owner is None or change.is_overdue):
        return ended(snapshot, RunStatus.CANCELLED, now)
    return snapshot


def _give_up(snapshot: RunSnapshot, change: GiveUp, now: float) -> RunSnapshot | Refusal:
    if change.try_number is not None and change.try_number < snapshot.try_number:
        return Refusal.EARLIER_TRY
    if snapshot.owner is not None and snapshot.owner.attempt > change.last_attempt:
        return Refusal.FENCED
    if _is_of_another_job(snapshot, change.job_seq):
        return Refusal.OTHER_JOB
    if snapshot.status is RunStatus.CANCELLING:
        return ended(snapshot, RunStatus.CANCELLED, now)
    failure = failure_of(snapshot, change.kind, change.error)
    known = snapshot if snapshot.owner is None else with_failed_try(snapshot, failure, now)
    return ended(known, RunStatus.FAILED, now, error=change.error, failure=failure)


def _expire(snapshot: RunSnapshot, now: float) -> RunSnapshot:
    if _has_started(snapshot) or snapshot.status is not RunStatus.PENDING:
        return snapshot
    error = f"no worker started the run within {snapshot.start_within_sec or 0:g} s"
    failure = RunFailure(kind=FailureKind.EXPIRED, message=error)
    return ended(snapshot, RunStatus.FAILED, now, error=error, failure=failure)


def _decide_waiting(snapshot: RunSnapshot, change: Admit | GiveUpPlaces, now: float) -> RunSnapshot:
    if snapshot.status is not RunStatus.PENDING or not snapshot.is_held:
        return snapshot
    waiting = replace(snapshot, updated_at=later(snapshot, now))
    if isinstance(change, GiveUpPlaces):
        return waiting
    return replace(
        waiting,
        limits=change.limits,
        limit_rules=change.limit_rules,
        admitted_try=snapshot.try_number,
    )


def _has_started(snapshot: RunSnapshot) -> bool:
    return snapshot.owner is not None or bool(snapshot.tries)
