"""Bulk operations: one action on many runs or dead letters."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Self

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field, model_validator

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.bulk import BulkAction, BulkOperation, BulkPage, BulkPreview
from pyoco_server.domain.dead_letters import DlqReason, LetterFilter
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT, RunFilter
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import BulkNotFound, InvalidRequest, RequestTooLarge
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import Body, StrictRoute, Timestamp, json_body_docs, parse_json, read_body
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of, reading_of
from pyoco_server.http_api.lists import PageSize, lists_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import EventStream, json_response, sse_event
from pyoco_server.usecases.bulk.start import BulkRequest

router = APIRouter(tags=["bulk"], route_class=StrictRoute, responses=EVERYWHERE)
lists = lists_of("bulk")

MAX_IDS = 100_000
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_ID = 64

BulkId = Annotated[str, Path(description="Id of the operation")]
ItemId = Annotated[str, Field(min_length=1, max_length=MAX_ID)]


class BulkFilter(Body):
    """The filters of `GET /runs`: `status`, `flow`, `tag`, `updated_…`, `workflow_yaml_sha256`.

    Dead letters, for `redrive`: `reason`, `tag`, `flow`, `since`, as for `GET /dead-letters`.
    """

    status: RunStatus | None = None
    flow: str | None = None
    tag: str | None = None
    updated_after: Timestamp | None = None
    updated_before: Timestamp | None = None
    workflow_yaml_sha256: str | None = None
    reason: DlqReason | None = None
    since: Timestamp | None = None


_OF_RUNS = frozenset({"status", "updated_after", "updated_before", "workflow_yaml_sha256"})
_OF_LETTERS = frozenset({"reason", "since"})


class BulkStartRequest(Body):
    action: BulkAction
    filter: BulkFilter | None = Field(None, description="The items that match when the operation starts")
    ids: list[ItemId] | None = Field(
        None, min_length=1, max_length=MAX_IDS, description="Run ids; for `redrive`, ids of dead letters"
    )
    all: bool = Field(False, strict=True, description="Allows an empty filter")
    dry_run: bool = Field(False, strict=True, description="Only count the items, and show the first 20")
    max_per_sec: float | None = Field(
        None, strict=True, gt=0, le=100_000, allow_inf_nan=False, description="Items per second"
    )

    @model_validator(mode="after")
    def _some_items(self) -> Self:
        """A filter that matches everything has to be meant."""
        if self.ids is not None:
            if self.filter is not None or self.all:
                raise ValueError("give either filter or ids")
            return self
        given = set() if self.filter is None else set(self.filter.model_dump(exclude_none=True))
        if not given and not self.all:
            raise ValueError("filter: it is empty; for all items, add all: true (or give ids)")
        if wrong := sorted(given & (_OF_RUNS if self.action is BulkAction.REDRIVE else _OF_LETTERS)):
            raise ValueError(f"filter: {wrong[0]} is not a filter of {self.action}")
        return self

    def wanted(self, tenant_id: str | None) -> BulkRequest:
        found = self.filter or BulkFilter()
        return BulkRequest(
            action=self.action,
            ids=None if self.ids is None else tuple(self.ids),
            runs=RunFilter(
                tenant_id=tenant_id,
                status=found.status,
                flow=found.flow,
                tag=found.tag,
                updated_after=_seconds(found.updated_after),
                updated_before=_seconds(found.updated_before),
                workflow_yaml_sha256=found.workflow_yaml_sha256,
            ),
            letters=LetterFilter(
                reason=found.reason, tag=found.tag, flow=found.flow, since=_seconds(found.since)
            ),
            max_per_sec=self.max_per_sec,
        )


def _seconds(at: float | str | None) -> float | None:
    return None if at is None else float(at)  # a text was converted when it was checked


@router.post(
    "/bulk",
    summary="Start a bulk operation",
    status_code=HTTPStatus.ACCEPTED,
    responses={
        **answers_like(schema_of(BulkOperation), 202, "Started"),
        **answers_like(schema_of(BulkPreview), 200, "`dry_run`: what it would act on"),
        **answers_with(RequestTooLarge, InvalidRequest),
    },
    openapi_extra=json_body_docs(BulkStartRequest),
)
@needs(Scope.OPERATE, audit="bulk.start")
async def start_bulk(request: Request) -> Response:
    """Acts on every item once, in the background, and goes on at another gateway if its own dies.

    An item fails with the reason in `errors`, e.g. a run to cancel that has ended otherwise.
    """
    body = await read_body(request, MAX_BODY_BYTES, MAX_BODY_BYTES)
    sent, caller = await parse_json(body, BulkStartRequest), author_of(request)
    operations, wanted = reading_of(request).levels.operations, sent.wanted(caller.tenant_id)
    if sent.dry_run:
        return json_response(await operations.bulk_items.preview(wanted, caller))
    response = json_response((await operations.start_bulk(wanted, caller)).view())
    response.status_code = HTTPStatus.ACCEPTED
    return response


@lists.get("/bulk", summary="List bulk operations, newest first", responses=answers_like(schema_of(BulkPage)))
@needs(Scope.READ)
async def list_bulk(
    request: Request,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
    limit: PageSize = DEFAULT_LIMIT,
) -> Response:
    return json_response(levels_of(request).operations.bulk.page(cursor, limit, caller_of(request)))


@router.get(
    "/bulk/{bulk_id}",
    summary="Get a bulk operation",
    responses={**answers_like(schema_of(BulkOperation)), **answers_with(BulkNotFound)},
)
@needs(Scope.READ)
async def get_bulk(request: Request, bulk_id: BulkId) -> Response:
    return json_response(await levels_of(request).operations.bulk.find(bulk_id, caller_of(request)))


@router.get(
    "/bulk/{bulk_id}/watch",
    summary="Watch a bulk operation (server-sent events)",
    responses={200: {"content": {"text/event-stream": {}}}, **answers_with(BulkNotFound)},
)
@needs(Scope.READ)
async def watch_bulk(request: Request, bulk_id: BulkId) -> Response:
    """`operation` events: the operation after each change, and at least every 1.5 s; ends with it."""
    bulk, caller = levels_of(request).operations.bulk, caller_of(request)
    await bulk.record(bulk_id, caller)
    return EventStream(_events(bulk.watching(bulk_id, caller)))


@asynccontextmanager
async def _events(
    watching: AbstractAsyncContextManager[AsyncIterator[BulkOperation]],
) -> AsyncIterator[AsyncIterator[bytes]]:
    async with watching as operations:
        yield (sse_event("operation", operation) async for operation in operations)


@router.post(
    "/bulk/{bulk_id}/cancel",
    summary="Cancel a bulk operation",
    responses={**answers_like(schema_of(BulkOperation)), **answers_with(BulkNotFound)},
)
@needs(Scope.OPERATE, audit="bulk.cancel")
async def cancel_bulk(request: Request, bulk_id: BulkId) -> Response:
    """What is under way is finished and counted; the rest is left as it is."""
    return json_response(await levels_of(request).operations.cancel_bulk(bulk_id, author_of(request)))


router.include_router(lists)
