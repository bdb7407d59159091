"""Graphs of executions."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from pyoco_server.answers import GraphPage, GraphPreview, GraphRecord, GraphSummary
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.derived import shown
from pyoco_server.domain.executions.graph_versions import summary
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT, MAX_LIMIT
from pyoco_server.errors import GraphNotFound, InvalidListQuery, RequestTooLarge
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import StrictRoute, read_body, refusing_with
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import json_response

router = APIRouter(tags=["graphs"], route_class=StrictRoute, responses=EVERYWHERE)
lists = APIRouter(
    tags=["graphs"],
    route_class=refusing_with(InvalidListQuery),
    responses={**EVERYWHERE, **answers_with(InvalidListQuery)},
)

MAX_GRAPH_BYTES = 1024 * 1024
"""YAML can be longer than its stored form."""
MAX_GRAPH_VERSION = 2**53

_GRAPH = {
    "type": "object",
    "required": ["nodes"],
    "properties": {
        "id": {"type": "string", "description": "Same as in the path; optional"},
        "nodes": {"type": "object", "minProperties": 1, "maxProperties": 1000},
        "edges": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["from", "to"],
                "properties": {
                    "from": {"type": "string"},
                    "to": {"type": "string"},
                    "on": {"enum": ["success", "failure"], "default": "success"},
                    "then": {
                        "enum": ["continue", "fail"],
                        "default": "continue",
                        "description": "With on: failure: handle the failure, or fail the execution",
                    },
                    "when": {"type": "string", "description": "Condition in CEL"},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
GRAPH_DOCS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _GRAPH}, "application/yaml": {"schema": _GRAPH}},
    }
}


@router.put(
    "/graphs/{graph_id}",
    summary="Register a graph",
    responses={
        **answers_like(schema_of(GraphSummary)),
        **answers_like(schema_of(GraphSummary), 201, "New version"),
        **answers_with(RequestTooLarge),
    },
    openapi_extra=GRAPH_DOCS,
)
@needs(Scope.DEPLOY, audit="graph.put")
async def put_graph(request: Request, graph_id: str) -> Response:
    """201 with a new version; 200 with the newest one if the definition is unchanged."""
    body = await read_body(request, MAX_GRAPH_BYTES)
    registered = await levels_of(request).executions.graphs.register(
        graph_id, body, request.headers.get("content-type"), author_of(request)
    )
    response = json_response(summary(registered.record))
    response.status_code = HTTPStatus.CREATED if registered.is_new else HTTPStatus.OK
    return response


@router.post(
    "/graphs/preview",
    summary="Show a graph as it would be stored",
    responses={**answers_like(schema_of(GraphPreview)), **answers_with(RequestTooLarge)},
    openapi_extra=GRAPH_DOCS,
)
@needs(Scope.READ)
async def preview_graph(request: Request) -> Response:
    """Nothing is stored. Formatting and defaults do not matter: graphs with the same `sha256` are equal."""
    body = await read_body(request, MAX_GRAPH_BYTES)
    graphs = levels_of(request).executions.graphs
    return json_response(await graphs.preview(body, request.headers.get("content-type")))


@lists.get(
    "/graphs",
    summary="List graphs, newest version each",
    responses=answers_like(schema_of(GraphPage)),
)
@needs(Scope.READ)
async def list_graphs(
    request: Request,
    *,
    cursor: Annotated[str | None, Query(description="next_cursor of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Page size")] = DEFAULT_LIMIT,
) -> Response:
    page = await levels_of(request).executions.graphs.page(cursor, limit, caller_of(request))
    return json_response(shown(GraphPage, page))


@router.get(
    "/graphs/{graph_id}",
    summary="Get a graph",
    responses={**answers_like(schema_of(GraphRecord)), **answers_with(GraphNotFound)},
)
@needs(Scope.READ)
async def get_graph(
    request: Request,
    graph_id: str,
    version: Annotated[
        int | None, Query(ge=1, le=MAX_GRAPH_VERSION, description="Default: the newest")
    ] = None,
) -> Response:
    record = await levels_of(request).executions.graphs.find(graph_id, version, caller_of(request))
    return json_response(record)


router.include_router(lists)
