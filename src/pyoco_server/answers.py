"""Answers of the HTTP API, one type each.

The server encodes these types, OpenAPI documents them, and the client's types are generated from them
(`make types`). A field that may be UNSET is left out of the JSON.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from pyoco_server.domain.alerts.deliveries import ALERT_DELIVERY_ANSWERS
from pyoco_server.domain.alerts.model import ALERT_ANSWERS
from pyoco_server.domain.artifacts import RunArtifact
from pyoco_server.domain.audit_trail import AUDIT_ANSWERS
from pyoco_server.domain.auth import API_KEY_ANSWERS
from pyoco_server.domain.bulk import BULK_ANSWERS
from pyoco_server.domain.dead_letters import DEAD_LETTER_ANSWERS
from pyoco_server.domain.derived import without
from pyoco_server.domain.diagnosis.causes import DIAGNOSIS_ANSWERS
from pyoco_server.domain.events.views import EVENT_ANSWERS
from pyoco_server.domain.executions.branches import EdgeState
from pyoco_server.domain.executions.events import Actor
from pyoco_server.domain.executions.graph_versions import GraphPreview, GraphRecord, GraphSummary
from pyoco_server.domain.executions.item_views import ItemCounts, MapItem
from pyoco_server.domain.executions.model import Execution, NodeState, Phase
from pyoco_server.domain.executions.records import ExecutionSummary, Wait
from pyoco_server.domain.fleet import WorkerFigures, WorkerRecord
from pyoco_server.domain.flows import FLOW_ANSWERS
from pyoco_server.domain.limits.views import LIMIT_ANSWERS
from pyoco_server.domain.queues import QUEUE_ANSWERS, WaitingFor
from pyoco_server.domain.runs.listing import RunSummary
from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus, TaskRecord, TaskState
from pyoco_server.domain.schedules.views import SCHEDULE_ANSWERS
from pyoco_server.domain.secrets.model import SECRET_ANSWERS
from pyoco_server.domain.stats.series import STATS_ANSWERS
from pyoco_server.domain.wheels import Actor as WheelActor, WheelEvent

__all__ = [
    "GraphPreview",
    "GraphRecord",
    "GraphSummary",
    "LogLine",
    "RunArtifact",
    "RunSummary",
    "WheelEvent",
]
"""Types of the domain that are answers as they are."""


def kinds() -> list[type[Struct]]:
    own = [
        kind
        for name, kind in globals().items()
        if isinstance(kind, type)
        and (kind.__module__ in (__name__, without.__module__) or name in __all__)
        and name[0] != "_"
    ]
    nouns = (
        EVENT_ANSWERS,
        FLOW_ANSWERS,
        LIMIT_ANSWERS,
        QUEUE_ANSWERS,
        DIAGNOSIS_ANSWERS,
        SECRET_ANSWERS,
        SCHEDULE_ANSWERS,
        AUDIT_ANSWERS,
        API_KEY_ANSWERS,
        DEAD_LETTER_ANSWERS,
        BULK_ANSWERS,
        STATS_ANSWERS,
        ALERT_ANSWERS,
        ALERT_DELIVERY_ANSWERS,
    )
    return [*own, *(kind for answers in nouns for kind in answers)]


def name_of(kind: type) -> str:
    """In OpenAPI and in the client."""
    return "WheelActor" if kind is WheelActor else kind.__name__


# Errors


class ErrorBody(Struct, kw_only=True):
    """`message` is in the language that the client prefers.

    `code`: why a command was rejected. `scope`: what the API key lacks.
    """

    detail: str | list[dict[str, Any]]
    err_id: str
    msg_id: str
    message: str
    code: str | UnsetType = UNSET
    scope: str | UnsetType = UNSET


class EventRefused(ErrorBody, kw_only=True):
    """Why an event started nothing. `queued`: it is retried at `next_retry_at`."""

    event_id: str
    reason_class: str
    reason_code: str
    retry_advice: str
    queued: bool
    next_retry_at: str | UnsetType = UNSET
    idempotency_key_ignored: bool | UnsetType = UNSET


# Runs


class Run(RunSnapshot, frozen=True, kw_only=True):
    """A run. Only `GET /runs/{run_id}` returns `worker_*` and `waiting_for`: why it does not start."""

    task_records: dict[str, TaskRecord] | UnsetType | None = UNSET  # type: ignore[assignment]
    worker_alive: bool | UnsetType | None = UNSET
    worker_heartbeat_at: float | UnsetType | None = UNSET
    worker_tags: tuple[str, ...] | UnsetType | None = UNSET
    waiting_for: WaitingFor | UnsetType | None = UNSET


class RunPage(Struct):
    """A page of runs: summaries, or whole runs with `include=full`."""

    items: Annotated[
        list[RunSummary],
        Meta(
            extra_json_schema={
                "items": {
                    "anyOf": [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in (RunSummary, Run)]
                }
            }
        ),
    ]
    next_cursor: str | None


class Submitted(Struct):
    """`warning`: why the run may wait, e.g. no worker has its tag."""

    run_id: str
    status: RunStatus
    warning: str | UnsetType = UNSET


class RunDeleted(Struct):
    run_id: str
    deleted: bool


class ExecutionDeleted(Struct):
    execution_id: str
    deleted: bool


class WorkerDeleted(Struct):
    worker_id: str
    deleted: bool


class BatchResult(Struct):
    """`results` has one entry per run, in order."""

    accepted: int
    refused: int
    results: list[dict[str, Any]]


class RunTasks(Struct):
    run_id: str
    flow_name: str
    status: RunStatus
    tasks: dict[str, TaskState]
    task_records: dict[str, TaskRecord] | None
    task_records_truncated: bool
    task_dependencies: dict[str, tuple[str, ...]] | None


class RunArtifacts(Struct):
    run_id: str
    items: tuple[RunArtifact, ...]


class RunLogs(Struct):
    run_id: str
    lines: list[LogLine]
    next_cursor: str
    has_earlier: bool
    has_more: bool


class RunChange(Struct):
    """Data of an event from `GET /runs/{run_id}/watch`."""

    run_id: str
    ts: float
    snapshot: Run | UnsetType = UNSET
    lines: list[LogLine] | UnsetType = UNSET


# Executions


_Node = without(("map",), NodeState, "_ExecutionNode")


class ExecutionNode(_Node, kw_only=True):  # type: ignore[misc, valid-type, call-arg]
    """A node. `run_status` is the status of its run until that has ended. `items`: of a map."""

    run_status: RunStatus | None
    items: ItemCounts | None


_Execution = without(("given_id", "held_bytes", "nodes"), Execution, "_Execution")
ExecutionRow = without(("given_id", "held_bytes"), ExecutionSummary, "ExecutionSummary")


class ExecutionState(_Execution, kw_only=True):  # type: ignore[misc, valid-type, call-arg]
    """The state of an execution. `edges` on request only."""

    phase: Phase
    handled_failures: tuple[str, ...]
    nodes: dict[str, ExecutionNode]
    edges: list[EdgeState] | UnsetType = UNSET


class ExecutionPage(Struct):
    items: list[ExecutionRow]  # type: ignore[valid-type]
    next_cursor: str | None
    counts: dict[str, int] | UnsetType = UNSET


class MapItemPage(Struct):
    items: list[MapItem]
    next_cursor: str | None


class MessageAccepted(Struct):
    """`sequence`: of its event. `node_ids`: the nodes that may take it; none if it meets no condition."""

    execution_id: str
    name: str
    sequence: int
    node_ids: list[str]


class WaitPage(Struct):
    items: list[Wait]
    next_cursor: str | None


class ExecutionEvent(Struct):
    event_id: str
    execution_id: str
    sequence: int
    type: str
    occurred_at: float
    actor: Actor
    correlation_id: str | None
    causation_id: str | None
    schema_version: int
    payload: dict[str, Any]


class EventPage(Struct):
    items: list[ExecutionEvent]
    next_cursor: str | None


class GraphPage(Struct):
    items: list[GraphSummary]
    next_cursor: str | None


# Workers, wheels, operations

# What changes all the time is at `GET /workers/{id}/metrics`.
WorkerProgram = without(
    ("active", "ended", "busy_sec", "cpu_sec", "memory_bytes"), WorkerFigures, "WorkerProgram"
)
# Flow names can be long lists; `GET /flows` has them.
Worker = without(
    ("hidden_for", "flows", "flow_aliases", "flows_complete"),
    WorkerRecord,
    "WorkerRecord",
    figures=WorkerProgram | None,
)


class WorkerPatched(Struct):
    worker_id: str
    hidden: bool
    updated_at: float


class WheelFile(Struct):
    name: str
    size_bytes: int
    bucket: str
    nuid: str
    modified: float
    sha256_hex: str | None
    tags: tuple[str, ...]
    sha256_b64: str | None
    """This and the following are for older clients."""
    digest: str | None
    mtime: str


class WheelDeleted(Struct):
    name: str
    deleted: bool


class DeletedId(Struct):
    id: str
    deleted: bool


class DeletedKey(Struct):
    key: str
    deleted: bool


class Health(Struct):
    status: str
    nats: str


class Ready(Struct):
    status: str
    nats: str
    storage: str
    read_model: str
    runs_read: int | None = None
    """While the stored runs are read."""
    runs_total: int | None = None
    executions_read: int | None = None
    """While the stored executions are read."""
    executions_total: int | None = None
