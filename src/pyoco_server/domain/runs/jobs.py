"""Jobs: the queue message of a run, the disposition of a delivery, and flow outcomes."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from pyoco_server.domain.dead_letters import DlqReason
from pyoco_server.domain.inputs import (
    LABEL_RULE,
    MAX_DELAY_SEC,
    MAX_FLOW_NAME,
    MAX_TAGS,
    is_label,
    is_run_id,
    require_tag,
)
from pyoco_server.domain.large_values import Place, Step
from pyoco_server.domain.runs.changes import Conclude
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.model import (
    CodeWheel,
    FailureKind,
    KeptTasks,
    Owner,
    Priority,
    RunLimit,
    RunProgress,
    RunRetry,
    RunSnapshot,
    RunStatus,
    TaskRecord,
    TaskState,
)
from pyoco_server.domain.runs.task_requests import TaskAnswer, TaskRequest
from pyoco_server.domain.secrets import references as secret_references
from pyoco_server.domain.secrets.references import References
from pyoco_server.domain.traces import Trace, above
from pyoco_server.errors import InvalidJob, InvalidRequest

MAX_TIMESTAMP = 253_402_300_799
"""The end of the year 9999."""


class Submission(Struct, frozen=True, kw_only=True):
    """A request for a run."""

    flow_name: str
    params: dict[str, Any] = field(default_factory=dict)
    tag: str
    tags: tuple[str, ...] | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    workflow_yaml: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    execution_id: str | None = None
    node_id: str | None = None
    run_at: float | None = None
    """Unix time before which the run does not start; a time in the past means now."""
    delay_sec: float | None = None
    """The same, from now on."""
    start_within_sec: float | None = None
    timeout_sec: float | None = None
    retry: RunRetry | None = None
    priority: Priority | None = None
    """None: normal."""
    retried_from: str | None = None
    kept: KeptTasks | None = None
    schedule_id: str | None = None
    due_at: float | None = None
    """The tick of the schedule that started it."""
    references: References | None = None
    """Where `params` name secrets and variables; see `with_references`."""
    parent_run_id: str | None = None
    """The run whose task submits it."""
    values: tuple[Place, ...] = ()
    """Where `params` refer to stored values."""


class Job(Struct, frozen=True, kw_only=True):
    run_id: str
    flow_name: str
    tag: str
    submitted_at: float
    tags: tuple[str, ...] | None = None
    params: dict[str, Any] | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    workflow_yaml: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    execution_id: str | None = None
    node_id: str | None = None
    not_before: float | None = None
    start_within_sec: float | None = None
    timeout_sec: float | None = None
    retry: RunRetry | None = None
    priority: Priority = Priority.NORMAL
    lane: str = ""
    """The lane of its tag that it waits in; empty: the plain one."""
    try_number: int = 1
    retried_from: str | None = None
    kept: KeptTasks | None = None
    schedule_id: str | None = None
    due_at: float | None = None
    graph_id: str | None = None
    limits: tuple[RunLimit, ...] | None = None
    limit_rules: str | None = None
    admitted_try: int | None = None
    references: References | None = None
    """Where `params` name secrets and variables; None: nowhere, and no text was unescaped."""
    trace: Trace | None = None
    parent_run_id: str | None = None
    values: tuple[Place, ...] = ()
    """Where `params` refer to stored values."""

    @property
    def is_held(self) -> bool:
        """Whether no worker may get it yet, because its run waits for a place."""
        return self.limits is not None and self.admitted_try != self.try_number


def accept(submission: Submission, run_id: str, now: float, not_before: float | None = None) -> Job:
    """The job for a submission. `not_before`: from `start_of`. Raises InvalidRequest for invalid names."""
    check_names(submission)
    return Job(
        run_id=run_id,
        flow_name=submission.flow_name,
        tag=submission.tag,
        tags=submission.tags if submission.tags is not None else (submission.tag,),
        params=submission.params,
        submitted_at=now,
        tenant_id=submission.tenant_id,
        api_key_id=submission.api_key_id,
        workflow_yaml=submission.workflow_yaml,
        workflow_yaml_sha256=submission.workflow_yaml_sha256,
        workflow_yaml_bytes=submission.workflow_yaml_bytes,
        execution_id=submission.execution_id,
        node_id=submission.node_id,
        not_before=not_before,
        start_within_sec=submission.start_within_sec,
        timeout_sec=submission.timeout_sec,
        retry=submission.retry,
        priority=submission.priority or Priority.NORMAL,
        retried_from=submission.retried_from,
        kept=submission.kept,
        schedule_id=submission.schedule_id,
        due_at=submission.due_at,
        references=submission.references,
        parent_run_id=submission.parent_run_id,
        values=submission.values,
    )


class ParamFile(Struct, frozen=True):
    """A stored value as JSON in a file, to be put into params before the flow starts."""

    place: Place
    path: str
    part: tuple[Step, ...] = ()


class ResolvedJob(Job, frozen=True, kw_only=True):
    """A job on its way to the flow: with values in its params. It is never stored."""

    secrets: tuple[str, ...] = ()
    """Values to mask."""
    files: tuple[ParamFile, ...] = ()
    attempt: int = 1
    """Delivery of the job."""

    def __repr__(self) -> str:
        return f"ResolvedJob({self.run_id!r})"


def delivered(job: Job, attempt: int) -> ResolvedJob:
    """As it goes to the flow."""
    return ResolvedJob(**{**asdict(job), "attempt": attempt})


def with_references(submission: Submission) -> Submission:
    """For params of somebody who may name secrets, never for data of an outside sender.

    Raises InvalidRequest.
    """
    params, references = secret_references.read(submission.params)
    return submission if references is None else replace(submission, params=params, references=references)


def start_of(submission: Submission, now: float) -> float | None:
    """When the run starts by the clock of the queue; None: now. Raises InvalidRequest."""
    delay = submission.delay_sec
    start = submission.run_at if delay is None else now + delay
    if start is not None and start > now + MAX_DELAY_SEC + 1:
        raise InvalidRequest("run_at: more than 366 days from now")
    return start if start is not None and start > now else None


def check_names(submission: Submission) -> None:
    """Raises InvalidRequest."""
    if not 1 <= len(submission.flow_name) <= MAX_FLOW_NAME:
        raise InvalidRequest(f"flow_name must have 1 to {MAX_FLOW_NAME} characters")
    require_tag(submission.tag)
    tags = submission.tags or ()
    if len(tags) > MAX_TAGS:
        raise InvalidRequest(f"tags: at most {MAX_TAGS} tags are allowed, got {len(tags)}")
    for tag in tags:
        if not is_label(tag):
            raise InvalidRequest(f"tags: {tag!r} must have {LABEL_RULE}")


def check(job: Job) -> Job:
    """Check a job from the queue, whose sender is untrusted: its names must be usable as keys."""
    if not is_run_id(job.run_id):
        raise InvalidJob(f"run_id {job.run_id!r} is not a UUID")
    if not job.flow_name:
        raise InvalidJob("flow_name is empty")
    return job


def pending(job: Job, retention_sec: float | None = None) -> RunSnapshot:
    """The first snapshot of a job's run.

    Gateway and worker both derive it from the job alone, so that a worker that knows the revision can claim
    the run with one write and no read. `retention_sec` is not part of the job.
    """
    kept = job.kept or KeptTasks({}, {})
    return RunSnapshot(
        run_id=job.run_id,
        flow_name=job.flow_name,
        status=RunStatus.PENDING,
        params=job.params or {},
        tasks={name: record.state for name, record in kept.records.items()},
        task_records=kept.records,
        task_dependencies=kept.dependencies or None,
        kept_tasks=tuple(kept.records) or None,
        retried_from=job.retried_from,
        tag=job.tag,
        tags=job.tags,
        submitted_at=job.submitted_at,
        heartbeat_at=job.submitted_at,
        updated_at=job.submitted_at,
        tenant_id=job.tenant_id,
        api_key_id=job.api_key_id,
        workflow_yaml_sha256=job.workflow_yaml_sha256,
        workflow_yaml_bytes=job.workflow_yaml_bytes,
        execution_id=job.execution_id,
        node_id=job.node_id,
        retention_sec=retention_sec,
        not_before=job.not_before,
        start_within_sec=job.start_within_sec,
        timeout_sec=job.timeout_sec,
        retry=job.retry,
        priority=job.priority,
        schedule_id=job.schedule_id,
        due_at=job.due_at,
        graph_id=job.graph_id,
        limits=job.limits,
        limit_rules=job.limit_rules,
        admitted_try=job.admitted_try,
        references=job.references,
        trace=above(job.trace),
        parent_run_id=job.parent_run_id,
        values=job.values,
    )


def job_of_next_try(job: Job, run: RunSnapshot) -> Job:
    """The job of the try that `run` waits for; `job` is that of an earlier try."""
    return replace(job, try_number=run.try_number, not_before=run.not_before, trace=above(job.trace))


def message_id_of(job: Job) -> str:
    """Equal for equal jobs: the queue drops a second one with the same id. Every try has its own."""
    of_try = job.run_id if job.try_number == 1 else f"{job.run_id}.try{job.try_number}"
    return f"{of_try}.held" if job.is_held else of_try


# Disposition of a delivery: the table of the contract.

NAK_DELAY_SEC = 2.0
"""Redelivery delay after a temporary failure."""


class QueueAction(StrEnum):
    ACK = "ack"
    """Done; remove the job from the queue."""
    NAK = "nak"
    """Temporary failure; redeliver after a delay."""
    TERM = "term"
    """Permanent failure; do not redeliver."""
    LEAVE = "leave"
    """Another delivery owns the run; if its owner dies, the job is redelivered after AckWait."""


class Ending(StrEnum):
    """The outcome of handling one delivery."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXECUTION_ERROR = "execution_error"
    FLOW_NOT_FOUND = "flow_not_found"
    INVALID_JOB = "invalid_job"
    NATS_UNAVAILABLE = "nats_unavailable"
    NOT_STARTED = "not_started"
    """No executor became free in time; another worker may have one."""
    GIVEN_BACK = "given_back"
    """The worker stopped before the run ended; another worker restarts the run."""
    ALREADY_TERMINAL = "already_terminal"
    WITHDRAWN = "withdrawn"
    """The sender removed the snapshot, because it was not sure that the job was queued."""
    FENCED = "fenced"
    DUPLICATE_JOB = "duplicate_job"
    """Another job executes the run."""
    RETRIED = "retried"
    """The try failed, and the job of the next one is queued."""
    EXPIRED = "expired"
    """The run waited too long for its first start."""


class Disposition(Struct, frozen=True):
    action: QueueAction
    dlq: DlqReason | None = None
    delay: float = 0.0
    """Redelivery delay of a NAK in seconds."""


_TABLE = {
    Ending.COMPLETED: Disposition(QueueAction.ACK),
    Ending.CANCELLED: Disposition(QueueAction.ACK),
    Ending.EXECUTION_ERROR: Disposition(QueueAction.ACK, DlqReason.EXECUTION_ERROR),
    Ending.FLOW_NOT_FOUND: Disposition(QueueAction.ACK, DlqReason.FLOW_NOT_FOUND),
    Ending.INVALID_JOB: Disposition(QueueAction.TERM, DlqReason.INVALID_JOB),
    Ending.NATS_UNAVAILABLE: Disposition(QueueAction.NAK, delay=NAK_DELAY_SEC),
    Ending.NOT_STARTED: Disposition(QueueAction.NAK),
    Ending.GIVEN_BACK: Disposition(QueueAction.NAK),
    Ending.ALREADY_TERMINAL: Disposition(QueueAction.ACK),
    Ending.WITHDRAWN: Disposition(QueueAction.ACK),
    Ending.FENCED: Disposition(QueueAction.LEAVE),
    Ending.DUPLICATE_JOB: Disposition(QueueAction.ACK),
    Ending.RETRIED: Disposition(QueueAction.ACK),
    Ending.EXPIRED: Disposition(QueueAction.ACK),
}


def disposition(ending: Ending, *, publish_execution_error: bool = True) -> Disposition:
    found = _TABLE[ending]
    if found.dlq is DlqReason.EXECUTION_ERROR and not publish_execution_error:
        return Disposition(found.action)
    return found


# Progress and outcome of a flow, reported by its executor.


class FlowProgress(Struct, frozen=True):
    tasks: dict[str, TaskState] = field(default_factory=dict)
    task_records: dict[str, TaskRecord] = field(default_factory=dict)
    task_dependencies: dict[str, tuple[str, ...]] | None = None
    task_records_truncated: bool = False
    """A record contains a marker for a value that is too large."""
    progress: RunProgress | None = None


class Raised(Struct, frozen=True):
    """An exception of another process, with the fields of a log line."""

    exc_type: str
    exc_message: str
    exc_origin: str | None = None
    exc_traceback: str | None = None


class FlowListener(Protocol):
    """Receives the progress and output of a flow, and the requests of its tasks."""

    def progressed(self, progress: FlowProgress) -> None: ...
    def printed(self, entries: Sequence[LogEntry]) -> None: ...
    def asked(self, request: TaskRequest, answer: Callable[[TaskAnswer], None]) -> None: ...


class ValueFile(Struct, frozen=True):
    """What a task returned, as JSON in a file: too large for a snapshot."""

    task: str
    path: str
    size: int


class FlowOutcome(Struct, frozen=True, kw_only=True):
    ending: Ending
    progress: FlowProgress = field(default_factory=FlowProgress)
    result: Any = None
    result_truncated: bool = False
    """The result was dropped because it is too large."""
    warnings: tuple[str, ...] = ()
    error: str | None = None
    failure_kind: FailureKind = FailureKind.ERROR
    files: tuple[ValueFile, ...] = ()
    """Values that the result lacks until they are stored."""
    values: tuple[Place, ...] = ()
    """Where references to stored values stand."""
    raised: Raised | None = None
    """The exception behind `error`; for the log, not for the snapshot."""


def conclusion(
    owner: Owner,
    outcome: FlowOutcome,
    wheels: tuple[CodeWheel, ...] | None = None,
    try_number: int | None = None,
) -> Conclude:
    """The run change for an outcome."""
    status: Any = {Ending.COMPLETED: RunStatus.COMPLETED, Ending.CANCELLED: RunStatus.CANCELLED}.get(
        outcome.ending, RunStatus.FAILED
    )
    return Conclude(
        owner=owner,
        status=status,
        # A crashed executor reports no tasks; the last reported ones stay.
        tasks=outcome.progress.tasks or None,
        task_records=outcome.progress.task_records or None,
        task_dependencies=outcome.progress.task_dependencies,
        task_records_truncated=outcome.progress.task_records_truncated,
        result=outcome.result,
        result_truncated=outcome.result_truncated,
        warnings=outcome.warnings,
        error=outcome.error,
        kind=_failure_kind(outcome),
        traceback=None if outcome.raised is None else outcome.raised.exc_traceback,
        try_number=try_number,
        wheels=wheels,
        values=outcome.values,
        progress=outcome.progress.progress,
    )


def _failure_kind(outcome: FlowOutcome) -> FailureKind:
    not_found = outcome.ending is Ending.FLOW_NOT_FOUND
    return FailureKind.FLOW_NOT_FOUND if not_found else outcome.failure_kind
