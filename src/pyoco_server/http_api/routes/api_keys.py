"""API keys of the caller's tenant: create, list, revoke."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from pyoco_server.domain.auth import MAX_DESCRIPTION, ApiKeyPage, Grant, IssuedApiKey, ListedApiKey, Scope
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT
from pyoco_server.errors import ApiKeyNotFound, RequestTooLarge
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import Body, StrictRoute, Timestamp, json_body_docs, parse_json, read_body
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of
from pyoco_server.http_api.lists import PageSize, lists_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import json_response

MAX_BODY_BYTES = 8192

router = APIRouter(tags=["api keys"], route_class=StrictRoute, responses=EVERYWHERE)
lists = lists_of("api keys")


class CreateApiKeyRequest(Body):
    scopes: list[Scope] = Field(
        min_length=1, max_length=len(Scope), description="What the key may do; each is independent"
    )
    expires_at: Timestamp | None = Field(
        None, description="From then on the key is refused: RFC 3339 with an offset, or Unix seconds"
    )
    description: str | None = Field(None, max_length=MAX_DESCRIPTION, description="What the key is for")

    def grant(self) -> Grant:
        expires_at = None if self.expires_at is None else float(self.expires_at)
        return Grant(scopes=tuple(self.scopes), expires_at=expires_at, description=self.description)


@router.post(
    "/api-keys",
    summary="Create an API key",
    status_code=201,
    responses={**answers_like(schema_of(IssuedApiKey), 201, "Created"), **answers_with(RequestTooLarge)},
    openapi_extra=json_body_docs(CreateApiKeyRequest),
)
@needs(Scope.ADMIN, audit="api_key.create")
async def create_api_key(request: Request) -> Response:
    """In the caller's tenant. The answer has the only copy of the key."""
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), CreateApiKeyRequest)
    author = author_of(request)
    create = levels_of(request).runs.api_keys.create
    response = json_response(await create(author.tenant_id, wanted.grant(), author))
    response.status_code = HTTPStatus.CREATED
    response.headers["Cache-Control"] = "no-store"
    return response


@lists.get("/api-keys", summary="List API keys, newest first", responses=answers_like(schema_of(ApiKeyPage)))
@needs(Scope.ADMIN)
async def list_api_keys(
    request: Request,
    *,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
    limit: PageSize = DEFAULT_LIMIT,
) -> Response:
    """Of the caller's tenant, including revoked and expired keys."""
    return json_response(await levels_of(request).runs.api_keys.page(cursor, limit, caller_of(request)))


@router.delete(
    "/api-keys/{key_id}",
    summary="Revoke an API key",
    responses={**answers_like(schema_of(ListedApiKey)), **answers_with(ApiKeyNotFound)},
)
@needs(Scope.ADMIN, audit="api_key.revoke")
async def revoke_api_key(
    request: Request, key_id: Annotated[str, Path(description="The part between `pyoco_` and the dot")]
) -> Response:
    """Gateways refuse it within a second. It stays in the list."""
    return json_response(await levels_of(request).runs.api_keys.revoke(key_id, author_of(request)))


router.include_router(lists)
