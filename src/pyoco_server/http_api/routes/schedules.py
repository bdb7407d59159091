"""Schedules: define, list, pause, resume, trigger, backfill, preview; their ticks."""

from http import HTTPStatus
from typing import Annotated, Any, Self

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, Field, model_validator

from pyoco_server.answers import DeletedId
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.runs.jobs import MAX_TIMESTAMP
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT
from pyoco_server.domain.schedules.model import CatchUp, Definition, Overlap, Target
from pyoco_server.domain.schedules.views import (
    ScheduleBackfill,
    ScheduleList,
    SchedulePreview,
    ScheduleTicks,
    ScheduleTriggered,
    ScheduleView,
    due_ticks,
    schedule_view,
    tick_view,
)
from pyoco_server.errors import (
    InvalidRequest,
    RequestTooLarge,
    ScheduleNotFound,
    TimersUnsupported,
    WorkflowConflict,
)
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import (
    Body,
    RunFields,
    StrictRoute,
    Timestamp,
    json_body_docs,
    parse_json,
    read_body,
)
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import gateway_of, levels_of
from pyoco_server.http_api.lists import Cursor, PageSize, lists_of
from pyoco_server.http_api.middleware import author_of, caller_of, header_of
from pyoco_server.http_api.routes.runs import IDEMPOTENCY_KEY_DOCS
from pyoco_server.http_api.views import json_response

MAX_BODY_BYTES = 300 * 1024
MAX_PREVIEW = 1_000
MAX_REASON = 2_000
_TRIGGER_KEY_DOCS = {
    **IDEMPOTENCY_KEY_DOCS,
    "description": "Requests with the same key start one tick, for 24 hours.",
}

router = APIRouter(tags=["schedules"], route_class=StrictRoute, responses=EVERYWHERE)
lists = lists_of("schedules")


def _tick_time(at: float) -> float:
    """Ticks are counted in milliseconds."""
    if not 0 <= at <= MAX_TIMESTAMP:
        raise ValueError("must be from 1970 to 9999")
    return round(at, 3)


TickTime = Annotated[Timestamp, AfterValidator(_tick_time)]
Count = Annotated[int, Query(alias="n", ge=1, le=MAX_PREVIEW, description="Number of ticks")]


class TargetRequest(RunFields):
    """A flow with the fields of a run, a registered graph, or a template."""

    flow: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    tag: str | None = None
    tags: list[str] | None = None
    graph: str | None = None
    input: dict[str, Any] | None = None
    template: str | None = None
    data: Any = Field(None, description="With a template: params.event of its run")

    @model_validator(mode="after")
    def _starts_at_its_tick(self) -> Self:
        if self.run_at is not None:
            raise ValueError("run_at: a run of a schedule starts at its tick; use delay_sec")
        return self

    def target(self) -> Target:
        timing = self.timing()
        del timing["run_at"]
        own = {name: getattr(self, name) for name in ("flow", "params", "tag", "graph", "input", "template")}
        return Target(**own, **timing, data=self.data, tags=None if self.tags is None else tuple(self.tags))


class ScheduleRequest(Body):
    target: TargetRequest
    cron: str | None = Field(None, description="5 fields, or 6 with seconds in front; or @daily …")
    every_sec: float | None = Field(None, strict=True)
    timezone: str | None = Field(None, description="IANA name. Default: that of the server")
    starts_at: TickTime | None = None
    ends_at: TickTime | None = None
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_window_sec: float = Field(86_400.0, strict=True)
    jitter_sec: float = Field(0.0, strict=True, description="Largest random delay of a tick")
    pause_after_failures: int | None = Field(None, strict=True, description="Failed runs in a row")
    description: str | None = None


class PauseRequest(Body):
    reason: str | None = Field(None, max_length=MAX_REASON)


class BackfillRequest(Body):
    first: TickTime = Field(alias="from")
    to: TickTime
    only_missing: bool = Field(True, description="Leave out ticks that were started")
    dry_run: bool = Field(False, description="Only show the ticks")


# Definitions


@router.post(
    "/schedules/preview",
    summary="Show the next ticks of a schedule that is not stored",
    responses={**answers_like(schema_of(SchedulePreview)), **answers_with(RequestTooLarge)},
    openapi_extra=json_body_docs(ScheduleRequest),
)
@needs(Scope.READ)
async def preview_unsaved(request: Request, count: Count = 10) -> Response:
    definition = await _definition(request)
    ticks = levels_of(request).schedules.manage.preview(definition, count)
    return json_response(SchedulePreview(definition.timezone, due_ticks(ticks)))


@router.put(
    "/schedules/{schedule_id}",
    summary="Create or change a schedule",
    responses={
        **answers_like(schema_of(ScheduleView)),
        **answers_like(schema_of(ScheduleView), 201, "New"),
        **answers_with(RequestTooLarge, TimersUnsupported),
    },
    openapi_extra=json_body_docs(ScheduleRequest),
)
@needs(Scope.DEPLOY, audit="schedule.put")
async def put_schedule(request: Request, schedule_id: str) -> Response:
    """A change takes effect from the next tick. An equal definition changes nothing."""
    definition = await _definition(request)
    schedule, is_new = await levels_of(request).schedules.manage.put(
        schedule_id, definition, author_of(request)
    )
    response = json_response(schedule_view(schedule))
    response.status_code = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return response


@lists.get("/schedules", summary="List schedules by id", responses=answers_like(schema_of(ScheduleList)))
@needs(Scope.READ)
async def list_schedules(
    request: Request, cursor: Cursor = None, limit: PageSize = DEFAULT_LIMIT
) -> Response:
    page = await levels_of(request).schedules.manage.page(cursor, limit, caller_of(request))
    return json_response(ScheduleList([schedule_view(one) for one in page.items], page.next_cursor))


@router.get(
    "/schedules/{schedule_id}",
    summary="Get a schedule",
    responses={**answers_like(schema_of(ScheduleView)), **answers_with(ScheduleNotFound)},
)
@needs(Scope.READ)
async def get_schedule(request: Request, schedule_id: str) -> Response:
    return json_response(
        schedule_view(await levels_of(request).schedules.manage.find(schedule_id, caller_of(request)))
    )


@router.delete(
    "/schedules/{schedule_id}",
    summary="Delete a schedule",
    responses={**answers_like(schema_of(DeletedId)), **answers_with(ScheduleNotFound)},
)
@needs(Scope.DEPLOY, audit="schedule.delete")
async def delete_schedule(request: Request, schedule_id: str) -> Response:
    """Its runs stay."""
    await levels_of(request).schedules.manage.delete(schedule_id, author_of(request))
    return json_response({"id": schedule_id, "deleted": True})


# By hand


@router.post(
    "/schedules/{schedule_id}/pause",
    summary="Pause a schedule",
    responses={**answers_like(schema_of(ScheduleView)), **answers_with(ScheduleNotFound)},
    openapi_extra=json_body_docs(PauseRequest, required=False),
)
@needs(Scope.OPERATE, audit="schedule.pause")
async def pause_schedule(request: Request, schedule_id: str) -> Response:
    body = await read_body(request, MAX_BODY_BYTES)
    wanted = await parse_json(body, PauseRequest) if body.strip() else PauseRequest()
    manage = levels_of(request).schedules.manage
    return json_response(schedule_view(await manage.pause(schedule_id, wanted.reason, author_of(request))))


@router.post(
    "/schedules/{schedule_id}/resume",
    summary="Resume a schedule",
    responses={**answers_like(schema_of(ScheduleView)), **answers_with(ScheduleNotFound)},
)
@needs(Scope.OPERATE, audit="schedule.resume")
async def resume_schedule(request: Request, schedule_id: str) -> Response:
    """Nothing is caught up."""
    manage = levels_of(request).schedules.manage
    return json_response(schedule_view(await manage.resume(schedule_id, author_of(request))))


@router.post(
    "/schedules/{schedule_id}/trigger",
    summary="Start a tick now",
    responses={
        **answers_like(schema_of(ScheduleTriggered)),
        **answers_with(InvalidRequest, ScheduleNotFound, WorkflowConflict),
    },
    openapi_extra={"parameters": [_TRIGGER_KEY_DOCS]},
)
@needs(Scope.OPERATE, audit="schedule.trigger")
async def trigger_schedule(request: Request, schedule_id: str) -> Response:
    """Whatever runs, and whether the schedule is paused."""
    key = header_of(request.scope, b"idempotency-key")
    manage = levels_of(request).schedules.manage
    started, is_replayed = await manage.trigger(schedule_id, author_of(request), key)
    tick = tick_view(started)
    response = json_response(
        ScheduleTriggered(
            schedule_id=schedule_id, due_at=tick.due_at, run_id=tick.run_id, execution_id=tick.execution_id
        )
    )
    if is_replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return response


@router.post(
    "/schedules/{schedule_id}/backfill",
    summary="Start the ticks of a stretch of the past",
    responses={**answers_like(schema_of(ScheduleBackfill)), **answers_with(ScheduleNotFound)},
    openapi_extra=json_body_docs(BackfillRequest),
)
@needs(Scope.OPERATE, audit="schedule.backfill")
async def backfill_schedule(request: Request, schedule_id: str) -> Response:
    """One after the other, unless the schedule allows overlaps."""
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), BackfillRequest)
    started = await levels_of(request).schedules.manage.backfill(
        schedule_id,
        float(wanted.first),
        float(wanted.to),
        author_of(request),
        only_missing=wanted.only_missing,
        dry_run=wanted.dry_run,
    )
    return json_response(ScheduleBackfill(dry_run=wanted.dry_run, items=due_ticks(started)))


# Ticks


@lists.get(
    "/schedules/{schedule_id}/ticks",
    summary="List the ticks of a schedule, newest first",
    responses={**answers_like(schema_of(ScheduleTicks)), **answers_with(ScheduleNotFound)},
)
@needs(Scope.READ)
async def list_ticks(
    request: Request, schedule_id: str, cursor: Cursor = None, limit: PageSize = DEFAULT_LIMIT
) -> Response:
    page = await levels_of(request).schedules.manage.ticks(schedule_id, cursor, limit, caller_of(request))
    return json_response(ScheduleTicks([tick_view(tick) for tick in page.items], page.next_cursor))


@router.get(
    "/schedules/{schedule_id}/preview",
    summary="Show the next ticks of a schedule",
    responses={**answers_like(schema_of(SchedulePreview)), **answers_with(ScheduleNotFound)},
)
@needs(Scope.READ)
async def preview_schedule(request: Request, schedule_id: str, count: Count = 10) -> Response:
    schedule, ticks = await levels_of(request).schedules.manage.upcoming(
        schedule_id, count, caller_of(request)
    )
    return json_response(SchedulePreview(schedule.definition.timezone, due_ticks(ticks)))


async def _definition(request: Request) -> Definition:
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), ScheduleRequest)
    fields = wanted.model_dump(exclude={"target", "timezone"})
    return Definition(
        target=wanted.target.target(),
        timezone=gateway_of(request).levels.timezone if wanted.timezone is None else wanted.timezone,
        **fields,
    )


router.include_router(lists)
