"""Lists of runs: pages, and changes as they happen."""

from typing import Annotated, Literal

from fastapi import Query, Request, Response

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT, RunFilter
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.errors import RUN_LIST, answers_like
from pyoco_server.http_api.gateway import Stale, reading_of
from pyoco_server.http_api.lists import Cursor, PageSize, lists_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import EventStream, items_of, json_response, list_events, page_view

router = lists_of("runs")


@router.get("/runs", summary="List runs, newest first", responses=answers_like(RUN_LIST))
@needs(Scope.READ)
async def list_runs(  # noqa: PLR0913 - the filters of the contract
    request: Request,
    *,
    status: Annotated[RunStatus | None, Query(description="Filter by status")] = None,
    flow: Annotated[str | None, Query(description="Filter by flow name")] = None,
    tag: Annotated[str | None, Query(description="Filter by `tag` or one of `tags`")] = None,
    updated_after: Annotated[
        float | None, Query(allow_inf_nan=False, description="Filter by last update, Unix time in seconds")
    ] = None,
    updated_before: Annotated[
        float | None, Query(allow_inf_nan=False, description="Filter by last update, Unix time in seconds")
    ] = None,
    cursor: Cursor = None,
    workflow_yaml_sha256: Annotated[
        str | None, Query(description="Filter by the hash of the flow.yaml")
    ] = None,
    parent_run_id: Annotated[
        str | None, Query(description="Filter by the run whose task submitted them")
    ] = None,
    limit: PageSize = DEFAULT_LIMIT,
    include: Annotated[
        list[Literal["full", "all"]], Query(description="Return whole runs instead of summaries")
    ] = [],  # noqa: B006 - FastAPI's form of a default
    stale: Stale = None,
) -> Response:
    """An array; with `updated_after`, `updated_before`, `cursor` or `workflow_yaml_sha256`: an object.

    The object has `items` and `next_cursor`.
    """
    wanted = RunFilter(
        tenant_id=caller_of(request).tenant_id,
        status=status,
        flow=flow,
        tag=tag,
        updated_after=updated_after,
        updated_before=updated_before,
        workflow_yaml_sha256=workflow_yaml_sha256,
        parent_run_id=parent_run_id,
    )
    reading = reading_of(request, stale)
    page = await reading.levels.runs.list(wanted, cursor, limit, full=bool(include))
    if all(one is None for one in (updated_after, updated_before, cursor, workflow_yaml_sha256)):
        return reading.marked(json_response(items_of(page.items)))
    return reading.marked(json_response(page_view(page.items, page.next_cursor)))


@router.get(
    "/runs/watch",
    summary="Watch the list of runs (server-sent events)",
    responses={200: {"content": {"text/event-stream": {}}}},
)
@needs(Scope.READ)
async def watch_runs(
    request: Request,
    *,
    flow: Annotated[str | None, Query(description="Count only runs of this flow")] = None,
    tag: Annotated[str | None, Query(description="Count only runs with this `tag` or among `tags`")] = None,
    updated_after: Annotated[
        float | None, Query(allow_inf_nan=False, description="Count only runs updated after this Unix time")
    ] = None,
    updated_before: Annotated[
        float | None, Query(allow_inf_nan=False, description="Count only runs updated before this Unix time")
    ] = None,
) -> Response:
    """`runs` events: changed `items`, `removed` run ids, `counts` by status; at least one every 1.5 s.

    Within a filter, up to 10,000 runs of a status are counted; `items` are of all runs.

    The first event has only the counts: read the list after it, then apply `items`.
    `is_partial`: more has changed than the event contains; read the list again.
    """
    caller = caller_of(request)
    counted = RunFilter(
        tenant_id=caller.tenant_id,
        flow=flow,
        tag=tag,
        updated_after=updated_after,
        updated_before=updated_before,
    )
    watching = reading_of(request).levels.runs.watch_list.watching(caller, counted)
    return EventStream(list_events(watching))
