"""Why a run waits, what it does, or why it ended as it did: a cause, from facts that others gather."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType

from pyoco_server.domain.fleet import ALIVE, WorkerRecord, WorkerState, view_of
from pyoco_server.domain.inputs import MAX_KNOWN, MAX_WORD
from pyoco_server.domain.queues import WaitingFor
from pyoco_server.domain.runs.model import CodeWheel, FailureKind, RunFailure, RunSnapshot, RunStatus, RunTry

DAY_SEC = 86_400.0
LOG_LINES = 10
MAX_GONE = 5
"""Workers named that were there once."""


class Cause(StrEnum):
    NO_WORKER = "no_worker"
    BUSY = "busy"
    PAUSED = "paused"
    DELAYED = "delayed"
    LIMIT = "limit"
    NEXT_TRY = "next_try"
    WORKER_LOST = "worker_lost"
    RUNNING = "running"
    ERROR = "error"
    FLOW_NOT_FOUND = "flow_not_found"
    CRASH = "crash"
    TIMEOUT = "timeout"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


class QueueStanding(Struct, frozen=True, kw_only=True):
    """The queue of the run's tag; runs are those of its tenant."""

    tag: str
    position: int | None
    """By waiting time, 1 is the oldest. None: far behind."""
    waiting: int
    running: int
    workers: int
    """Live ones with the tag."""
    slots: int
    """Runs that they can run at once."""
    throughput_per_min: int


class SeenWorker(Struct, frozen=True, kw_only=True):
    """`state`: null if there is no record of it any more. `silent_sec`: since its last heartbeat."""

    worker_id: str
    state: WorkerState | None
    silent_sec: float | None
    is_same_instance: bool = True
    """False: the worker was restarted after it took the run."""

    @property
    def has_the_run(self) -> bool:
        return self.state in ALIVE and self.is_same_instance


class FlowSeen(Struct, frozen=True, kw_only=True):
    """Where live workers have the run's flow."""

    is_known: bool = True
    """False: the live workers with the run's tag report all of their flows, and it is not among them."""
    tags: tuple[str, ...] = ()
    """Other tags with workers that have it."""
    similar_flows: tuple[str, ...] = ()
    similar_tags: tuple[str, ...] = ()


class CompletedRun(Struct, frozen=True, kw_only=True):
    """The last run of the flow that completed."""

    run_id: str
    at: float
    wheels: tuple[CodeWheel, ...] | None


class SameErrors(Struct, frozen=True, kw_only=True):
    """Failed runs of the flow in the last 24 hours, this one included.

    `count`: those with the same error, apart from numbers. `is_partial`: there are more failed runs than were
    compared.
    """

    count: int
    failed: int
    first_at: float | None
    is_partial: bool


class Facts(Struct, frozen=True, kw_only=True):
    run: RunSnapshot
    now: float
    """By the clock of the store."""
    waiting_for: WaitingFor | None = None
    queue: QueueStanding | None = None
    flow: FlowSeen = FlowSeen()
    worker: SeenWorker | None = None
    """The one that has the run."""
    gone: tuple[SeenWorker, ...] = ()
    """Workers with the tag that are not alive."""
    log: tuple[str, ...] = ()
    """The last lines."""
    same_errors: SameErrors | None = None
    last_completed: CompletedRun | None = None

    @property
    def failure(self) -> RunFailure | None:
        """Why the run, or its last try, failed. An older worker stores only the text."""
        run = self.run
        if run.status is RunStatus.PENDING:
            return run.tries[-1].failure if run.tries else None
        if run.failure is not None or run.status is not RunStatus.FAILED:
            return run.failure
        return RunFailure(kind=FailureKind.ERROR, message=run.error or "")

    @property
    def last_try(self) -> RunTry | None:
        return self.run.tries[-1] if self.run.tries else None

    @property
    def lacks_workers(self) -> bool:
        return self.queue is not None and self.queue.workers == 0

    @property
    def is_code_changed(self) -> bool:
        """Whether the wheels of the run differ from those of the last run that completed."""
        last = self.last_completed
        if last is None or last.wheels is None or self.run.wheels is None:
            return False
        return set(last.wheels) != set(self.run.wheels)


# The cause

_OF_FAILURES = {
    FailureKind.ERROR: Cause.ERROR,
    FailureKind.TIMEOUT: Cause.TIMEOUT,
    FailureKind.CRASH: Cause.CRASH,
    FailureKind.EXPIRED: Cause.EXPIRED,
    FailureKind.FLOW_NOT_FOUND: Cause.FLOW_NOT_FOUND,
    FailureKind.INVALID_JOB: Cause.ERROR,
    FailureKind.MAX_DELIVER: Cause.WORKER_LOST,
    FailureKind.LOST_JOB: Cause.ERROR,
}


def cause_of(facts: Facts) -> Cause:
    match facts.run.status:
        case RunStatus.PENDING:
            return _why_it_waits(facts)
        case RunStatus.RUNNING | RunStatus.CANCELLING if facts.worker and not facts.worker.has_the_run:
            return Cause.WORKER_LOST
        case RunStatus.RUNNING:
            return Cause.RUNNING
        case RunStatus.FAILED:
            return Cause.ERROR if facts.failure is None else _OF_FAILURES[facts.failure.kind]
        case RunStatus.COMPLETED:
            return Cause.COMPLETED
        case RunStatus.CANCELLING | RunStatus.CANCELLED:
            return Cause.CANCELLED


def _why_it_waits(facts: Facts) -> Cause:
    """What comes first on its way: its time, its limits and pauses, a worker, a free slot."""
    run = facts.run
    if run.not_before is not None and run.not_before > facts.now:
        return Cause.NEXT_TRY if run.tries else Cause.DELAYED
    if facts.waiting_for is not None:
        return Cause.LIMIT if facts.waiting_for.paused is UNSET else Cause.PAUSED
    return Cause.NO_WORKER if facts.lacks_workers else Cause.BUSY


# The same error

_VARYING = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\d+", re.IGNORECASE)
MAX_COMPARED = 500
"""Characters of an error."""


def signature(error: str | None) -> str:
    """An error without what differs between runs: ids, addresses and numbers."""
    return _VARYING.sub("#", (error or "")[:MAX_COMPARED])


def same_errors(
    error: str | None, others: Iterable[tuple[str | None, float]], *, is_partial: bool
) -> SameErrors:
    """`others`: errors of failed runs and their times, including the run itself."""
    wanted, failed, times = signature(error), 0, []
    for text, at in others:
        failed += 1
        if signature(text) == wanted:
            times.append(at)
    return SameErrors(
        count=len(times), failed=failed, first_at=min(times, default=None), is_partial=is_partial
    )


def similar(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to three words that may have been meant."""
    words = sorted(other for other in known if other != word and len(other) <= MAX_WORD)[:MAX_KNOWN]
    return tuple(get_close_matches(word, words)) if len(word) <= MAX_WORD else ()


# The flow


def flow_seen(run: RunSnapshot, tag: str, alive: Iterable[WorkerRecord]) -> FlowSeen:
    """`alive`: all live workers."""
    live = view_of(alive, ()).live
    found = live.get(tag)
    if found is None:
        return FlowSeen(similar_tags=similar(tag, live))
    if run.workflow_yaml_sha256 is not None or run.flow_name in found.names:
        return FlowSeen()
    return FlowSeen(
        is_known=not found.is_complete,
        tags=tuple(sorted(other for other, flows in live.items() if run.flow_name in flows.names)),
        similar_flows=similar(run.flow_name, {name for flows in live.values() for name in flows.names}),
    )


# The answer


class Evidence(Struct, frozen=True, kw_only=True):
    """What the diagnosis is based on. Fields without a meaning for this run are left out.

    `log`: the last lines of the task that failed, or of the run. `wheels`: the versions of its code.
    """

    status: RunStatus
    flow_name: str
    tag: str | None
    failure: RunFailure | UnsetType = UNSET
    try_number: int | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    not_before: float | UnsetType = UNSET
    waiting_for: WaitingFor | UnsetType = UNSET
    queue: QueueStanding | UnsetType = UNSET
    worker: SeenWorker | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    gone_workers: tuple[SeenWorker, ...] | UnsetType = UNSET
    flow: FlowSeen | UnsetType = UNSET
    log: tuple[str, ...] | UnsetType = UNSET
    wheels: tuple[CodeWheel, ...] | UnsetType = UNSET
    same_error: SameErrors | UnsetType = UNSET
    last_completed: CompletedRun | UnsetType = UNSET


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Why a run waits, or why it ended as it did.

    `summary`, `details` and `advice` are texts in the language of the request.
    """

    run_id: str
    cause: Cause
    summary: str
    details: str
    advice: list[str]
    evidence: Evidence


DIAGNOSIS_ANSWERS = (Diagnosis, Evidence, QueueStanding, SeenWorker, FlowSeen, CompletedRun, SameErrors)
"""Types of the HTTP API."""


def evidence_of(facts: Facts) -> Evidence:
    run = facts.run
    return Evidence(
        status=run.status,
        flow_name=run.flow_name,
        tag=run.tag,
        failure=facts.failure or UNSET,
        try_number=run.try_number if run.tries else UNSET,
        max_attempts=UNSET if run.retry is None else run.retry.max_attempts,
        not_before=run.not_before or UNSET if run.status is RunStatus.PENDING else UNSET,
        waiting_for=facts.waiting_for or UNSET,
        queue=facts.queue or UNSET,
        worker=facts.worker or UNSET,
        attempt=run.attempt or UNSET,
        gone_workers=facts.gone or UNSET,
        flow=UNSET if facts.flow == FlowSeen() else facts.flow,
        log=facts.log or UNSET,
        wheels=run.wheels or UNSET,
        same_error=facts.same_errors or UNSET,
        last_completed=facts.last_completed or UNSET,
    )
