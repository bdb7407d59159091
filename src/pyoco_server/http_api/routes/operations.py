"""Operations: liveness, readiness and metrics; workers, the audit trail and wheels."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field, StrictBool

from pyoco_server.answers import Health, Ready, WheelDeleted, WheelEvent, WheelFile, Worker, WorkerPatched
from pyoco_server.domain.audit_trail import AuditFilter, AuditPage
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.derived import shown
from pyoco_server.domain.fleet import WorkerState
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT, MAX_LIMIT
from pyoco_server.domain.wheels import Actor, Source, WheelAction, read_tags
from pyoco_server.errors import (
    InvalidListQuery,
    InvalidWorkersRequest,
    RequestTooLarge,
    WheelNotFound,
    WheelVersionConflict,
    WorkerNotFound,
)
from pyoco_server.http_api.access import SECURITY_SCHEME, needs
from pyoco_server.http_api.bodies import (
    Body,
    StrictRoute,
    json_body_docs,
    parse_json,
    query_time,
    read_body,
    refusing_with,
)
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, list_schema_of, schema_of
from pyoco_server.http_api.forms import WHEEL_DOCS, open_wheel_form
from pyoco_server.http_api.gateway import Stale, gateway_of, levels_of, reading_of
from pyoco_server.http_api.metrics import CONTENT_TYPE
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import json_response, wheel_view, worker_view
from pyoco_server.http_api.worker_metrics import worker_text
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.fleet import WorkerFilter
from pyoco_server.usecases.wheels import Author, Upload

router = APIRouter(tags=["operations"], responses=EVERYWHERE)


@router.get("/health", summary="Liveness", responses=answers_like(schema_of(Health)))
async def health(request: Request) -> Response:
    """Always 200: restarting the gateway does not bring NATS back, so `nats` only reports its state."""
    return json_response(Health("ok", "ok" if levels_of(request).is_connected else "unavailable"))


@router.get(
    "/ready",
    summary="Readiness",
    responses={**answers_like(schema_of(Ready)), **answers_like(schema_of(Ready), 503, "Not ready")},
)
async def ready(request: Request) -> Response:
    """503 while NATS is unavailable or rejects writes, and after a start until runs and executions are read.

    `runs_read` of `runs_total`, `executions_read` of `executions_total` show how far that is; null otherwise.
    """
    gateway = gateway_of(request)
    facts = {
        "nats": "ok" if gateway.levels.is_connected else "unavailable",
        "storage": "ok" if gateway.levels.is_storing else "unavailable",
        "read_model": "ok" if gateway.is_caught_up else "catching up",
    }
    is_ready = set(facts.values()) == {"ok"}
    progress = gateway.levels.progress
    runs_read, runs_total = progress.get("runs", (None, None))
    executions_read, executions_total = progress.get("executions", (None, None))
    response = json_response(
        Ready(
            "ready" if is_ready else "unavailable",
            **facts,
            runs_read=runs_read,
            runs_total=runs_total,
            executions_read=executions_read,
            executions_total=executions_total,
        )
    )
    if not is_ready:
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return response


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    responses={200: {"content": {"text/plain": {}}}},
    openapi_extra={"security": [{SECURITY_SCHEME: []}]},
)
async def metrics(request: Request) -> Response:
    """With auth on, only the runs of the caller's tenant are counted."""
    gateway = gateway_of(request)
    levels = reading_of(request).levels
    tenant_id = caller_of(request).tenant_id
    gateway.metrics.watchers.set(levels.watchers)
    queues = await levels.runs.queues.list.recent(tenant_id)
    text = gateway.metrics.text(
        levels.runs.index.counts(tenant_id),
        levels.runs.list_workers.alive_count(),
        await levels.runs.count_dead_letters(levels.monotonic()),
        levels.executions.index.counts(tenant_id),
        gateway.metrics.queue_series.shown(tenant_id, queues, levels.monotonic()),
        levels.runs.limits.board.lines.total(tenant_id),
        storage=levels.runs.check_storage.sizes,
    )
    return Response(text, media_type=CONTENT_TYPE)


# Workers: list, hide, show.

workers_router = APIRouter(
    tags=["workers"],
    route_class=refusing_with(InvalidWorkersRequest),
    responses={**EVERYWHERE, **answers_with(InvalidWorkersRequest)},
)

MAX_BODY_BYTES = 4096
WorkerId = Annotated[str, Path(description="Worker id (--worker-id)")]


class PatchWorkerRequest(Body):
    hidden: StrictBool = Field(description="Whether lists omit the worker")


@workers_router.get("/workers", summary="List workers", responses=answers_like(list_schema_of(Worker)))
@needs(Scope.READ)
async def list_workers(
    request: Request,
    *,
    scope: Annotated[
        Literal["active", "all"], Query(description="`all` includes stopped workers")
    ] = "active",
    state: Annotated[WorkerState | None, Query(description="Filter by state")] = None,
    include_hidden: Annotated[bool, Query(description="Include hidden workers")] = False,
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of workers")] = 100,
    stale: Stale = None,
) -> Response:
    wanted = WorkerFilter(
        active_only=scope == "active", state=state, include_hidden=include_hidden, limit=limit
    )
    reading = reading_of(request, stale)
    workers = reading.levels.runs.list_workers.for_caller(wanted, caller_of(request))
    return reading.marked(json_response([worker_view(worker) for worker in workers]))


@workers_router.get(
    "/workers/{worker_id}/metrics",
    summary="Prometheus metrics of a worker",
    responses={200: {"content": {"text/plain": {}}}, **answers_with(WorkerNotFound)},
)
@needs(Scope.READ)
async def worker_metrics(request: Request, worker_id: WorkerId) -> Response:
    """As of its last heartbeat, for workers that Prometheus cannot reach. An older worker reports few."""
    record = reading_of(request).levels.runs.list_workers.find(worker_id)
    if record is None:
        raise WorkerNotFound
    return Response(worker_text(record), media_type=CONTENT_TYPE)


@workers_router.patch(
    "/workers/{worker_id}",
    summary="Hide or show a worker",
    responses={
        **answers_like(schema_of(WorkerPatched)),
        **answers_with(WorkerNotFound, RequestTooLarge),
    },
    openapi_extra=json_body_docs(PatchWorkerRequest),
)
@needs(Scope.OPERATE, audit=("worker.hide", "worker.show"))
async def patch_worker(request: Request, worker_id: WorkerId) -> Response:
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), PatchWorkerRequest)
    record = await levels_of(request).runs.hide_worker(worker_id, author_of(request), hidden=wanted.hidden)
    return json_response(shown(WorkerPatched, record))


# Audit trail

audit_router = APIRouter(
    tags=["operations"],
    route_class=refusing_with(InvalidListQuery),
    responses={**EVERYWHERE, **answers_with(InvalidListQuery)},
)

Time = Annotated[str | None, Query(description="RFC 3339 or Unix seconds")]


JSON_LINES = "application/x-ndjson"
_ENCODER = msgspec.json.Encoder()
_PAGE_OR_LINES = {"application/json": {"schema": schema_of(AuditPage)}, JSON_LINES: {}}


@audit_router.get("/audit", summary="List changes", responses={200: {"content": _PAGE_OR_LINES}})
@needs(Scope.ADMIN)
async def list_changes(  # noqa: PLR0913 - one per filter
    request: Request,
    *,
    action: Annotated[str | None, Query(description="E.g. `schedule.put`")] = None,
    target: Annotated[str | None, Query(description="An id, a kind, or `kind/id`")] = None,
    key_id: Annotated[str | None, Query(description="API key of the author")] = None,
    since: Time = None,
    until: Time = None,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
    limit: Annotated[
        int | None, Query(ge=1, le=MAX_LIMIT, description=f"Page size; default {DEFAULT_LIMIT}")
    ] = None,
    response_format: Annotated[
        Literal["json", "jsonl"], Query(alias="format", description="`jsonl`: one entry per line")
    ] = "json",
) -> Response:
    """Who changed what, when and from where, newest first.

    `format=jsonl` without `limit` exports all of them. With `limit`, the header `X-Next-Cursor` has the
    cursor of the next page.
    """
    wanted = AuditFilter(
        tenant_id=caller_of(request).tenant_id,
        action=action,
        target=target,
        key_id=key_id,
        since=query_time("since", since),
        until=query_time("until", until),
    )
    trail = levels_of(request).runs.trail
    is_export = response_format == "jsonl"
    first = await trail.page(wanted, cursor, limit or (MAX_LIMIT if is_export else DEFAULT_LIMIT))
    if not is_export:
        return json_response(first)
    if limit is None:
        return StreamingResponse(_all_lines(trail, wanted, first), media_type=JSON_LINES)
    headers = {} if first.next_cursor is None else {"X-Next-Cursor": first.next_cursor}
    return Response(_ENCODER.encode_lines(first.items), media_type=JSON_LINES, headers=headers)


async def _all_lines(trail: AuditTrail, wanted: AuditFilter, first: AuditPage) -> AsyncIterator[bytes]:
    """The first page was read before the answer began, so that a refusal still has a status."""
    yield _ENCODER.encode_lines(first.items)
    cursor = first.next_cursor
    while cursor is not None:
        page = await trail.page(wanted, cursor, MAX_LIMIT)
        yield _ENCODER.encode_lines(page.items)
        cursor = page.next_cursor


# Wheels, the code that workers install: register, list, download, remove.

wheels_router = APIRouter(tags=["wheels"], route_class=StrictRoute, responses=EVERYWHERE)

WheelName = Annotated[str, Path(description="File name of the wheel")]


@wheels_router.get("/wheels", summary="List wheels", responses=answers_like(list_schema_of(WheelFile)))
@needs(Scope.READ)
async def list_wheels(request: Request) -> Response:
    wheels = await levels_of(request).runs.wheels.list_wheels()
    return json_response([wheel_view(wheel) for wheel in wheels])


@wheels_router.post(
    "/wheels",
    summary="Register a wheel",
    responses={
        **answers_like(schema_of(WheelFile)),
        **answers_with(WheelVersionConflict, RequestTooLarge),
    },
    openapi_extra=WHEEL_DOCS,
)
@needs(Scope.DEPLOY, audit="wheel.upload")
async def upload_wheel(request: Request) -> Response:
    """The version must be newer than all registered versions of the package."""
    gateway = gateway_of(request)
    async with open_wheel_form(request, gateway.config.wheel_max_bytes) as form:
        wheel = await gateway.levels.runs.wheels.upload(
            Upload(
                name=form.name,
                file=form.file,
                size=form.size,
                tags=read_tags(form.tags),
                replace=form.replace,
                author=_author(request),
            )
        )
    return json_response(wheel_view(wheel))


@wheels_router.get(
    "/wheels/history",
    summary="List wheel uploads and removals",
    responses=answers_like(list_schema_of(WheelEvent)),
)
@needs(Scope.READ)
async def wheel_history(
    request: Request,
    *,
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of entries")] = 100,
    wheel_name: Annotated[
        str | None, Query(pattern=r"\.whl$", max_length=255, description="Filter by file name")
    ] = None,
    action: Annotated[WheelAction | None, Query(description="Filter by action")] = None,
) -> Response:
    events = await levels_of(request).runs.wheels.history(wheel_name, action, limit)
    return json_response(events)


@wheels_router.get(
    "/wheels/{wheel_name}",
    summary="Download a wheel",
    responses={200: {"content": {"application/octet-stream": {}}}, **answers_with(WheelNotFound)},
)
@needs(Scope.READ)
async def download_wheel(request: Request, wheel_name: WheelName) -> Response:
    wheels = levels_of(request).runs.wheels
    wheel = await wheels.find(wheel_name)
    return StreamingResponse(
        wheels.read(wheel),
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{wheel.name}"',
            "Content-Length": str(wheel.size_bytes),
        },
    )


@wheels_router.delete(
    "/wheels/{wheel_name}",
    summary="Remove a wheel",
    responses={**answers_like(schema_of(WheelDeleted)), **answers_with(WheelNotFound)},
)
@needs(Scope.DEPLOY, audit="wheel.delete")
async def delete_wheel(request: Request, wheel_name: WheelName) -> Response:
    wheel = await levels_of(request).runs.wheels.delete(wheel_name, _author(request))
    return json_response(WheelDeleted(wheel.name, deleted=True))


def _author(request: Request) -> Author:
    caller = author_of(request)
    actor = Actor(tenant_id=caller.tenant_id, api_key_id=caller.api_key_id)
    return Author(caller=caller, actor=actor, source=_source(request))


def _source(request: Request) -> Source:
    headers = request.headers
    return Source(
        remote_addr=request.client.host if request.client else None,
        x_forwarded_for=headers.get("x-forwarded-for"),
        x_real_ip=headers.get("x-real-ip"),
        user_agent=headers.get("user-agent"),
        host=headers.get("host"),
        scheme=request.url.scheme,
    )
