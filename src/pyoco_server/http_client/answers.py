"""The shapes of the server's answers. More fields may come with newer servers."""

from collections.abc import Mapping
from typing import Any, TypedDict

_TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


class SubmittedRun(TypedDict):
    run_id: str
    status: str


class RunSummary(TypedDict):
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


class _RunExtras(TypedDict, total=False):
    task_records: dict[str, dict[str, Any]]
    worker_alive: bool | None
    worker_heartbeat_at: float | None
    worker_tags: list[str] | None
    result_truncated: bool
    warnings: list[str]


class Run(_RunExtras):
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
    task_records_truncated: bool
    submitted_at: float | None
    start_time: float | None
    end_time: float | None
    result: Any
    error: str | None
    cancel_requested_at: float | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    tenant_id: str | None
    api_key_id: str | None
    workflow_yaml_sha256: str | None
    workflow_yaml_bytes: int | None


class RunPage(TypedDict):
    items: list[RunSummary]
    next_cursor: str | None


class Tasks(TypedDict):
    run_id: str
    flow_name: str
    status: str
    tasks: dict[str, str]
    task_records: dict[str, dict[str, Any]] | None
    task_records_truncated: bool


class _LogMarks(TypedDict, total=False):
    cut_lines: int
    cut_bytes: int
    """So much was cut at this place."""
    is_excerpt: bool
    """From a watch: the newest of a task that prints more than is stored at once."""


class LogLine(_LogMarks):
    """`stream` is `stdout`, `stderr` or `logging`. By `attempt` and `n` lines are in order."""

    attempt: int
    n: int
    task: str | None
    stream: str
    text: str
    ts: float


class _LogPosition(TypedDict, total=False):
    next_cursor: str
    has_earlier: bool
    has_more: bool


class LogPage(_LogPosition):
    """An older server has the lines alone."""

    run_id: str
    lines: list[LogLine]


class _EventExtras(TypedDict, total=False):
    snapshot: Run
    lines: list[LogLine]


class RunEvent(_EventExtras):
    """`event` is `snapshot`, `log` or `heartbeat`."""

    event: str
    id: str
    run_id: str
    ts: float


class Wheel(TypedDict):
    name: str
    size_bytes: int
    bucket: str
    nuid: str
    modified: float
    sha256_hex: str | None
    tags: list[str]


class _GraphVersion(TypedDict):
    graph_id: str
    version: int
    sha256: str
    registered_at: float
    registered_by: str
    tenant_id: str | None


class GraphSummary(_GraphVersion):
    nodes: int


class Graph(_GraphVersion):
    definition: dict[str, Any]


class GraphPage(TypedDict):
    items: list[GraphSummary]
    next_cursor: str | None


class Worker(TypedDict):
    worker_id: str
    instance_id: str
    state: str
    hidden: bool
    tags: list[str]
    last_seen_at: float
    last_heartbeat_at: float
    current_run_id: str | None
    last_run_id: str | None
    last_run_status: str | None
    stopped_at: float | None
    stop_reason: str | None


def is_terminal(event: Mapping[str, Any]) -> bool:
    return event.get("snapshot", {}).get("status") in _TERMINAL
