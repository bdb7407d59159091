"""Deletes of what has ended: runs, executions, records of workers."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from pyoco_server.answers import ExecutionDeleted, RunDeleted, WorkerDeleted
from pyoco_server.domain.auth import Scope
from pyoco_server.errors import ExecutionNotFound, NotDeletable, RunNotFound, WorkerNotFound
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import StrictRoute
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of, reading_of
from pyoco_server.http_api.middleware import author_of
from pyoco_server.http_api.routes.runs import RunId
from pyoco_server.http_api.views import json_response

router = APIRouter(route_class=StrictRoute, responses={**EVERYWHERE, **answers_with(NotDeletable)})


@router.delete(
    "/runs/{run_id}",
    summary="Delete a run that has ended",
    tags=["runs"],
    responses={**answers_like(schema_of(RunDeleted)), **answers_with(RunNotFound)},
)
@needs(Scope.OPERATE, audit="run.delete")
async def delete_run(request: Request, run_id: RunId) -> Response:
    """With its logs. It does not run again. 409 until it has ended."""
    await levels_of(request).operations.delete_run(run_id, author_of(request))
    return json_response(RunDeleted(run_id, deleted=True))


@router.delete(
    "/executions/{execution_id}",
    summary="Delete an archived execution",
    tags=["executions"],
    responses={**answers_like(schema_of(ExecutionDeleted)), **answers_with(ExecutionNotFound)},
)
@needs(Scope.OPERATE, audit="execution.delete")
async def delete_execution(
    request: Request, execution_id: Annotated[str, Path(description="Execution id")]
) -> Response:
    """With its events; runs of its nodes stay. Its id stays taken. 409 until it is archived."""
    await levels_of(request).executions.delete(execution_id, author_of(request))
    return json_response(ExecutionDeleted(execution_id, deleted=True))


@router.delete(
    "/workers/{worker_id}",
    summary="Delete the record of a worker that is gone",
    tags=["workers"],
    responses={**answers_like(schema_of(WorkerDeleted)), **answers_with(WorkerNotFound)},
)
@needs(Scope.OPERATE, audit="worker.delete")
async def delete_worker(
    request: Request, worker_id: Annotated[str, Path(description="Worker id (--worker-id)")]
) -> Response:
    """409 while the worker is alive. One that comes back is listed again."""
    await reading_of(request).levels.operations.delete_worker(worker_id, author_of(request))
    return json_response(WorkerDeleted(worker_id, deleted=True))
