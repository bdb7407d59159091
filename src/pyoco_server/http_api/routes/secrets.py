"""Secrets and variables: set, list, read, delete. The value of a secret never comes back."""

from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import Field

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT
from pyoco_server.domain.secrets.model import (
    MAX_VALUE_BYTES,
    Secret,
    SecretDeleted,
    SecretList,
    Variable,
    VariableDeleted,
    VariableList,
)
from pyoco_server.errors import (
    InvalidRequest,
    RequestTooLarge,
    SecretNotFound,
    SecretsKeyMissing,
    VariableNotFound,
)
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import Body, StrictRoute, json_body_docs, parse_json, read_body
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of
from pyoco_server.http_api.lists import Cursor, PageSize, lists_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import json_response

MAX_BODY_BYTES = 6 * MAX_VALUE_BYTES + 1024
"""Escaped as JSON, a value may be six times as long."""

router = APIRouter(tags=["secrets"], route_class=StrictRoute, responses=EVERYWHERE)
lists = lists_of("secrets")


class SecretRequest(Body):
    value: str = Field(
        min_length=1, repr=False, description="At most 32 KiB of UTF-8; stored sealed, never shown again"
    )


class VariableRequest(Body):
    value: Any = Field(description="Any JSON value of at most 32 KiB")


def _check_size(size: int) -> None:
    """Raises InvalidRequest, without the value."""
    if size > MAX_VALUE_BYTES:
        raise InvalidRequest(f"value: has {size:,} bytes; at most {MAX_VALUE_BYTES:,} are allowed")


def _answer(view: msgspec.Struct, *, is_new: bool) -> Response:
    response = json_response(view)
    response.status_code = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return response


@router.put(
    "/secrets/{name}",
    summary="Set a secret",
    responses={
        **answers_like(schema_of(Secret)),
        **answers_like(schema_of(Secret), 201, "New"),
        **answers_with(RequestTooLarge, SecretsKeyMissing),
    },
    openapi_extra=json_body_docs(SecretRequest),
)
@needs(Scope.DEPLOY, audit="secret.put")
async def put_secret(request: Request, name: str) -> Response:
    """Runs that start from now on get the new value. Params name it as `${secrets.NAME}`."""
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), SecretRequest)
    _check_size(len(wanted.value.encode("utf-8", "surrogatepass")))
    view, is_new = await levels_of(request).runs.secrets.put(name, wanted.value, author_of(request))
    return _answer(view, is_new=is_new)


@lists.get("/secrets", summary="List secrets, newest first", responses=answers_like(schema_of(SecretList)))
@needs(Scope.READ)
async def list_secrets(request: Request, cursor: Cursor = None, limit: PageSize = DEFAULT_LIMIT) -> Response:
    """Names and times; no values."""
    return json_response(await levels_of(request).runs.secrets.page(cursor, limit, caller_of(request)))


@router.get(
    "/secrets/{name}",
    summary="Get a secret without its value",
    responses={**answers_like(schema_of(Secret)), **answers_with(SecretNotFound)},
)
@needs(Scope.READ)
async def get_secret(request: Request, name: str) -> Response:
    return json_response(await levels_of(request).runs.secrets.find(name, caller_of(request)))


@router.delete(
    "/secrets/{name}",
    summary="Delete a secret",
    responses={**answers_like(schema_of(SecretDeleted)), **answers_with(SecretNotFound)},
)
@needs(Scope.DEPLOY, audit="secret.delete")
async def delete_secret(request: Request, name: str) -> Response:
    """Runs that name it and start later fail before their first task."""
    await levels_of(request).runs.secrets.delete(name, author_of(request))
    return json_response(SecretDeleted(name, deleted=True))


@router.put(
    "/variables/{name}",
    summary="Set a variable",
    responses={
        **answers_like(schema_of(Variable)),
        **answers_like(schema_of(Variable), 201, "New"),
        **answers_with(RequestTooLarge),
    },
    openapi_extra=json_body_docs(VariableRequest),
)
@needs(Scope.DEPLOY, audit="variable.put")
async def put_variable(request: Request, name: str) -> Response:
    """Runs that start from now on get the new value. Params name it as `${vars.NAME}`."""
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), VariableRequest)
    _check_size(len(msgspec.json.encode(wanted.value)))
    view, is_new = await levels_of(request).runs.variables.put(name, wanted.value, author_of(request))
    return _answer(view, is_new=is_new)


@lists.get(
    "/variables", summary="List variables, newest first", responses=answers_like(schema_of(VariableList))
)
@needs(Scope.READ)
async def list_variables(
    request: Request, cursor: Cursor = None, limit: PageSize = DEFAULT_LIMIT
) -> Response:
    return json_response(await levels_of(request).runs.variables.page(cursor, limit, caller_of(request)))


@router.get(
    "/variables/{name}",
    summary="Get a variable",
    responses={**answers_like(schema_of(Variable)), **answers_with(VariableNotFound)},
)
@needs(Scope.READ)
async def get_variable(request: Request, name: str) -> Response:
    return json_response(await levels_of(request).runs.variables.find(name, caller_of(request)))


@router.delete(
    "/variables/{name}",
    summary="Delete a variable",
    responses={**answers_like(schema_of(VariableDeleted)), **answers_with(VariableNotFound)},
)
@needs(Scope.DEPLOY, audit="variable.delete")
async def delete_variable(request: Request, name: str) -> Response:
    """Runs that name it and start later fail before their first task."""
    await levels_of(request).runs.variables.delete(name, author_of(request))
    return json_response(VariableDeleted(name, deleted=True))


router.include_router(lists)
