"""Run snapshots, and trimming them to the size limit."""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from pyoco_server.domain.artifacts import RunArtifact
from pyoco_server.domain.inputs import Priority
from pyoco_server.domain.large_values import Place
from pyoco_server.domain.secrets.references import References
from pyoco_server.domain.traces import Trace
from pyoco_server.errors import RunNotRetriable

__all__ = [
    "HELD",
    "TERMINAL",
    "CodeWheel",
    "FailureKind",
    "KeptTasks",
    "Owner",
    "Priority",
    "Reusable",
    "RunFailure",
    "RunLimit",
    "RunProgress",
    "RunRetry",
    "RunSnapshot",
    "RunStatus",
    "RunTry",
    "TaskRecord",
    "TaskState",
    "replace",
]


class RunStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
HELD = frozenset({RunStatus.RUNNING, RunStatus.CANCELLING})
"""A worker may have it."""


class TaskState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Owner(Struct, frozen=True):
    """The writer of a running snapshot: a worker instance with a delivery of the job."""

    worker_id: str
    instance_id: str
    attempt: int


class CodeWheel(Struct, frozen=True):
    """A wheel installed in the run's executor."""

    name: str
    version: str
    sha256: str | None


class Reusable(StrEnum):
    """Whether a retry can use a task's output instead of running the task again."""

    YES = "yes"
    NOT_EXACT = "not_exact"
    """The record holds a preview or another type, e.g. a list instead of a tuple."""
    CONTROL_FLOW = "control_flow"
    """The flow has a switch or a loop: a task may run several times or not at all."""


class TaskRecord(Struct, frozen=True, kw_only=True):
    state: TaskState = TaskState.PENDING
    started_at: float | None = None
    ended_at: float | None = None
    duration_ms: float | None = None
    error: str | None = None
    traceback: str | None = None
    inputs: dict[str, Any] | None = None
    output: Any = None
    artifacts: dict[str, Any] | None = None
    reusable: Reusable | None = None
    """None: unknown, e.g. of an older worker, or the output was dropped."""


class FailureKind(StrEnum):
    """Why a run, or one of its tries, failed."""

    ERROR = "error"
    """A task raised an exception, or returned a value that cannot be stored."""
    TIMEOUT = "timeout"
    """The try or one of its tasks took too long."""
    CRASH = "crash"
    """The executor process died; the worker did not."""
    EXPIRED = "expired"
    """No worker started the run in time."""
    FLOW_NOT_FOUND = "flow_not_found"
    INVALID_JOB = "invalid_job"
    MAX_DELIVER = "max_deliver"
    """The job used up its deliveries, e.g. because it killed every worker."""
    LOST_JOB = "lost_job"
    """The job disappeared from the queue."""


RETRIABLE = (FailureKind.ERROR, FailureKind.TIMEOUT, FailureKind.CRASH)


class RunProgress(Struct, frozen=True):
    """How far a run is, as its tasks report it."""

    value: float | None = None
    """From 0 to 1."""
    message: str | None = None


class RunFailure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: FailureKind
    message: str
    task: str | None = None
    """The task that failed, if one did."""
    traceback: str | None = None


class RunTry(Struct, frozen=True, kw_only=True):
    """A try that failed."""

    n: int
    started_at: float | None
    ended_at: float
    worker_id: str | None
    failure: RunFailure


class RunRetry(Struct, frozen=True, kw_only=True):
    """When a failed try is followed by another."""

    max_attempts: int = 1
    """All tries, including the first."""
    backoff_sec: float = 5.0
    factor: float = 2.0
    max_backoff_sec: float = 3600.0
    jitter: float = 0.1
    on: tuple[FailureKind, ...] = RETRIABLE

    def wait_sec(self, n: int, jitter: float) -> float:
        """The time between the end of try `n` and the next. `jitter`: a random number from -1 to 1."""
        grown = self.backoff_sec
        for _ in range(n - 1):  # stops at the limit: a power may overflow
            if grown >= self.max_backoff_sec or grown == 0:
                break
            grown *= self.factor
        return min(grown, self.max_backoff_sec) * (1 + self.jitter * jitter)


class RunLimit(Struct, frozen=True, order=True):
    """A limit that applies to a run, and the run's key in it."""

    limit: str
    key: str


class RunSnapshot(Struct, frozen=True, kw_only=True):
    """The current state of a run as stored in the bucket. Times are Unix seconds."""

    run_id: str
    flow_name: str
    status: RunStatus
    params: dict[str, Any]
    tasks: dict[str, TaskState]
    heartbeat_at: float
    updated_at: float

    tag: str | None = None
    tags: tuple[str, ...] | None = None
    worker_id: str | None = None
    instance_id: str | None = None
    attempt: int | None = None
    job_seq: int | None = None
    """Stream sequence of the owner's job; not set by other worker implementations."""
    task_records: dict[str, TaskRecord] | None = field(default_factory=dict)
    task_records_truncated: bool = False
    task_dependencies: dict[str, tuple[str, ...]] | None = None
    """Task dependencies as far as known; not set by other worker implementations."""
    submitted_at: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    result: Any = None
    result_truncated: bool = False
    """The result was too large to store."""
    warnings: tuple[str, ...] = ()
    """Warnings in words, e.g. values replaced by null or not stored."""
    error: str | None = None
    cancel_requested_at: float | None = None
    cancel_requested_by: str | None = None
    cancel_reason: str | None = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None
    execution_id: str | None = None
    node_id: str | None = None
    schedule_id: str | None = None
    due_at: float | None = None
    """The tick of its schedule."""
    wheels: tuple[CodeWheel, ...] | None = None
    retention_sec: float | None = None
    """Retention after the end, as set by the gateway that accepted the run; 0: for ever. None: unknown."""
    not_before: float | None = None
    """The run, or its next try, does not start earlier; by the clock of NATS."""
    start_within_sec: float | None = None
    """How long the run may wait for its first start."""
    timeout_sec: float | None = None
    """Timeout of each try."""
    retry: RunRetry | None = None
    priority: Priority = Priority.NORMAL
    tries: tuple[RunTry, ...] = ()
    """The newest tries that failed, oldest first."""
    failure: RunFailure | None = None
    """Set if the run is FAILED; its message is `error`."""
    retried_from: str | None = None
    """The run that this one repeats."""
    retried_as: str | None = None
    """The newest run that repeats this one."""
    kept_tasks: tuple[str, ...] | None = None
    """Tasks with outputs of the repeated run; they are not run again."""
    graph_id: str | None = None
    """The graph of its execution."""
    limits: tuple[RunLimit, ...] | None = None
    """The limits that apply to it; empty: only a pause of its flow. None: it never waits for a place."""
    limit_rules: str | None = None
    """By which definitions `limits` was determined."""
    admitted_try: int | None = None
    """The newest try that got its place; earlier than the current: the run waits for one."""
    waited_sec: float | None = None
    """From the time when the run could start to its first start; not set by older workers."""
    references: References | None = None
    """Where `params` name secrets and variables. Their values are only known to the worker."""
    trace: Trace | None = None
    """Its place in a trace; None: without tracing."""
    values: tuple[Place, ...] = ()
    """Where references to stored values stand. A `$ref` elsewhere is data."""
    artifacts: tuple[RunArtifact, ...] = ()
    """Files that its tasks have saved, in all attempts."""
    parent_run_id: str | None = None
    """The run whose task has submitted it."""
    progress: RunProgress | None = None
    """As a task has reported it in the current attempt."""

    @property
    def is_held(self) -> bool:
        """Whether the current try waits for its place, with a job that no worker gets."""
        return self.limits is not None and self.admitted_try != self.try_number

    @property
    def owner(self) -> Owner | None:
        """The owner of the run; other worker implementations set no instance or attempt."""
        if self.worker_id is None:
            return None
        return Owner(self.worker_id, self.instance_id or "", self.attempt or 0)

    @property
    def try_number(self) -> int:
        """The number of the current or next try."""
        return self.tries[-1].n + 1 if self.tries else 1


# States of tasks when their run ends


def settled(tasks: dict[str, TaskState], status: RunStatus) -> dict[str, TaskState]:
    """No task of an ended run is still running.

    A task that was never started stays PENDING, or becomes CANCELLED if the run was cancelled.
    """
    turned = _TURNED.get(status)
    return {name: turned.get(state, state) for name, state in tasks.items()} if turned else tasks


def settled_records(records: dict[str, TaskRecord] | None, status: RunStatus) -> dict[str, TaskRecord] | None:
    turned = _TURNED.get(status, {})
    if records is None or not any(record.state in turned for record in records.values()):
        return records
    return {
        name: replace(record, state=turned.get(record.state, record.state))
        for name, record in records.items()
    }


_TURNED = {
    RunStatus.CANCELLED: {
        TaskState.PENDING: TaskState.CANCELLED,
        TaskState.RUNNING: TaskState.CANCELLED,
    },
    RunStatus.FAILED: {TaskState.RUNNING: TaskState.FAILED},
}


# What a retry keeps of an ended run

FROM_START = "retry it from the start"


class KeptTasks(Struct, frozen=True):
    """What succeeded in the run that is retried from where it failed; these tasks are not run again."""

    records: dict[str, TaskRecord]
    dependencies: dict[str, tuple[str, ...]]
    """The task graph of that run, which the flow must still have."""


def kept_tasks_of(run: RunSnapshot) -> KeptTasks | None:
    """What a retry from the failed tasks keeps of an ended run; None: nothing succeeded.

    Raises RunNotRetriable if an output is not known exactly: a value must not become another.
    """
    records = run.task_records or {}
    succeeded = [name for name, state in run.tasks.items() if state is TaskState.SUCCEEDED]
    if any(record.reusable is Reusable.CONTROL_FLOW for record in records.values()):
        raise RunNotRetriable(
            f"flow {run.flow_name!r} has a switch or a loop, so its tasks cannot be run in part; {FROM_START}"
        )
    if run.status is RunStatus.COMPLETED and len(succeeded) == len(run.tasks):
        raise RunNotRetriable(f"all tasks of the run succeeded; {FROM_START}")
    for name in succeeded:
        if problem := _not_kept(name, records.get(name), is_truncated=run.task_records_truncated):
            raise RunNotRetriable(f"{problem}; {FROM_START}")
    if not succeeded:
        return None
    if run.task_dependencies is None:
        raise RunNotRetriable(f"the order of the run's tasks is not known; {FROM_START}")
    return KeptTasks({name: records[name] for name in succeeded}, run.task_dependencies)


def _not_kept(name: str, record: TaskRecord | None, *, is_truncated: bool) -> str | None:
    """Why the output of a task cannot be used again."""
    if record is not None and record.reusable is Reusable.YES:
        return None
    if record is not None and record.reusable is Reusable.NOT_EXACT:
        return (
            f"the output of task {name!r} is not plain JSON, too large, or has a secret, "
            "so it was stored as a preview"
        )
    if is_truncated:
        return f"the output of task {name!r} was too large to store"
    return f"the output of task {name!r} may not be exact: an older worker recorded it"


class FlowFile(Struct, frozen=True, kw_only=True):
    """A submitted flow.yaml, stored once for all runs of a tenant with this text, for their retries."""

    sha256: str
    text: str = ""
    used_at: float
    tenant_id: str | None = None

    @property
    def key(self) -> str:
        return flow_file_key(self.tenant_id, self.sha256)


def flow_file_key(tenant_id: str | None, sha256: str) -> str:
    return f"{tenant_id or '='}.{sha256}"
