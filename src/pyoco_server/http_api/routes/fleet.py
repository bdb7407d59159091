"""Workers: list, hide, show."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field, StrictBool

from pyoco_server.answers import Worker, WorkerPatched, shown
from pyoco_server.domain.fleet import WorkerState
from pyoco_server.errors import InvalidWorkersRequest, RequestTooLarge, WorkerNotFound
from pyoco_server.http_api import schemas
from pyoco_server.http_api.bodies import Body, json_body_docs, parse_json, read_body, refusing_with
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with
from pyoco_server.http_api.gateway import Stale, levels_of, reading_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import json_response, worker_view
from pyoco_server.usecases.fleet import WorkerFilter

router = APIRouter(
    tags=["workers"],
    route_class=refusing_with(InvalidWorkersRequest),
    responses={**EVERYWHERE, **answers_with(InvalidWorkersRequest)},
)

MAX_BODY_BYTES = 4096


class PatchWorkerRequest(Body):
    hidden: StrictBool = Field(description="Whether lists omit the worker")


@router.get("/workers", summary="List workers", responses=answers_like(schemas.list_of(Worker)))
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


@router.patch(
    "/workers/{worker_id}",
    summary="Hide or show a worker",
    responses={
        **answers_like(schemas.of(WorkerPatched)),
        **answers_with(WorkerNotFound, RequestTooLarge),
    },
    openapi_extra=json_body_docs(PatchWorkerRequest),
)
async def patch_worker(
    request: Request, worker_id: Annotated[str, Path(description="Worker id (--worker-id)")]
) -> Response:
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), PatchWorkerRequest)
    record = await levels_of(request).runs.hide_worker(
        worker_id, caller_of(request).tenant_id, hidden=wanted.hidden
    )
    return json_response(shown(WorkerPatched, record))
