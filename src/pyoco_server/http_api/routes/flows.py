"""Flows: list them, set defaults for their runs, pause and resume them."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field
from starlette.convertors import StringConvertor, register_url_convertor

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.flows import FlowDetails, FlowPage, FlowSettings
from pyoco_server.domain.limits.views import FlowPauseView, pause_view
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT, MAX_LIMIT
from pyoco_server.domain.runs.model import Priority
from pyoco_server.errors import FlowNotFound, InvalidListQuery, RequestTooLarge, TimersUnsupported
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import (
    Body,
    RetryFields,
    Seconds,
    StrictRoute,
    Timestamp,
    json_body_docs,
    parse_json,
    read_body,
    refusing_with,
    run_retry,
)
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import Stale, levels_of, reading_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import json_response

MAX_BODY_BYTES = 256 * 1024
MAX_REASON = 2_000

router = APIRouter(tags=["flows"], route_class=StrictRoute, responses=EVERYWHERE)
lists = APIRouter(
    tags=["flows"],
    route_class=refusing_with(InvalidListQuery),
    responses={**EVERYWHERE, **answers_with(InvalidListQuery)},
)


class AnyText(StringConvertor):
    """Names of flows may contain slashes and line breaks. A verb at the end is one of the shorter name."""

    regex = "(?s:.+)(?<!/pause)(?<!/resume)"


register_url_convertor("any_text", AnyText())
FlowName = Annotated[str, Path(description="Name of the flow")]


class FlowRequest(Body):
    """Fields without a value are removed."""

    retry: RetryFields | None = Field(None, description="Retry policy of runs without their own")
    timeout_sec: Seconds | None = Field(None, description="Timeout of each try, of runs without their own")
    start_within_sec: Seconds | None = Field(
        None, description="Fail if no worker has started the run in this time, of runs without their own"
    )
    priority: Priority | None = Field(None, description="Priority of runs without their own")
    params_schema: dict[str, Any] | None = Field(
        None, description="JSON Schema (2020-12) that the params of its runs have to match"
    )
    description: str | None = Field(None, max_length=2000, description="What the flow does")
    owner: str | None = Field(None, max_length=200, description="Who to ask about it")


class PauseFlowRequest(Body):
    reason: str | None = Field(None, max_length=MAX_REASON)
    until: Timestamp | None = Field(None, description="The pause ends by itself: RFC 3339 or Unix seconds")


@lists.get("/flows", summary="List flows", responses=answers_like(schema_of(FlowPage)))
@needs(Scope.READ)
async def list_flows(
    request: Request,
    *,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of flows")] = DEFAULT_LIMIT,
    stale: Stale = None,
) -> Response:
    """Flows that live workers report, that have runs, or that have defaults, by name.

    A worker reports its flows if its resolver can list them: a directory, a module, or a function with
    `list_flows`. With auth on, only runs, schedules and defaults of the caller's tenant count.
    """
    reading = reading_of(request, stale)
    return reading.marked(
        json_response(await reading.levels.flows.read.page(caller_of(request), cursor, limit))
    )


@router.get(
    "/flows/{name:any_text}",
    summary="Get a flow and its defaults",
    responses={**answers_like(schema_of(FlowDetails)), **answers_with(FlowNotFound)},
)
@needs(Scope.READ)
async def get_flow(request: Request, name: FlowName, stale: Stale = None) -> Response:
    reading = reading_of(request, stale)
    return reading.marked(json_response(await reading.levels.flows.read.find(name, caller_of(request))))


@router.put(
    "/flows/{name:any_text}",
    summary="Set the defaults of a flow",
    responses={
        **answers_like(schema_of(FlowDetails)),
        **answers_with(RequestTooLarge, TimersUnsupported),
    },
    openapi_extra=json_body_docs(FlowRequest),
)
@needs(Scope.DEPLOY, audit="flow.put")
async def set_flow(request: Request, name: FlowName) -> Response:
    """Replaces all defaults; `{}` removes them. They apply to runs that are submitted from now on.

    A run's own fields win. Its params are checked against `params_schema`, whatever starts it.
    """
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), FlowRequest)
    fields = {**dict(wanted), "retry": run_retry(wanted.retry)}
    return json_response(
        await levels_of(request).flows.set(FlowSettings(name=name, **fields), author_of(request))
    )


@router.post(
    "/flows/{name:any_text}/pause",
    summary="Pause a flow",
    responses=answers_like(schema_of(FlowPauseView)),
    openapi_extra=json_body_docs(PauseFlowRequest, required=False),
)
@needs(Scope.OPERATE, audit="flow.pause")
async def pause_flow(request: Request, name: FlowName) -> Response:
    """Its runs are accepted and wait. Those on the queue or running go on."""
    body = await read_body(request, MAX_BODY_BYTES)
    wanted = await parse_json(body, PauseFlowRequest) if body.strip() else PauseFlowRequest()
    until = None if wanted.until is None else float(wanted.until)
    manage = levels_of(request).runs.limits.manage
    return json_response(
        pause_view(name, await manage.pause_flow(name, wanted.reason, until, author_of(request)))
    )


@router.post(
    "/flows/{name:any_text}/resume", summary="Resume a flow", responses=answers_like(schema_of(FlowPauseView))
)
@needs(Scope.OPERATE, audit="flow.resume")
async def resume_flow(request: Request, name: FlowName) -> Response:
    """The runs that waited for it go on at once."""
    await levels_of(request).runs.limits.manage.resume_flow(name, author_of(request))
    return json_response(pause_view(name, None))


router.include_router(lists)
