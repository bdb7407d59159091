"""Types of the server's answers about definitions. Newer servers may add fields.

Generated from `pyoco_server.answers` by `make types`; do not edit.
"""

from typing import Any, TypedDict

from pyoco_server.http_client.answers.runs import RunRetry


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
