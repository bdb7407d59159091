"""How things of ours look over HTTP."""

from collections.abc import Collection
from typing import Any

import msgspec
from fastapi import Response

from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.usecases.read_run import RunView

_WITH_RECORDS = frozenset({"records", "full", "all"})


def json_response(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


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
