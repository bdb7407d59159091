"""Types of the server's answers about operations. Newer servers may add fields.

Generated from `pyoco_server.answers` by `make types`; do not edit.
"""

from typing import Any, NotRequired, TypedDict

from pyoco_server.http_client.answers.definitions import Pause


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


class WorkerDeleted(TypedDict):
    deleted: bool
    worker_id: str


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
