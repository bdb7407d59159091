"""Types of the server's answers. Newer servers may add fields.

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


class Pause(TypedDict):
    """Since when, and until when (None: until it is resumed), nobody takes jobs of a tag."""

    reason: str | None
    since: float
    until: float | None


class FlowRun(TypedDict):
    """A recent run of a flow."""

    end_time: float | None
    run_id: str
    start_time: float | None
    status: str
    submitted_at: float | None
    tag: str | None
    updated_at: float


class Flow(TypedDict):
    """A flow that live workers report, that has runs, or that has defaults.

    `success_rate` is the share of completed runs (0 to 1) among the last 100 that completed or failed;
    `p50_sec` and `p95_sec` are durations of the completed ones. null: no such run.
    """

    last_runs: list[FlowRun]
    limits: list[str]
    name: str
    p50_sec: float | None
    p95_sec: float | None
    paused: Pause | None
    schedules: list[str]
    success_rate: float | None
    tags: list[str]
    wheel_version: str | None
    workers: list[str]


class FlowPage(TypedDict):
    items: list[Flow]
    next_cursor: str | None


class FlowDetails(Flow):
    """A flow, and what is set for it."""

    description: str | None
    owner: str | None
    params_schema: dict[str, Any] | None
    priority: str | None
    retry: RunRetry | None
    start_within_sec: float | None
    timeout_sec: float | None
    updated_at: float | None


class GraphRecord(TypedDict):
    definition: dict[str, Any]
    graph_id: str
    registered_at: float
    registered_by: str
    sha256: str
    tenant_id: str | None
    version: int


class GraphSummary(TypedDict):
    """A graph's newest version as shown in a list."""

    graph_id: str
    nodes: int
    registered_at: float
    registered_by: str
    sha256: str
    tenant_id: str | None
    version: int


class GraphPage(TypedDict):
    items: list[GraphSummary]
    next_cursor: str | None


class GraphPreview(TypedDict):
    """A graph as it would be stored."""

    definition: dict[str, Any]
    nodes: int
    sha256: str


class SkippedWheel(TypedDict):
    name: str
    reason: str


class InstalledWheel(TypedDict):
    """An installed wheel of a worker; it identifies the code of a run."""

    name: str
    nuid: str
    package: str
    sha256_hex: str | None
    version: str


class WheelSync(TypedDict):
    """The last sync, as shown in the worker's record."""

    enabled: bool
    error: str | None
    installed_wheels: list[InstalledWheel]
    last_attempt_at: float | None
    last_result: str
    last_success_at: float | None
    last_synced_at: float | None
    removed_count: int
    removed_wheels: list[str]
    selected_count: int
    selected_wheels: list[str]
    skipped_incompatible: list[SkippedWheel]
    skipped_incompatible_count: int
    updated_count: int
    updated_wheels: list[str]


class WorkerProgram(TypedDict):
    host: str
    python: str
    started_at: float
    version: str


class WorkerRecord(TypedDict):
    current_run_id: str | None
    features: list[str]
    figures: WorkerProgram | None
    heartbeat_at: float
    hidden: bool
    instance_id: str
    last_heartbeat_at: float
    last_run_finished_at: float | None
    last_run_id: str | None
    last_run_started_at: float | None
    last_run_status: str | None
    last_seen_at: float
    slots: int | None
    state: str
    stop_reason: str | None
    stopped_at: float | None
    tags: list[str]
    updated_at: float
    wheel_sync: WheelSync | None
    worker_id: str


class WorkerPatched(TypedDict):
    hidden: bool
    updated_at: float
    worker_id: str


class WheelFile(TypedDict):
    bucket: str
    digest: str | None
    modified: float
    mtime: str
    name: str
    nuid: str
    sha256_b64: str | None
    sha256_hex: str | None
    size_bytes: int
    tags: list[str]


class WheelDeleted(TypedDict):
    deleted: bool
    name: str


class WheelActor(TypedDict):
    api_key_id: str | None
    tenant_id: str | None


class Source(TypedDict):
    """Origin of a request: the socket's address is verified, the other fields are the client's claims."""

    host: str | None
    remote_addr: str | None
    scheme: str | None
    user_agent: str | None
    x_forwarded_for: str | None
    x_real_ip: str | None


class WheelEvent(TypedDict):
    """One entry of the wheel history."""

    action: str
    actor: WheelActor
    event_id: str
    occurred_at: float
    replace: bool | None
    sha256_hex: str | None
    size_bytes: int | None
    source: Source
    tags: list[str]
    wheel_name: str


class Health(TypedDict):
    nats: str
    status: str


class Queue(TypedDict):
    """`throughput_per_min`: runs that ended in the last minute. `workers`: those that are alive."""

    oldest_wait_sec: float
    paused: Pause | None
    running: int
    tag: str
    throughput_per_min: int
    waiting: int
    workers: int


class QueueList(TypedDict):
    """By tag."""

    items: list[Queue]


class ChangeTarget(TypedDict):
    id: str
    kind: str


class ChangeAuthor(TypedDict):
    api_key_id: str | None
    claimed: str | None
    tenant_id: str | None


class Origin(TypedDict):
    """Where a request came from. The address is that of the socket; the other fields are claims."""

    remote_addr: str | None
    user_agent: str | None
    x_forwarded_for: str | None


class AuditEntry(TypedDict):
    action: str
    actor: ChangeAuthor
    after: Any
    at: float
    before: Any
    id: str
    source: Origin
    target: ChangeTarget


class AuditPage(TypedDict):
    """Newest first. A page may be short although there are more: follow its cursor."""

    items: list[AuditEntry]
    next_cursor: str | None


class ListedApiKey(TypedDict):
    """A key as shown to administrators, without its hash."""

    created_at: float | None
    description: str | None
    expires_at: float | None
    key_id: str
    last_used_at: float | None
    revoked_at: float | None
    scopes: list[str]
    tenant_id: str


class IssuedApiKey(ListedApiKey):
    api_key: str


class ApiKeyPage(TypedDict):
    """Newest first."""

    items: list[ListedApiKey]
    next_cursor: str | None


class RunDeleted(TypedDict):
    deleted: bool
    run_id: str


class WorkerDeleted(TypedDict):
    deleted: bool
    worker_id: str


class DeadLetterView(TypedDict):
    """A job that no worker could finish. `redriven_as`: the run that repeats it."""

    error: str | None
    flow_name: str | None
    id: str
    num_delivered: int | None
    payload: str | None
    reason: str
    redriven_as: str | None
    run_id: str | None
    subject: str | None
    tag: str | None
    tags: list[str] | None
    timestamp: float
    worker_id: str | None


class DeadLetterPage(TypedDict):
    """Newest first. A page may be short although there are more: follow its cursor."""

    items: list[DeadLetterView]
    next_cursor: str | None


class Redriven(TypedDict):
    run_id: str


class DeadLetterDiscarded(TypedDict):
    discarded: bool
    id: str


class BulkError(TypedDict):
    error: str
    id: str


class BulkOperation(TypedDict):
    """`errors`: the first 100 items that failed. `done + failed + left` is `total`."""

    action: str
    created_at: float
    done: int
    ended_at: float | None
    errors: list[BulkError]
    failed: int
    id: str
    left: int
    status: str
    total: int


class BulkPage(TypedDict):
    """Newest first."""

    items: list[BulkOperation]
    next_cursor: str | None


class BulkPreview(TypedDict):
    """What an operation would act on: the number, and the first 20."""

    count: int
    items: list[Any]


class Quantiles(TypedDict):
    """Seconds; null if none of the runs has such a time."""

    p50: float | None
    p95: float | None
    p99: float | None


class StatsPoint(TypedDict):
    """The runs that ended in a minute or hour. `at`: its start, in Unix seconds."""

    at: float
    count: int
    duration: Quantiles
    wait: Quantiles


class StatsSeries(TypedDict):
    """Without points for minutes or hours in which no run ended."""

    key: str
    points: list[StatsPoint]


class Stats(TypedDict):
    """Runs that ended, by status, flow or tag, per minute or hour. Times are Unix seconds."""

    bucket: str
    by: str
    series: list[StatsSeries]
    since: float
    until: float


class Secret(TypedDict):
    """Its value never comes back."""

    created_at: float
    name: str
    updated_at: float


class SecretList(TypedDict):
    items: list[Secret]
    next_cursor: str | None


class SecretDeleted(TypedDict):
    deleted: bool
    name: str


class Variable(TypedDict):
    created_at: float
    name: str
    updated_at: float
    value: Any


class VariableList(TypedDict):
    items: list[Variable]
    next_cursor: str | None


class VariableDeleted(TypedDict):
    deleted: bool
    name: str


class AlertView(TypedDict):
    """`late_after_sec`: of `run.late`, `wait.overdue` and `limit.waiting`."""

    channel: str
    cooldown_sec: float
    created_at: float
    filter: str | None
    late_after_sec: float | None
    name: str
    on: list[str]
    updated_at: float


class AlertPage(TypedDict):
    """Newest first."""

    items: list[AlertView]
    next_cursor: str | None


class AlertDeleted(TypedDict):
    deleted: bool
    name: str


class ChannelView(TypedDict):
    """Secrets and paths are `•••`. A generated `secret` is shown once, in the answer to its PUT."""

    created_at: float
    host: str
    name: str
    password: NotRequired[str]
    port: NotRequired[int]
    secret: NotRequired[str]
    security: NotRequired[str]
    sender: NotRequired[str]
    to: NotRequired[list[str]]
    type: str
    updated_at: float
    url: NotRequired[str]
    username: NotRequired[str]


class ChannelPage(TypedDict):
    """Newest first."""

    items: list[ChannelView]
    next_cursor: str | None


class ChannelDeleted(TypedDict):
    deleted: bool
    name: str


class DeliveryView(TypedDict):
    alert: str
    attempts: int
    channel: str
    created_at: float
    delivered_at: float | None
    event_id: str
    id: str
    last_error: str | None
    next_attempt_at: float | None
    status: str
    type: str


class DeliveryDetail(DeliveryView):
    """With what is sent."""

    body: Any


class DeliveryPage(TypedDict):
    """Newest first."""

    items: list[DeliveryView]
    next_cursor: str | None
