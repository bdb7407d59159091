"""How things of ours look over HTTP."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import Response

from pyoco_server.domain.execution.state import Execution, NodeState
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.domain.workers import WorkerRecord
from pyoco_server.usecases.list_runs import RunPage
from pyoco_server.usecases.read_run import RunView

_WITH_RECORDS = frozenset({"records", "full", "all"})


def json_response(content: Any) -> Response:
    return _json(msgspec.json.encode(content))


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")


def json_array(items: Sequence[bytes | RunSnapshot]) -> Response:
    return _json(_array(items))


def page_view(page: RunPage) -> Response:
    return items_view(page.items, page.next_cursor)


def items_view(items: Sequence[bytes | RunSnapshot], next_cursor: str | None, **more: Any) -> Response:
    """A page of things that are JSON already."""
    rest = msgspec.json.encode({"next_cursor": next_cursor, **more})
    return _json(b'{"items":' + _array(items) + b"," + rest[1:])


def execution_view(state: Execution, run_statuses: Mapping[str, RunStatus]) -> dict[str, Any]:
    """All fields, also those that say nothing yet: the stored form leaves them out.

    `run_statuses`: of runs that have not ended, by id. RUNNING says of a node that its run is handed to the
    queue; where that stands is said beside it.
    """
    fields = msgspec.structs.asdict(state)
    del fields["given_id"]
    fields["execution_id"] = state.shown_id
    fields["phase"] = state.phase
    fields["handled_failures"] = state.handled_failures
    fields["nodes"] = {node_id: _node_view(node, run_statuses) for node_id, node in state.nodes.items()}
    return fields


def _node_view(node: NodeState, run_statuses: Mapping[str, RunStatus]) -> dict[str, Any]:
    fields = msgspec.structs.asdict(node)
    fields["run_status"] = run_statuses.get(node.run_id) if node.run_id is not None else None
    return fields


def _array(items: Sequence[bytes | RunSnapshot]) -> bytes:
    """Summaries come as JSON from the index: a page is put together, not encoded."""
    return b"[" + b",".join(i if isinstance(i, bytes) else msgspec.json.encode(i) for i in items) + b"]"


def run_view(view: RunView, include: Collection[str]) -> dict[str, Any]:
    return {
        **snapshot_view(view.snapshot, include),
        "worker_alive": view.worker_alive,
        "worker_heartbeat_at": view.worker_heartbeat_at,
        "worker_tags": view.worker_tags,
    }


def snapshot_view(snapshot: RunSnapshot, include: Collection[str]) -> dict[str, Any]:
    """Records can be large, so they are shown on request only."""
    fields = msgspec.structs.asdict(snapshot)
    if _WITH_RECORDS.isdisjoint(include):
        del fields["task_records"]
    return fields


def worker_view(worker: WorkerRecord) -> dict[str, Any]:
    """Without the names of tenants."""
    fields = msgspec.structs.asdict(worker)
    del fields["hidden_for"]
    return fields


def tasks_view(snapshot: RunSnapshot) -> dict[str, Any]:
    shown = (
        "run_id",
        "flow_name",
        "status",
        "tasks",
        "task_records",
        "task_records_truncated",
        "task_dependencies",
    )
    return {name: getattr(snapshot, name) for name in shown}


def iso_time(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat()
