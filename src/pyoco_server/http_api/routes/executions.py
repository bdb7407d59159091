"""Executions: create, command, send messages, re-run."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from pyoco_server.answers import ExecutionState, MessageAccepted
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.executions.commands import (
    AUDIT_ACTIONS,
    COMMANDS,
    ClaimedActor,
    SendMessage,
    read_command,
    snake_case,
)
from pyoco_server.domain.executions.events import Actor, ActorKind
from pyoco_server.errors import (
    CommandRejected,
    ExecutionNotFound,
    GraphNotFound,
    InvalidRequest,
    RequestTooLarge,
)
from pyoco_server.http_api.access import needs, require_scope
from pyoco_server.http_api.bodies import Body, StrictRoute, json_body_docs, parse_json, read_body, validated
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import accepted_message, execution_view, json_response
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.executions.commands import Commanded
from pyoco_server.usecases.executions.create import NewExecution, Rerun

router = APIRouter(tags=["executions"], route_class=StrictRoute, responses=EVERYWHERE)

MAX_INPUT_BYTES = 256 * 1024
MAX_BODY_BYTES = MAX_INPUT_BYTES + 64 * 1024
MAX_CORRELATION_ID = 256
KEY_DOCS: list[dict[str, Any]] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "description": "A request with the same key and body returns the first answer and has no effect.",
    },
    {
        "name": "X-Correlation-Id",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_CORRELATION_ID},
        "description": "Stored with the events that the request causes.",
    },
]
STATE = answers_like(schema_of(ExecutionState))
CREATED = answers_like(schema_of(ExecutionState), 201, "Created")
NODE_VERBS = {
    "ready": "MarkNodeReady",
    "start": "StartNode",
    "progress": "ReportNodeProgress",
    "wait": "PutNodeWaiting",
    "request-resume": "RequestResumeNode",
    "resume": "ResumeNode",
    "succeed": "SucceedNode",
    "fail": "FailNode",
}
EXECUTION_VERBS = {"start": "StartExecution", "cancel": "CancelExecution", "archive": "ArchiveExecution"}


class ActorBody(Body):
    kind: ActorKind
    id: str | None = Field(None, max_length=256)


class CreateExecutionRequest(Body):
    graph_id: str = Field(
        validation_alias=AliasChoices("graph_id", "graphId"), pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )
    graph_version: int | None = Field(
        None, ge=1, validation_alias=AliasChoices("graph_version", "graphVersion")
    )
    input: Any = None
    execution_id: str | None = Field(
        None,
        validation_alias=AliasChoices("execution_id", "executionId"),
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
    )
    start: bool = True
    actor: ActorBody | None = None
    correlation_id: str | None = Field(
        None,
        validation_alias=AliasChoices("correlation_id", "correlationId"),
        max_length=MAX_CORRELATION_ID,
    )


class CommandRequest(BaseModel):
    """`command` and its fields. CreateExecution does not start the execution."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    command: Literal[tuple(COMMANDS)]  # type: ignore[valid-type]


class FieldsRequest(BaseModel):
    """The fields of the command; optional unless the command requires them."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)


class MessageRequest(Body):
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    data: Any = None


class RerunRequest(Body):
    start_from: Literal["failed", "start"] = Field("start", alias="from")


def _actor(caller: Caller) -> Actor:
    """The authenticated sender of a request."""
    return Actor(ActorKind.USER, caller.api_key_id, caller.api_key_id, caller.tenant_id)


def _key(request: Request) -> str | None:
    return request.headers.get("idempotency-key")


def _correlation_id(request: Request) -> str | None:
    found = request.headers.get("x-correlation-id")
    if found is not None and not (1 <= len(found) <= MAX_CORRELATION_ID and found.isprintable()):
        raise InvalidRequest(f"X-Correlation-Id must have 1 to {MAX_CORRELATION_ID} printable characters")
    return found


def _answer(done: Commanded, status: int = 200) -> Response:
    """Without run statuses, so that a repeat returns the same answer."""
    return _marked(json_response(execution_view(done.state, {})), done, status)


def _marked(response: Response, done: Commanded, status: int) -> Response:
    response.status_code = status
    if done.is_replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return response


@router.post(
    "/executions",
    summary="Create and start an execution",
    status_code=201,
    responses={**CREATED, **answers_with(GraphNotFound, CommandRejected, RequestTooLarge)},
    openapi_extra={**json_body_docs(CreateExecutionRequest), "parameters": KEY_DOCS},
)
@needs(Scope.SUBMIT)
async def create_execution(request: Request) -> Response:
    body = await read_body(request, MAX_BODY_BYTES)
    return await _create(request, await parse_json(body, CreateExecutionRequest), len(body))


async def _create(request: Request, wanted: CreateExecutionRequest, body_size: int) -> Response:
    caller = caller_of(request)
    _check_size("input", wanted.input, body_size)
    new = NewExecution(
        graph_id=wanted.graph_id,
        graph_version=wanted.graph_version,
        input=wanted.input,
        given_id=wanted.execution_id,
        start=wanted.start,
        correlation_id=_correlation_id(request) or wanted.correlation_id,
    )
    actor, claim = _actor(caller), wanted.actor
    if claim is not None:
        actor = ClaimedActor(claim.kind, claim.id).sent_by(actor)
    return _answer(await levels_of(request).executions.create(new, caller, actor, _key(request)), 201)


def _check_size(name: str, value: Any, body_size: int) -> None:
    if body_size > MAX_INPUT_BYTES and len(msgspec.json.encode(value)) > MAX_INPUT_BYTES:
        raise RequestTooLarge(f"{name}: more than {MAX_INPUT_BYTES} bytes of JSON")


@router.post(
    "/executions/{execution_id}/commands",
    summary="Send a command",
    responses={
        **STATE,
        **CREATED,
        **answers_with(ExecutionNotFound, GraphNotFound, CommandRejected, RequestTooLarge),
    },
    openapi_extra={**json_body_docs(CommandRequest), "parameters": KEY_DOCS},
)
@needs(Scope.OPERATE, audit=tuple(action for name, action in AUDIT_ACTIONS.items() if name in COMMANDS))
async def post_command(request: Request, execution_id: str) -> Response:
    body = await read_body(request, MAX_BODY_BYTES)
    wanted = await parse_json(body, CommandRequest)
    fields = wanted.model_extra or {}
    if wanted.command == "CreateExecution":
        require_scope(request, Scope.SUBMIT)
        named = {"start": False, **snake_case(fields)}
        if named.setdefault("execution_id", execution_id) != execution_id:
            raise InvalidRequest("execution_id in the body differs from the path")
        return await _create(request, validated(named, CreateExecutionRequest), len(body))
    return await _command(request, execution_id, wanted.command, fields)


@router.post(
    "/executions/{execution_id}/rerun",
    summary="Rerun as a new execution",
    status_code=201,
    responses={**CREATED, **answers_with(ExecutionNotFound, CommandRejected, RequestTooLarge)},
    openapi_extra={**json_body_docs(RerunRequest, required=False), "parameters": KEY_DOCS},
)
@needs(Scope.OPERATE, audit="execution.rerun")
async def rerun_execution(request: Request, execution_id: str) -> Response:
    """`from: failed` reuses the outputs of nodes that succeeded."""
    body = await read_body(request, MAX_BODY_BYTES)
    wanted = await parse_json(body or b"{}", RerunRequest)
    caller = author_of(request)
    done = await levels_of(request).executions.by_hand.rerun(
        Rerun(execution_id, wanted.start_from, _correlation_id(request)),
        caller,
        _actor(caller),
        _key(request),
    )
    return _answer(done, 201)


@router.post(
    "/executions/{execution_id}/messages",
    summary="Send a message to an execution",
    status_code=202,
    responses={
        **answers_like(schema_of(MessageAccepted), 202, "Accepted"),
        **answers_with(ExecutionNotFound, CommandRejected, RequestTooLarge),
    },
    openapi_extra={**json_body_docs(MessageRequest), "parameters": KEY_DOCS},
)
@needs(Scope.OPERATE, audit=AUDIT_ACTIONS["SendMessage"])
async def send_message(request: Request, execution_id: str) -> Response:
    """For a node of type wait with this `message`. One that comes early is kept."""
    body = await read_body(request, MAX_BODY_BYTES)
    wanted = await parse_json(body, MessageRequest)
    _check_size("data", wanted.data, len(body))
    caller = author_of(request)
    command = SendMessage(
        actor=_actor(caller), correlation_id=_correlation_id(request), name=wanted.name, data=wanted.data
    )
    commanded = levels_of(request).executions.by_hand.command
    done = await commanded(execution_id, command, caller, _key(request))
    return _marked(json_response(accepted_message(done.state, wanted.name)), done, 202)


def _command_of_execution(name: str) -> Callable[..., Awaitable[Response]]:
    async def command(request: Request, execution_id: str) -> Response:
        return await _command(request, execution_id, name, await _fields(request))

    return command


def _command_of_node(name: str) -> Callable[..., Awaitable[Response]]:
    async def command(request: Request, execution_id: str, node_id: str) -> Response:
        fields = snake_case(await _fields(request))
        if fields.setdefault("node_id", node_id) != node_id:
            raise InvalidRequest("node_id in the body differs from the path")
        return await _command(request, execution_id, name, fields)

    return command


def _add_command(path: str, name: str, endpoint: Callable[..., Awaitable[Response]]) -> None:
    router.add_api_route(
        path,
        needs(Scope.OPERATE, audit=AUDIT_ACTIONS[name])(endpoint),
        methods=["POST"],
        name=name,
        summary=name,
        responses={**STATE, **answers_with(ExecutionNotFound, CommandRejected, RequestTooLarge)},
        openapi_extra={**json_body_docs(FieldsRequest, required=False), "parameters": KEY_DOCS},
    )


for _verb, _name in EXECUTION_VERBS.items():
    _add_command(f"/executions/{{execution_id}}/{_verb}", _name, _command_of_execution(_name))
for _verb, _name in NODE_VERBS.items():
    _add_command(f"/executions/{{execution_id}}/nodes/{{node_id}}/{_verb}", _name, _command_of_node(_name))


async def _fields(request: Request) -> dict[str, Any]:
    body = await read_body(request, MAX_BODY_BYTES)
    return (await parse_json(body or b"{}", FieldsRequest)).model_extra or {}


async def _command(request: Request, execution_id: str, name: str, fields: dict[str, Any]) -> Response:
    caller = author_of(request)
    values = snake_case(fields)
    for given, meant in (("execution_id", execution_id), ("command", name)):
        if values.pop(given, meant) != meant:
            raise InvalidRequest(f"{given} in the body differs from the path")
    header = _correlation_id(request)
    if header is not None:
        values["correlation_id"] = header
    command = read_command(name, values, _actor(caller))
    commanded = levels_of(request).executions.by_hand.command
    return _answer(await commanded(execution_id, command, caller, _key(request)))
