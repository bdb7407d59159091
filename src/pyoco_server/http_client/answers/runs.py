"""Types of the server's answers about runs. Newer servers may add fields.

Generated from `pyoco_server.answers` by `make types`; do not edit.
"""

from typing import Any, NotRequired, TypedDict


class TaskRecord(TypedDict):
    artifacts: dict[str, Any] | None
    duration_ms: float | None
    ended_at: float | None
    error: str | None
    inputs: dict[str, Any] | None
    output: Any
    reusable: str | None
    started_at: float | None
    state: str
    traceback: str | None


class CodeWheel(TypedDict):
    """A wheel installed in the run's executor."""

    name: str
    sha256: str | None
    version: str


class RunRetry(TypedDict):
    """When a failed try is followed by another."""

    backoff_sec: float
    factor: float
    jitter: float
    max_attempts: int
    max_backoff_sec: float
    on: list[str]


class RunFailure(TypedDict):
    kind: str
    message: str
    task: str | None
    traceback: str | None


class RunTry(TypedDict):
    """A try that failed."""

    ended_at: float
    failure: RunFailure
    n: int
    started_at: float | None
    worker_id: str | None


class RunLimit(TypedDict):
    """A limit that applies to a run, and the run's key in it."""

    key: str
    limit: str


class Reference(TypedDict):
    """A place in params: from `start` up to `end` of the text at `path`."""

    end: int
    path: list[str | int]
    start: int


class Trace(TypedDict):
    """Where a run or an execution belongs in a trace."""

    attempt: str | None
    earlier: str | None
    is_dropped: bool
    taken_at: float | None
    traceparent: str | None
    tracestate: str | None


class RunArtifact(TypedDict):
    created_at: float
    name: str
    sha256: str
    size: int
    task: str | None
    type: str


class RunProgress(TypedDict):
    """How far a run is, as its tasks report it."""

    message: str | None
    value: float | None


class Paused(TypedDict):
    """The pause that a run waits for: of its tag or of its flow."""

    flow: NotRequired[str]
    reason: str | None
    since: float
    tag: NotRequired[str]
    until: float | None


class WaitingFor(TypedDict):
    """Why a run does not start: a limit, the run's key in it and its position (1 is next), or a pause."""

    key: NotRequired[str]
    limit: NotRequired[str]
    paused: NotRequired[Paused]
    position: NotRequired[int]


class Run(TypedDict):
    """A run. Only `GET /runs/{run_id}` returns `worker_*` and `waiting_for`: why it does not start."""

    admitted_try: int | None
    api_key_id: str | None
    artifacts: list[RunArtifact]
    attempt: int | None
    cancel_reason: str | None
    cancel_requested_at: float | None
    cancel_requested_by: str | None
    due_at: float | None
    end_time: float | None
    error: str | None
    execution_id: str | None
    failure: RunFailure | None
    flow_name: str
    graph_id: str | None
    heartbeat_at: float
    instance_id: str | None
    job_seq: int | None
    kept_tasks: list[str] | None
    limit_rules: str | None
    limits: list[RunLimit] | None
    node_id: str | None
    not_before: float | None
    params: dict[str, Any]
    parent_run_id: str | None
    priority: str
    progress: RunProgress | None
    references: list[Reference] | None
    result: Any
    result_truncated: bool
    retention_sec: float | None
    retried_as: str | None
    retried_from: str | None
    retry: RunRetry | None
    run_id: str
    schedule_id: str | None
    start_time: float | None
    start_within_sec: float | None
    status: str
    submitted_at: float | None
    tag: str | None
    tags: list[str] | None
    task_dependencies: dict[str, list[str]] | None
    task_records: NotRequired[dict[str, TaskRecord] | None]
    task_records_truncated: bool
    tasks: dict[str, str]
    tenant_id: str | None
    timeout_sec: float | None
    trace: Trace | None
    tries: list[RunTry]
    updated_at: float
    values: list[list[str]]
    waited_sec: float | None
    waiting_for: NotRequired[WaitingFor | None]
    warnings: list[str]
    wheels: list[CodeWheel] | None
    worker_alive: NotRequired[bool | None]
    worker_heartbeat_at: NotRequired[float | None]
    worker_id: str | None
    worker_tags: NotRequired[list[str] | None]
    workflow_yaml_bytes: int | None
    workflow_yaml_sha256: str | None


class RunSummary(TypedDict):
    """A run as shown in a list."""

    api_key_id: str | None
    attempt: int | None
    cancel_requested_at: float | None
    due_at: float | None
    end_time: float | None
    error: str | None
    execution_id: str | None
    flow_name: str
    heartbeat_at: float
    instance_id: str | None
    node_id: str | None
    not_before: float | None
    parent_run_id: str | None
    progress: RunProgress | None
    run_id: str
    schedule_id: str | None
    start_time: float | None
    status: str
    submitted_at: float | None
    tag: str | None
    tags: list[str] | None
    tasks_done: int
    tasks_total: int
    tenant_id: str | None
    updated_at: float
    worker_id: str | None
    workflow_yaml_bytes: int | None
    workflow_yaml_sha256: str | None


class RunPage(TypedDict):
    """A page of runs: summaries, or whole runs with `include=full`."""

    items: list[RunSummary]
    next_cursor: str | None


class Submitted(TypedDict):
    """`warning`: why the run may wait, e.g. no worker has its tag."""

    run_id: str
    status: str
    warning: NotRequired[str]


class BatchResult(TypedDict):
    """`results` has one entry per run, in order."""

    accepted: int
    refused: int
    results: list[dict[str, Any]]


class RunTasks(TypedDict):
    flow_name: str
    run_id: str
    status: str
    task_dependencies: dict[str, list[str]] | None
    task_records: dict[str, TaskRecord] | None
    task_records_truncated: bool
    tasks: dict[str, str]


class RunArtifacts(TypedDict):
    items: list[RunArtifact]
    run_id: str


class LogLine(TypedDict):
    """A stored entry; `attempt` and `n` are its position, whatever its order of arrival."""

    attempt: int
    cut_bytes: NotRequired[int]
    cut_lines: NotRequired[int]
    fields: NotRequired[dict[str, Any]]
    is_excerpt: NotRequired[bool]
    level: NotRequired[str]
    n: int
    stream: str
    task: str | None
    text: str
    ts: float


class RunLogs(TypedDict):
    has_earlier: bool
    has_more: bool
    lines: list[LogLine]
    next_cursor: str
    run_id: str


class RunChange(TypedDict):
    """Data of an event from `GET /runs/{run_id}/watch`."""

    lines: NotRequired[list[LogLine]]
    run_id: str
    snapshot: NotRequired[Run]
    ts: float


class QueueStanding(TypedDict):
    """The queue of the run's tag; runs are those of its tenant."""

    position: int | None
    running: int
    slots: int
    tag: str
    throughput_per_min: int
    waiting: int
    workers: int


class SeenWorker(TypedDict):
    """`state`: null if there is no record of it any more. `silent_sec`: since its last heartbeat."""

    is_same_instance: bool
    silent_sec: float | None
    state: str | None
    worker_id: str


class FlowSeen(TypedDict):
    """Where live workers have the run's flow."""

    is_known: bool
    similar_flows: list[str]
    similar_tags: list[str]
    tags: list[str]


class SameErrors(TypedDict):
    """Failed runs of the flow in the last 24 hours, this one included.

    `count`: those with the same error, apart from numbers. `is_partial`: there are more failed runs than were
    compared.
    """

    count: int
    failed: int
    first_at: float | None
    is_partial: bool


class CompletedRun(TypedDict):
    """The last run of the flow that completed."""

    at: float
    run_id: str
    wheels: list[CodeWheel] | None


class Evidence(TypedDict):
    """What the diagnosis is based on. Fields without a meaning for this run are left out.

    `log`: the last lines of the task that failed, or of the run. `wheels`: the versions of its code.
    """

    attempt: NotRequired[int]
    failure: NotRequired[RunFailure]
    flow: NotRequired[FlowSeen]
    flow_name: str
    gone_workers: NotRequired[list[SeenWorker]]
    last_completed: NotRequired[CompletedRun]
    log: NotRequired[list[str]]
    max_attempts: NotRequired[int]
    not_before: NotRequired[float]
    queue: NotRequired[QueueStanding]
    same_error: NotRequired[SameErrors]
    status: str
    tag: str | None
    try_number: NotRequired[int]
    waiting_for: NotRequired[WaitingFor]
    wheels: NotRequired[list[CodeWheel]]
    worker: NotRequired[SeenWorker]


class Diagnosis(TypedDict):
    """Why a run waits, or why it ended as it did.

    `summary`, `details` and `advice` are texts in the language of the request.
    """

    advice: list[str]
    cause: str
    details: str
    evidence: Evidence
    run_id: str
    summary: str


class RunDeleted(TypedDict):
    deleted: bool
    run_id: str
