"""Workers: look at the fleet, hide what one does not want to see."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field, StrictBool

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
    hidden: StrictBool = Field(description="whether lists leave it out")


@router.get("/workers", summary="The fleet", responses=answers_like(schemas.list_of(schemas.Worker)))
async def list_workers(
    request: Request,
    *,
    scope: Annotated[
        Literal["active", "all"], Query(description="those that are alive, or those that were, too")
    ] = "active",
    state: Annotated[WorkerState | None, Query(description="only workers in this state")] = None,
    include_hidden: Annotated[bool, Query(description="hidden ones, too")] = False,
    limit: Annotated[int, Query(ge=1, le=500, description="at most so many")] = 100,
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
        **answers_like(schemas.of(schemas.WorkerPatched)),
        **answers_with(WorkerNotFound, RequestTooLarge),
    },
    openapi_extra=json_body_docs(PatchWorkerRequest),
)
async def patch_worker(
    request: Request, worker_id: Annotated[str, Path(description="its --worker-id")]
) -> Response:
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), PatchWorkerRequest)
    record = await levels_of(request).runs.hide_worker(
        worker_id, caller_of(request).tenant_id, hidden=wanted.hidden
    )
    return json_response(
        {"worker_id": record.worker_id, "hidden": record.hidden, "updated_at": record.updated_at}
    )
