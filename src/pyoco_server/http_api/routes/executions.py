"""Executions: create, command, read, watch, re-run, and the inbox of waits."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from msgspec import UNSET
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from pyoco_server.answers import EventPage, ExecutionPage, ExecutionState, WaitPage
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.executions.commands import (
    AUDIT_ACTIONS,
    COMMANDS,
    ClaimedActor,
    read_command,
    snake_case,
)
from pyoco_server.domain.executions.events import Actor, ActorKind, Event
from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT, MAX_LIMIT
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
from pyoco_server.http_api.gateway import Stale, levels_of, reading_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import (
    EventStream,
    event_view,
    execution_view,
    items_of,
    json_response,
    sse_event,
)
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.executions.commands import Commanded
from pyoco_server.usecases.executions.create import NewExecution
from pyoco_server.usecases.ports.gateway import ExecutionFilter

router = APIRouter(tags=["executions"], route_class=StrictRoute, responses=EVERYWHERE)

MAX_INPUT_BYTES = 256 * 1024
MAX_BODY_BYTES = MAX_INPUT_BYTES + 64 * 1024
MAX_EVENTS = 1000
MAX_CORRELATION_ID = 256
MAX_DIGITS = 15
LastEventId = Annotated[str | None, Header(description="Continue after this event")]
Cursor = Annotated[str | None, Query(description="next_cursor of the previous page")]
PageSize = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Page size")]
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
    response = json_response(execution_view(done.state, {}))
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


@router.get(
    "/executions",
    summary="List executions, newest first",
    responses=answers_like(schema_of(ExecutionPage)),
)
@needs(Scope.READ)
async def list_executions(  # noqa: PLR0913 - the filters of the contract
    request: Request,
    *,
    status: Annotated[ExecutionStatus | None, Query(description="Filter by status")] = None,
    graph_id: Annotated[str | None, Query(description="Filter by graph")] = None,
    archived: Annotated[bool, Query(description="Archived executions instead of the others")] = False,
    include: Annotated[
        list[Literal["counts"]], Query(description="Include the number of executions by status")
    ] = [],  # noqa: B006
    cursor: Cursor = None,
    limit: PageSize = DEFAULT_LIMIT,
    stale: Stale = None,
) -> Response:
    wanted = ExecutionFilter(
        tenant_id=caller_of(request).tenant_id, status=status, graph_id=graph_id, archived=archived
    )
    reading = reading_of(request, stale)
    read = reading.levels.executions.read
    page = read.page(wanted, cursor, limit)
    counts: Any = read.counts(wanted) if "counts" in include else UNSET
    return reading.marked(json_response(ExecutionPage(items_of(page.items), page.next_cursor, counts)))


@router.get(
    "/waits",
    summary="List waiting nodes, oldest first",
    responses=answers_like(schema_of(WaitPage)),
)
@needs(Scope.READ)
async def list_waits(
    request: Request,
    *,
    cursor: Cursor = None,
    limit: PageSize = DEFAULT_LIMIT,
    stale: Stale = None,
) -> Response:
    reading = reading_of(request, stale)
    read = reading.levels.executions.read
    page = read.waits(caller_of(request).tenant_id, cursor, limit)
    return reading.marked(json_response(WaitPage(items_of(page.items), page.next_cursor)))


@router.get(
    "/executions/{execution_id}",
    summary="Get an execution",
    responses={**STATE, **answers_with(ExecutionNotFound)},
)
@needs(Scope.READ)
async def get_execution(
    request: Request,
    execution_id: str,
    *,
    at_sequence: Annotated[
        int | None, Query(ge=1, description="State after this event; default: the current state")
    ] = None,
    include: Annotated[list[Literal["edges"]], Query(description="Include the state of the edges")] = [],  # noqa: B006
) -> Response:
    level, caller = levels_of(request).executions, caller_of(request)
    async with level.read.room_for(execution_id, caller):
        if at_sequence is None:
            state = await level.read.state(execution_id, caller)
            run_statuses = level.orchestrate.statuses(state.execution_id)
        else:
            state, run_statuses = await level.read.state_at(execution_id, at_sequence, caller), {}
        edges = await level.read.edges(state) if "edges" in include else UNSET
        return json_response(execution_view(state, run_statuses, edges))


@router.get(
    "/executions/{execution_id}/events",
    summary="Get the event log of an execution",
    responses={**answers_like(schema_of(EventPage)), **answers_with(ExecutionNotFound)},
)
@needs(Scope.READ)
async def list_events(
    request: Request,
    execution_id: str,
    *,
    after: Annotated[int, Query(ge=0, description="Sequence of the last event already read")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS, description="Page size")] = MAX_EVENTS,
) -> Response:
    """`next_cursor` is the `after` of the next page; null at the end of the log.

    A page with large values has fewer events than `limit`.
    """
    read, caller = levels_of(request).executions.read, caller_of(request)
    async with read.room_for(execution_id, caller):
        page = await read.events(execution_id, caller, after, limit)
        more = str(page.events[-1].sequence) if page.has_more else None
        return json_response(EventPage([event_view(event, execution_id) for event in page.events], more))


@router.get(
    "/executions/{execution_id}/watch",
    summary="Watch an execution (server-sent events)",
    responses={200: {"content": {"text/event-stream": {}}}, **answers_with(ExecutionNotFound)},
)
@needs(Scope.READ)
async def watch_execution(request: Request, execution_id: str, last_event_id: LastEventId = None) -> Response:
    """One message per event (id: its sequence) and `heartbeat` events; ends with the execution."""
    read = levels_of(request).executions.read
    # Before the stream starts: after that, a 404 is no longer possible.
    async with read.room_for(execution_id, caller_of(request)):
        stored_id = (await read.state(execution_id, caller_of(request))).execution_id
    watching = read.watching(stored_id, _sequence(last_event_id or ""))
    return EventStream(_messages(watching, execution_id))


def _sequence(text: str) -> int:
    """An invalid Last-Event-ID counts as none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else 0


@asynccontextmanager
async def _messages(
    watching: AbstractAsyncContextManager[AsyncIterator[Event | None]], execution_id: str
) -> AsyncIterator[AsyncIterator[bytes]]:
    async with watching as events, aclosing(_texts(events, execution_id)) as texts:
        yield texts


async def _texts(events: AsyncIterator[Event | None], execution_id: str) -> AsyncGenerator[bytes, None]:
    async for event in events:
        if event is None:
            yield sse_event("heartbeat", {})
        else:
            yield sse_event(event.type, event_view(event, execution_id), str(event.sequence))


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
@needs(Scope.OPERATE, audit=tuple(AUDIT_ACTIONS.values()))
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
        execution_id,
        wanted.start_from,
        caller,
        _actor(caller),
        _key(request),
        _correlation_id(request),
    )
    return _answer(done, 201)


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
