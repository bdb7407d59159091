"""Types of the server's answers. Newer servers may add fields.

Generated from `pyoco_server.answers` by `make types`; do not edit.
"""

from typing import Any, NotRequired, TypedDict


class TaskRecord(TypedDict):
    state: str
    started_at: float | None
    ended_at: float | None
    duration_ms: float | None
    error: str | None
    traceback: str | None
    inputs: dict[str, Any] | None
    output: Any
    artifacts: dict[str, Any] | None


class CodeWheel(TypedDict):
    """A wheel installed in the run's executor."""

    name: str
    version: str
    sha256: str | None


class Run(TypedDict):
    """A run. `worker_*` describe the worker that holds it; only `GET /runs/{run_id}` returns them."""

    run_id: str
    flow_name: str
    status: str
    params: dict[str, Any]
    tasks: dict[str, str]
    heartbeat_at: float
    updated_at: float
    tag: str | None
    tags: list[str] | None
    worker_id: str | None
    instance_id: str | None
    attempt: int | None
    job_seq: int | None
    task_records: NotRequired[dict[str, TaskRecord] | None]
    task_records_truncated: bool
    task_dependencies: dict[str, list[str]] | None
    submitted_at: float | None
    start_time: float | None
    end_time: float | None
    result: Any
    result_truncated: bool
    warnings: list[str]
    error: str | None
    cancel_requested_at: float | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    tenant_id: str | None
    api_key_id: str | None
    workflow_yaml_sha256: str | None
    workflow_yaml_bytes: int | None
    execution_id: str | None
    node_id: str | None
    wheels: list[CodeWheel] | None
    retention_sec: float | None
    worker_alive: NotRequired[bool | None]
    worker_heartbeat_at: NotRequired[float | None]
    worker_tags: NotRequired[list[str] | None]


class RunSummary(TypedDict):
    """A run as shown in a list."""

    run_id: str
    flow_name: str
    status: str
    tag: str | None
    tags: list[str] | None
    updated_at: float
    heartbeat_at: float
    submitted_at: float | None
    start_time: float | None
    end_time: float | None
    worker_id: str | None
    attempt: int | None
    error: str | None
    cancel_requested_at: float | None
    tasks_total: int
    tasks_done: int
    tenant_id: str | None
    api_key_id: str | None
    workflow_yaml_sha256: str | None
    workflow_yaml_bytes: int | None
    execution_id: str | None
    node_id: str | None


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
    run_id: str
    flow_name: str
    status: str
    tasks: dict[str, str]
    task_records: dict[str, TaskRecord] | None
    task_records_truncated: bool
    task_dependencies: dict[str, list[str]] | None


class LogLine(TypedDict):
    """A stored entry; `attempt` and `n` are its position, whatever its order of arrival."""

    attempt: int
    n: int
    task: str | None
    stream: str
    text: str
    ts: float
    cut_lines: NotRequired[int]
    cut_bytes: NotRequired[int]
    is_excerpt: NotRequired[bool]


class RunLogs(TypedDict):
    run_id: str
    lines: list[LogLine]
    next_cursor: str
    has_earlier: bool
    has_more: bool


class RunChange(TypedDict):
    """Data of an event from `GET /runs/{run_id}/watch`."""

    run_id: str
    ts: float
    snapshot: NotRequired[Run]
    lines: NotRequired[list[LogLine]]


class GraphRecord(TypedDict):
    graph_id: str
    version: int
    sha256: str
    registered_at: float
    registered_by: str
    tenant_id: str | None
    definition: dict[str, Any]


class GraphSummary(TypedDict):
    """A graph's newest version as shown in a list."""

    graph_id: str
    version: int
    sha256: str
    registered_at: float
    registered_by: str
    tenant_id: str | None
    nodes: int


class GraphPage(TypedDict):
    items: list[GraphSummary]
    next_cursor: str | None


class SkippedWheel(TypedDict):
    name: str
    reason: str


class InstalledWheel(TypedDict):
    """An installed wheel of a worker; it identifies the code of a run."""

    name: str
    package: str
    version: str
    nuid: str
    sha256_hex: str | None


class WheelSync(TypedDict):
    """The last sync, as shown in the worker's record."""

    enabled: bool
    last_result: str
    last_attempt_at: float | None
    last_success_at: float | None
    last_synced_at: float | None
    selected_count: int
    updated_count: int
    removed_count: int
    skipped_incompatible_count: int
    selected_wheels: list[str]
    updated_wheels: list[str]
    removed_wheels: list[str]
    skipped_incompatible: list[SkippedWheel]
    installed_wheels: list[InstalledWheel]
    error: str | None


class WorkerRecord(TypedDict):
    worker_id: str
    instance_id: str
    state: str
    tags: list[str]
    last_seen_at: float
    last_heartbeat_at: float
    heartbeat_at: float
    updated_at: float
    hidden: bool
    current_run_id: str | None
    last_run_id: str | None
    last_run_status: str | None
    last_run_started_at: float | None
    last_run_finished_at: float | None
    stopped_at: float | None
    stop_reason: str | None
    wheel_sync: WheelSync | None


class WorkerPatched(TypedDict):
    worker_id: str
    hidden: bool
    updated_at: float


class WheelFile(TypedDict):
    name: str
    size_bytes: int
    bucket: str
    nuid: str
    modified: float
    sha256_hex: str | None
    tags: list[str]
    sha256_b64: str | None
    digest: str | None
    mtime: str


class WheelDeleted(TypedDict):
    name: str
    deleted: bool


class WheelActor(TypedDict):
    tenant_id: str | None
    api_key_id: str | None


class Source(TypedDict):
    """Origin of a request: the socket's address is verified, the other fields are the client's claims."""

    remote_addr: str | None
    x_forwarded_for: str | None
    x_real_ip: str | None
    user_agent: str | None
    host: str | None
    scheme: str | None


class WheelEvent(TypedDict):
    """One entry of the wheel history."""

    event_id: str
    occurred_at: float
    action: str
    wheel_name: str
    tags: list[str]
    size_bytes: int | None
    sha256_hex: str | None
    replace: bool | None
    actor: WheelActor
    source: Source


class Health(TypedDict):
    status: str
    nats: str
