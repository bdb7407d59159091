"""The queues of tags (`/queues`): list, pause, resume."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import Field

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.queues import Queue, QueueList
from pyoco_server.errors import RequestTooLarge, TimersUnsupported
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import Body, StrictRoute, Timestamp, json_body_docs, parse_json, read_body
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import Stale, levels_of, reading_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import json_response
from pyoco_server.usecases.queues import MAX_REASON

router = APIRouter(tags=["queues"], route_class=StrictRoute, responses=EVERYWHERE)

MAX_BODY_BYTES = 8192
Tag = Annotated[str, Path(description="Tag of the queue")]


class PauseQueueRequest(Body):
    reason: str | None = Field(None, max_length=MAX_REASON, description="Shown with the queue and its runs")
    until: Timestamp | None = Field(
        None, description="When the pause ends by itself: RFC 3339 with an offset, or Unix seconds"
    )


@router.get("/queues", summary="List queues", responses=answers_like(schema_of(QueueList)))
@needs(Scope.READ)
async def list_queues(request: Request, stale: Stale = None) -> Response:
    """Tags with runs that wait, run, or ended in the last minute, with live workers, or with a pause.

    With auth on, only runs of the caller's tenant count.
    """
    reading = reading_of(request, stale)
    queues = await reading.levels.runs.queues.list(caller_of(request).tenant_id)
    return reading.marked(json_response(QueueList(queues)))


@router.post(
    "/queues/{tag}/pause",
    summary="Pause a queue",
    responses={**answers_like(schema_of(Queue)), **answers_with(RequestTooLarge, TimersUnsupported)},
    openapi_extra=json_body_docs(PauseQueueRequest, required=False),
)
@needs(Scope.OPERATE, audit="queue.pause")
async def pause_queue(request: Request, tag: Tag) -> Response:
    """No worker takes jobs of the tag, whoever submitted them. Active runs go on; new runs wait."""
    body = await read_body(request, MAX_BODY_BYTES)
    wanted = await parse_json(body, PauseQueueRequest) if body.strip() else PauseQueueRequest()
    until = None if wanted.until is None else float(wanted.until)
    await levels_of(request).runs.queues.pause.pause(tag, wanted.reason, until, author_of(request))
    return await _queue(request, tag)


@router.post("/queues/{tag}/resume", summary="Resume a queue", responses=answers_like(schema_of(Queue)))
@needs(Scope.OPERATE, audit="queue.resume")
async def resume_queue(request: Request, tag: Tag) -> Response:
    await levels_of(request).runs.queues.pause.resume(tag, author_of(request))
    return await _queue(request, tag)


async def _queue(request: Request, tag: str) -> Response:
    return json_response(await levels_of(request).runs.queues.list.one(tag, caller_of(request).tenant_id))
