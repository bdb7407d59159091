"""Domain values as answers of the API: JSON and server-sent events."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.types import Receive, Scope, Send

from pyoco_server.answers import (
    EventRefused,
    ExecutionEvent,
    ExecutionNode,
    ExecutionState,
    MessageAccepted,
    Run,
    RunChange,
    RunPage,
    RunTasks,
    WheelFile,
    Worker,
    WorkerProgram,
)
from pyoco_server.domain.derived import shown
from pyoco_server.domain.events.audit import EMPTY_BATCH, PING, iso
from pyoco_server.domain.events.retry import RetryJob
from pyoco_server.domain.events.sources import Source
from pyoco_server.domain.events.views import (
    EventBatch,
    EventIgnored,
    EventResumed,
    EventStarted,
    WorkflowRetryJob,
    WorkflowSource,
)
from pyoco_server.domain.executions.branches import EdgeState
from pyoco_server.domain.executions.codec import payload_view
from pyoco_server.domain.executions.events import Event
from pyoco_server.domain.executions.item_views import item_counts
from pyoco_server.domain.executions.model import Execution, NodeState
from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.domain.wheels import Wheel
from pyoco_server.errors import LimitReached, NatsUnavailable, StillStarting
from pyoco_server.http_api.errors import RETRY_AFTER_SEC, error_body, with_particulars
from pyoco_server.http_api.gateway import gateway_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.usecases.events.attempts import Answer, Ignored
from pyoco_server.usecases.events.resume import Resumed
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.usecases.runs.read import RunView
from pyoco_server.usecases.runs.watch import Heartbeat, ListChange, WatchEvent

_WITH_RECORDS = frozenset({"records", "full", "all"})


def json_response(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


# Runs


def run_view(view: RunView, include: Collection[str]) -> Run:
    return shown(
        Run,
        view.snapshot,
        **_records(view.snapshot, include),
        worker_alive=view.worker_alive,
        worker_heartbeat_at=view.worker_heartbeat_at,
        worker_tags=view.worker_tags,
        waiting_for=view.waiting_for,
    )


def snapshot_view(snapshot: RunSnapshot, include: Collection[str]) -> Run:
    return shown(Run, snapshot, **_records(snapshot, include))


def _records(snapshot: RunSnapshot, include: Collection[str]) -> dict[str, Any]:
    """Records can be large, so they are returned on request only."""
    return {"task_records": UNSET if _WITH_RECORDS.isdisjoint(include) else snapshot.task_records}


def tasks_view(snapshot: RunSnapshot) -> RunTasks:
    return shown(RunTasks, snapshot)


def items_of(items: Sequence[bytes | RunSnapshot]) -> list[Any]:
    """Summaries come as JSON from the index: they are not encoded again."""
    return [Raw(item) if isinstance(item, bytes) else item for item in items]


def page_view(items: Sequence[bytes | RunSnapshot], next_cursor: str | None) -> RunPage:
    return RunPage(items_of(items), next_cursor)


# Executions


def execution_view(
    state: Execution,
    run_statuses: Mapping[str, RunStatus],
    edges: list[EdgeState] | UnsetType = UNSET,
) -> ExecutionState:
    """All fields, unlike the stored form, which omits defaults.

    `run_statuses`: of runs that have not ended, by id. A node is RUNNING as soon as its run is queued; the
    status of the run itself stands beside it.
    """
    return shown(
        ExecutionState,
        state,
        execution_id=state.shown_id,
        phase=state.phase,
        handled_failures=state.handled_failures,
        nodes={node_id: _node_view(node, run_statuses) for node_id, node in state.nodes.items()},
        edges=edges,
    )


def _node_view(node: NodeState, run_statuses: Mapping[str, RunStatus]) -> ExecutionNode:
    run_status = run_statuses.get(node.run_id) if node.run_id is not None else None
    items = None if node.map is None else item_counts(node.map)
    return shown(ExecutionNode, node, run_status=run_status, items=items)


def accepted_message(state: Execution, name: str) -> MessageAccepted:
    """`state`: as the message, its last event, left it."""
    node_ids = [
        node_id
        for message in state.messages
        if message.sequence == state.version
        for node_id in message.node_ids
    ]
    return MessageAccepted(state.shown_id, name, state.version, node_ids)


def event_view(event: Event, execution_id: str) -> ExecutionEvent:
    """`execution_id`: as the tenant calls it."""
    return ExecutionEvent(
        event_id=str(event.event_id),
        execution_id=execution_id,
        sequence=event.sequence,
        type=event.type,
        occurred_at=event.occurred_at,
        actor=event.actor,
        correlation_id=event.correlation_id,
        causation_id=event.causation_id,
        schema_version=event.schema_version,
        payload=payload_view(event.payload),
    )


# Workers and wheels


def worker_view(worker: WorkerRecord) -> Struct:
    """Without the names of tenants."""
    figures = worker.figures
    return shown(Worker, worker, figures=None if figures is None else shown(WorkerProgram, figures))


def wheel_view(wheel: Wheel) -> WheelFile:
    return shown(
        WheelFile,
        wheel,
        sha256_hex=wheel.sha256_hex,
        sha256_b64=wheel.sha256_b64,
        digest=None if wheel.sha256_b64 is None else f"SHA-256={wheel.sha256_b64}",
        mtime=datetime.fromtimestamp(wheel.modified, UTC).isoformat(),
    )


# Workflow events


def answer_view(request: Request, answer: Answer) -> Response:
    response = json_response(_answer(request, answer))
    if answer.error is not None:
        response.status_code = int(answer.error.status)
    if isinstance(answer.error, (NatsUnavailable, StillStarting)):
        response.headers["Retry-After"] = RETRY_AFTER_SEC
    if isinstance(answer.error, LimitReached):
        response.headers["Retry-After"] = str(answer.error.retry_after_sec)
    return response


def _answer(request: Request, answer: Answer) -> Struct:
    if answer.batch is not None:
        return EventBatch([_member(request, member) for member in answer.batch])
    if answer.ignored is not None and answer.ignored.reason is EMPTY_BATCH:
        return EventBatch([])
    return _accepted(answer) if answer.error is None else _refused(request, answer)


def _member(request: Request, answer: Answer) -> dict[str, Any]:
    status = HTTPStatus.OK if answer.error is None else answer.error.status
    return {**msgspec.to_builtins(_answer(request, answer)), "status": int(status)}


def _refused(request: Request, answer: Answer) -> EventRefused:
    error, reason = answer.error, answer.reason
    assert error is not None and reason is not None  # noqa: S101, PT018 - what makes it a refusal
    return shown(
        EventRefused,
        with_particulars(error_body(request, error.entry, error.detail), error),
        event_id=answer.event_id,
        reason_class=reason.reason_class,
        reason_code=reason.reason_code,
        retry_advice=reason.retry_advice,
        queued=answer.job is not None,
        next_retry_at=UNSET if answer.job is None else iso(answer.job.next_retry_at),
        idempotency_key_ignored=_is_key_ignored(answer),
    )


def _accepted(answer: Answer) -> EventIgnored | EventResumed | EventStarted:
    if answer.ignored is not None:
        return _ignored(answer, answer.ignored)
    return _started(answer) if answer.resumed is None else _resumed(answer, answer.resumed)


def _ignored(answer: Answer, ignored: Ignored) -> EventIgnored:
    is_ping = ignored.reason is PING
    return EventIgnored(
        status="ok",
        duplicate=False,
        triggered=False,
        event_id=answer.event_id,
        reason_code=ignored.reason.reason_code,
        message="The signature is valid. A ping starts nothing." if is_ping else ignored.text,
        template_id=UNSET if answer.template is None else answer.template.id,
        template_name=UNSET if answer.template is None else answer.template.name,
        ping=is_ping or UNSET,
        idempotency_key_ignored=_is_key_ignored(answer),
    )


def _resumed(answer: Answer, resumed: Resumed) -> EventResumed:
    target, place = resumed.target, resumed.place
    return EventResumed(
        status="ok",
        duplicate=resumed.is_duplicate,
        triggered=not resumed.is_duplicate and not resumed.is_kept,
        kept=resumed.is_kept,
        event_id=answer.event_id,
        execution_id=target.execution_id if place is None else place.execution_id,
        node_id=target.node_id if place is None else place.node_id,
        wait_key=UNSET if target.wait_key is None else target.wait_key,
        **_key_facts(answer, is_mismatch=resumed.is_mismatch),
    )


def _started(answer: Answer) -> EventStarted:
    started, template = answer.started, answer.template
    assert started is not None and template is not None  # noqa: S101, PT018 - what makes it an acceptance
    return EventStarted(
        status="ok",
        duplicate=started.is_duplicate,
        triggered=not started.is_duplicate,
        event_id=answer.event_id,
        template_id=template.id,
        template_name=template.name,
        action_key=template.first.action,
        run_id=started.run_id,
        execution_id=UNSET if started.execution_id is None else started.execution_id,
        resume_ignored=answer.is_resume_ignored or UNSET,
        **_key_facts(answer, is_mismatch=started.is_mismatch),
    )


def _key_facts(answer: Answer, *, is_mismatch: bool) -> dict[str, Any]:
    key = None if answer.request is None else answer.request.key
    return {
        "idempotency_key": UNSET if key is None else key,
        "payload_mismatch": is_mismatch or UNSET,
        "idempotency_key_ignored": _is_key_ignored(answer),
    }


def _is_key_ignored(answer: Answer) -> bool | UnsetType:
    return (answer.request is not None and answer.request.is_key_ignored) or UNSET


def job_view(job: RetryJob) -> Struct:
    times = {name: iso(getattr(job, name)) for name in ("next_retry_at", "created_at", "updated_at")}
    return shown(WorkflowRetryJob, job, **times)


def queue_view(queue: dict[str, Any]) -> dict[str, Any]:
    return {**queue, "jobs": [job_view(job) for job in queue["jobs"]]}


def source_view(source: Source) -> WorkflowSource:
    """The number of secrets, never the secrets."""
    query = {"signature_source": source.id}
    if source.tenant_id is not None:
        query["tenant"] = source.tenant_id
    path = f"/api/workflow-events?{urlencode(query)}"
    return shown(WorkflowSource, source, secrets=len(source.secrets), events_path=path)


# Server-sent events.

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Proxies must not buffer events."""
_LINE_SEPARATORS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""JSON allows them in strings, but some clients end a line there: a flow name could forge an event."""


class EventStream(StreamingResponse):
    """`opened` is entered before the first byte, so that a refusal still has a status."""

    def __init__(self, opened: AbstractAsyncContextManager[AsyncIterator[bytes]]) -> None:
        super().__init__((), media_type="text/event-stream", headers=_HEADERS)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        allowed = partial(gateway_of(request).is_still_allowed, caller_of(request))
        async with self._opened as events, aclosing(_while(allowed, events)) as self.body_iterator:
            await super().__call__(scope, receive, send)


async def _while(
    is_allowed: Callable[[], Awaitable[bool]], events: AsyncIterator[bytes]
) -> AsyncGenerator[bytes, None]:
    """A revoked key ends its streams at the next event, at most 2 s later."""
    async for event in events:
        if not await is_allowed():
            return
        yield event


@asynccontextmanager
async def run_events(
    run_id: str,
    watching: AbstractAsyncContextManager[AsyncIterator[WatchEvent]],
    include: Collection[str],
    clock: Clock,
) -> AsyncIterator[AsyncIterator[bytes]]:
    async with watching as events, aclosing(_texts(run_id, events, include, clock)) as texts:
        yield texts


async def _texts(
    run_id: str, events: AsyncIterator[WatchEvent], include: Collection[str], clock: Clock
) -> AsyncGenerator[bytes, None]:
    async for event in events:
        if isinstance(event, Heartbeat):
            yield sse_event("heartbeat", RunChange(run_id, event.at))
        elif isinstance(event, list):
            yield sse_event("log", RunChange(run_id, clock(), lines=event))
        else:
            change = RunChange(run_id, clock(), snapshot=snapshot_view(event.value, include))
            yield sse_event("snapshot", change, str(event.revision))


@asynccontextmanager
async def list_events(
    watching: AbstractAsyncContextManager[AsyncIterator[ListChange]],
) -> AsyncIterator[AsyncIterator[bytes]]:
    async with watching as events, aclosing(_list_texts(events)) as texts:
        yield texts


async def _list_texts(changes: AsyncIterator[ListChange]) -> AsyncGenerator[bytes, None]:
    async for change in changes:
        yield sse_event("runs", change)


def sse_event(name: str, data: object, event_id: str | None = None) -> bytes:
    text = msgspec.json.encode(data).decode()
    for separator, escape in _LINE_SEPARATORS.items():
        text = text.replace(separator, escape)
    return format_sse_event(data_str=text, event=name, id=event_id)
