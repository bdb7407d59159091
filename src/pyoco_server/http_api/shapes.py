"""For OpenAPI: the shapes of answers, from the types that are encoded."""

from typing import Any

import msgspec
from msgspec import Struct

from pyoco_server.domain.listing import RunSummary
from pyoco_server.domain.runs import RunSnapshot, RunStatus, TaskRecord, TaskState
from pyoco_server.domain.task_logs import LogLine
from pyoco_server.domain.wheels import WheelEvent
from pyoco_server.domain.workers import WorkerRecord


class Run(RunSnapshot, frozen=True, kw_only=True):
    """A snapshot; `GET /runs/{run_id}` adds what is known of the worker that holds it."""

    worker_alive: bool | None = None
    worker_heartbeat_at: float | None = None
    worker_tags: tuple[str, ...] | None = None


class Submitted(Struct):
    run_id: str
    status: RunStatus


class BatchResult(Struct):
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


class RunLogs(Struct):
    run_id: str
    lines: list[LogLine]


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
    digest: str | None
    mtime: str


class WheelDeleted(Struct):
    name: str
    deleted: bool


class Health(Struct):
    status: str
    nats: str


_TYPES = (
    *(Run, RunSummary, Submitted, BatchResult, RunTasks, RunLogs),
    *(WorkerRecord, WorkerPatched, WheelFile, WheelDeleted, WheelEvent, Health),
)
_, COMPONENTS = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")


def of(shape: type[Struct]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


def list_of(shape: type[Struct]) -> dict[str, Any]:
    return {"type": "array", "items": of(shape)}


_RUNS = {"anyOf": [list_of(RunSummary), list_of(Run)]}
COMPONENTS["RunPage"] = {
    "type": "object",
    "required": ["items", "next_cursor"],
    "properties": {"items": _RUNS, "next_cursor": {"type": ["string", "null"]}},
}
RUN_LIST = {"anyOf": [*_RUNS["anyOf"], {"$ref": "#/components/schemas/RunPage"}]}
"""Summaries, or whole runs with `include=full`; in an object with `next_cursor` where there are pages."""
