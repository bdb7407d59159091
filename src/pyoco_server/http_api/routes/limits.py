"""Limits: define, list, show their keys, delete."""

from http import HTTPStatus

from fastapi import APIRouter, Request, Response
from pydantic import Field

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.limits.model import Definition, Match, OnFull, Rate
from pyoco_server.domain.limits.views import (
    LimitDeleted,
    LimitKeys,
    LimitList,
    LimitView,
)
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT
from pyoco_server.errors import LimitNotFound, RequestTooLarge
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import Body, StrictRoute, json_body_docs, parse_json, read_body
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of
from pyoco_server.http_api.lists import Cursor, PageSize, lists_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import json_response

MAX_BODY_BYTES = 16 * 1024

router = APIRouter(tags=["limits"], route_class=StrictRoute, responses=EVERYWHERE)
lists = lists_of("limits")


class MatchRequest(Body):
    """The runs that the limit concerns: those with all of these values."""

    flow: str | None = None
    tag: str | None = None
    graph: str | None = Field(None, description="Runs of nodes of this graph's executions")
    tenant: str | None = None


class RateRequest(Body):
    count: int = Field(strict=True, description="Tokens that the bucket gets every per_sec seconds")
    per_sec: float = Field(strict=True)
    burst: int | None = Field(None, strict=True, description="Tokens that it holds. Default: count")


class LimitRequest(Body):
    match: MatchRequest
    key: str | None = Field(
        None,
        description="CEL over flow_name, params, tag, tags, tenant_id; each value has places of its own",
    )
    max_running: int | None = Field(None, strict=True, description="Runs of a key on the queue or running")
    rate: RateRequest | None = None
    on_full: OnFull = OnFull.QUEUE
    max_waiting: int | None = Field(None, strict=True, description="Runs of a key that may wait")
    description: str | None = None

    def definition(self) -> Definition:
        return Definition(
            match=Match(**self.match.model_dump()),
            rate=None if self.rate is None else Rate(**self.rate.model_dump()),
            **self.model_dump(exclude={"match", "rate"}),
        )


@router.put(
    "/limits/{name}",
    summary="Create or change a limit",
    responses={
        **answers_like(schema_of(LimitView)),
        **answers_like(schema_of(LimitView), 201, "New"),
        **answers_with(RequestTooLarge),
    },
    openapi_extra=json_body_docs(LimitRequest),
)
@needs(Scope.DEPLOY, audit="limit.put")
async def put_limit(request: Request, name: str) -> Response:
    """Takes effect at once, also for the runs that wait. Runs that have a place keep it."""
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), LimitRequest)
    manage = levels_of(request).runs.limits.manage
    view, is_new = await manage.put(name, wanted.definition(), author_of(request))
    response = json_response(view)
    response.status_code = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return response


@lists.get("/limits", summary="List limits by name", responses=answers_like(schema_of(LimitList)))
@needs(Scope.READ)
async def list_limits(request: Request, cursor: Cursor = None, limit: PageSize = DEFAULT_LIMIT) -> Response:
    return json_response(await levels_of(request).runs.limits.manage.page(cursor, limit, caller_of(request)))


@router.get(
    "/limits/{name}",
    summary="Get a limit",
    responses={**answers_like(schema_of(LimitView)), **answers_with(LimitNotFound)},
)
@needs(Scope.READ)
async def get_limit(request: Request, name: str) -> Response:
    return json_response(await levels_of(request).runs.limits.manage.find(name, caller_of(request)))


@lists.get(
    "/limits/{name}/keys",
    summary="List the keys of a limit that are in use",
    responses={**answers_like(schema_of(LimitKeys)), **answers_with(LimitNotFound)},
)
@needs(Scope.READ)
async def list_keys(
    request: Request, name: str, cursor: Cursor = None, limit: PageSize = DEFAULT_LIMIT
) -> Response:
    manage = levels_of(request).runs.limits.manage
    return json_response(await manage.keys(name, cursor, limit, caller_of(request)))


@router.delete(
    "/limits/{name}",
    summary="Delete a limit",
    responses={**answers_like(schema_of(LimitDeleted)), **answers_with(LimitNotFound)},
)
@needs(Scope.DEPLOY, audit="limit.delete")
async def delete_limit(request: Request, name: str) -> Response:
    """Runs that wait for it go on at once."""
    await levels_of(request).runs.limits.manage.delete(name, author_of(request))
    return json_response(LimitDeleted(name, deleted=True))


router.include_router(lists)
