"""Dead letters: list, redrive, discard."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.dead_letters import (
    DeadLetterDiscarded,
    DeadLetterPage,
    DeadLetterView,
    DlqReason,
    LetterFilter,
    Redriven,
)
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT, MAX_LIMIT
from pyoco_server.errors import DeadLetterNotFound, InvalidListQuery, LimitReached, NotRedrivable
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import StrictRoute, query_time, refusing_with
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of, reading_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import json_response

router = APIRouter(tags=["dead letters"], route_class=StrictRoute, responses=EVERYWHERE)
lists = APIRouter(
    tags=["dead letters"],
    route_class=refusing_with(InvalidListQuery),
    responses={**EVERYWHERE, **answers_with(InvalidListQuery)},
)

LetterId = Annotated[str, Path(description="Id of the dead letter")]


@lists.get(
    "/dead-letters",
    summary="List dead letters, newest first",
    responses=answers_like(schema_of(DeadLetterPage)),
)
@needs(Scope.READ)
async def list_dead_letters(
    request: Request,
    *,
    reason: Annotated[DlqReason | None, Query(description="Filter by reason")] = None,
    tag: Annotated[str | None, Query(description="Filter by `tag` or one of `tags`")] = None,
    flow: Annotated[str | None, Query(description="Filter by flow name")] = None,
    since: Annotated[str | None, Query(description="Written then or later: RFC 3339 or Unix seconds")] = None,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Page size")] = DEFAULT_LIMIT,
) -> Response:
    """Jobs that no worker could finish. They are kept for `PYOCO_DLQ_MAX_AGE_SEC`."""
    wanted = LetterFilter(reason=reason, tag=tag, flow=flow, since=query_time("since", since))
    letters = reading_of(request).levels.operations.dead_letters
    return json_response(await letters.page(wanted, cursor, limit, caller_of(request)))


@router.get(
    "/dead-letters/{letter_id}",
    summary="Get a dead letter",
    responses={**answers_like(schema_of(DeadLetterView)), **answers_with(DeadLetterNotFound)},
)
@needs(Scope.READ)
async def get_dead_letter(request: Request, letter_id: LetterId) -> Response:
    letters = reading_of(request).levels.operations.dead_letters
    return json_response(await letters.find(letter_id, caller_of(request)))


@router.post(
    "/dead-letters/{letter_id}/redrive",
    summary="Run the run of a dead letter again",
    responses={
        **answers_like(schema_of(Redriven)),
        **answers_with(DeadLetterNotFound, NotRedrivable, LimitReached),
    },
)
@needs(Scope.OPERATE, audit="dead_letter.redrive")
async def redrive(request: Request, letter_id: LetterId) -> Response:
    """A new run with the same input; a second request returns the same run.

    409 if the job was unreadable, if its run is not stored any more, or if it belongs to an execution.
    """
    run_id = await levels_of(request).operations.redrive(letter_id, author_of(request))
    return json_response(Redriven(run_id))


@router.post(
    "/dead-letters/{letter_id}/discard",
    summary="Remove a dead letter",
    responses={**answers_like(schema_of(DeadLetterDiscarded)), **answers_with(DeadLetterNotFound)},
)
@needs(Scope.OPERATE, audit="dead_letter.discard")
async def discard(request: Request, letter_id: LetterId) -> Response:
    """Its run stays."""
    await levels_of(request).operations.discard(letter_id, author_of(request))
    return json_response(DeadLetterDiscarded(letter_id, discarded=True))


router.include_router(lists)
