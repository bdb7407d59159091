"""Executions: read them, their events and waits, and watch."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from msgspec import UNSET

from pyoco_server.answers import EventPage, ExecutionPage, ExecutionState, MapItemPage, WaitPage
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.executions.events import Event
from pyoco_server.domain.executions.model import ExecutionStatus, NodeStatus
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT
from pyoco_server.errors import ExecutionNotFound, InvalidListQuery, NodeNotFound
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import StrictRoute
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import Stale, levels_of, reading_of
from pyoco_server.http_api.lists import Cursor, PageSize
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import (
    EventStream,
    event_view,
    execution_view,
    items_of,
    json_response,
    sse_event,
)
from pyoco_server.usecases.ports.gateway import ExecutionFilter

router = APIRouter(tags=["executions"], route_class=StrictRoute, responses=EVERYWHERE)

MAX_EVENTS = 1000
MAX_DIGITS = 15
LastEventId = Annotated[str | None, Header(description="Continue after this event")]


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
    responses={**answers_like(schema_of(ExecutionState)), **answers_with(ExecutionNotFound)},
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
    "/executions/{execution_id}/nodes/{node_id}/items",
    summary="List the items of a map",
    responses={**answers_like(schema_of(MapItemPage)), **answers_with(ExecutionNotFound, NodeNotFound)},
)
@needs(Scope.READ)
async def list_items(
    request: Request,
    execution_id: str,
    node_id: str,
    *,
    status: Annotated[NodeStatus | None, Query(description="Filter by status")] = None,
    cursor: Cursor = None,
    limit: PageSize = DEFAULT_LIMIT,
) -> Response:
    """In order. None before the map has opened."""
    level, caller = levels_of(request).executions, caller_of(request)
    async with level.read.room_for(execution_id, caller):
        state = await level.read.state(execution_id, caller)
        active = level.orchestrate.statuses(state.execution_id)
        items = await level.read.items(state, node_id, _index(cursor), active)
        found = [*islice((item for item in items if status in (None, item.status)), limit + 1)]
        more = str(found[limit - 1].index) if len(found) > limit else None
        return json_response(MapItemPage(found[:limit], more))


def _index(cursor: str | None) -> int:
    if cursor is None:
        return -1
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= MAX_DIGITS):
        raise InvalidListQuery("cursor: not the next_cursor of a page")
    return int(cursor)


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
