"""How things of ours look over HTTP."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from fastapi import Request, Response

from pyoco_server.domain.events.audit import iso
from pyoco_server.domain.events.retry import RetryJob
from pyoco_server.domain.events.sources import Source
from pyoco_server.domain.executions.model import Execution, NodeState
from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import CommandRejected, NatsUnavailable, StillStarting
from pyoco_server.http_api.errors import RETRY_AFTER_SEC, error_body
from pyoco_server.usecases.events.attempt import Answer
from pyoco_server.usecases.events.resume import Resumed
from pyoco_server.usecases.runs.read import RunPage, RunView

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


# How workflow events are answered.

_TIMES = ("next_retry_at", "created_at", "updated_at")
_HIDDEN = ("tenant_id", "api_key_id", "is_told", "told_tries")


def answer_view(request: Request, answer: Answer) -> Response:
    body = _refusal(request, answer) if answer.error else _accepted(answer)
    if answer.request is not None and answer.request.is_key_ignored:
        body["idempotency_key_ignored"] = True
    status = int(answer.error.status) if answer.error else 200
    come_again = isinstance(answer.error, (NatsUnavailable, StillStarting))
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type="application/json",
        headers={"Retry-After": RETRY_AFTER_SEC} if come_again else None,
    )


def _refusal(request: Request, answer: Answer) -> dict[str, Any]:
    assert answer.error is not None and answer.reason is not None  # noqa: S101, PT018 - what makes it a refusal
    return {
        **error_body(request, answer.error.entry, answer.error.detail),
        "event_id": answer.event_id,
        "reason_class": answer.reason.reason_class,
        "reason_code": answer.reason.reason_code,
        "retry_advice": answer.reason.retry_advice,
        "queued": answer.job is not None,
        **({"code": answer.error.code} if isinstance(answer.error, CommandRejected) else {}),
        **({} if answer.job is None else {"next_retry_at": iso(answer.job.next_retry_at)}),
    }


def _accepted(answer: Answer) -> dict[str, Any]:
    if answer.is_ping:
        return _pong(answer)
    done = answer.started or answer.resumed
    body = _start(answer) if answer.resumed is None else _resume(answer, answer.resumed)
    if answer.request is not None and answer.request.key is not None:
        body["idempotency_key"] = answer.request.key
    if done is not None and done.is_mismatch:
        body["payload_mismatch"] = True
    return body


def _pong(answer: Answer) -> dict[str, Any]:
    return {
        "status": "ok",
        "duplicate": False,
        "triggered": False,
        "ping": True,
        "event_id": answer.event_id,
        "message": "The signature is valid. A ping starts nothing.",
    }


def _resume(answer: Answer, resumed: Resumed) -> dict[str, Any]:
    target, place = resumed.target, resumed.place
    return {
        "status": "ok",
        "duplicate": resumed.is_duplicate,
        "triggered": not resumed.is_duplicate and not resumed.is_kept,
        "kept": resumed.is_kept,
        "event_id": answer.event_id,
        "execution_id": target.execution_id if place is None else place.execution_id,
        "node_id": target.node_id if place is None else place.node_id,
        **({} if target.wait_key is None else {"wait_key": target.wait_key}),
    }


def _start(answer: Answer) -> dict[str, Any]:
    started, template = answer.started, answer.template
    assert started is not None and template is not None  # noqa: S101, PT018 - what makes it an acceptance
    body: dict[str, Any] = {
        "status": "ok",
        "duplicate": started.is_duplicate,
        "triggered": not started.is_duplicate,
        "event_id": answer.event_id,
        "template_id": template.id,
        "template_name": template.name,
        "action_key": template.first.action,
        "run_id": started.run_id,
    }
    if started.execution_id is not None:
        body["execution_id"] = started.execution_id
    if answer.is_resume_ignored:
        body["resume_ignored"] = True
    return body


def job_view(job: RetryJob) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.structs.asdict(job).items() if name not in _HIDDEN}
    return {**fields, **{name: iso(fields[name]) for name in _TIMES}}


def queue_view(queue: dict[str, Any]) -> dict[str, Any]:
    return {**queue, "jobs": [job_view(job) for job in queue["jobs"]]}


def source_view(source: Source) -> dict[str, Any]:
    """How many secrets there are, never which."""
    fields = msgspec.structs.asdict(source)
    del fields["secrets"], fields["tenant_id"]
    query = {"signature_source": source.id}
    if source.tenant_id is not None:
        query["tenant"] = source.tenant_id
    path = f"/api/workflow-events?{urlencode(query)}"
    return {**fields, "secrets": len(source.secrets), "events_path": path}
