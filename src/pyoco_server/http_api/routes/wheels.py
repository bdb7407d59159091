"""Wheels, the code that workers install: register, list, download, remove."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from pyoco_server.answers import WheelDeleted, WheelEvent, WheelFile
from pyoco_server.domain.wheels import Actor, Source, WheelAction, read_tags
from pyoco_server.errors import RequestTooLarge, WheelNotFound, WheelVersionConflict
from pyoco_server.http_api import schemas
from pyoco_server.http_api.bodies import StrictRoute
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with
from pyoco_server.http_api.forms import WHEEL_DOCS, open_wheel_form
from pyoco_server.http_api.gateway import gateway_of, levels_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import json_response, wheel_view
from pyoco_server.usecases.wheels import Upload

router = APIRouter(tags=["wheels"], route_class=StrictRoute, responses=EVERYWHERE)

WheelName = Annotated[str, Path(description="File name of the wheel")]


@router.get("/wheels", summary="List wheels", responses=answers_like(schemas.list_of(WheelFile)))
async def list_wheels(request: Request) -> Response:
    wheels = await levels_of(request).runs.wheels.list_wheels()
    return json_response([wheel_view(wheel) for wheel in wheels])


@router.post(
    "/wheels",
    summary="Register a wheel",
    responses={
        **answers_like(schemas.of(WheelFile)),
        **answers_with(WheelVersionConflict, RequestTooLarge),
    },
    openapi_extra=WHEEL_DOCS,
)
async def upload_wheel(request: Request) -> Response:
    """The version must be newer than all registered versions of the package."""
    gateway = gateway_of(request)
    async with open_wheel_form(request, gateway.config.wheel_max_bytes) as form:
        wheel = await gateway.levels.runs.wheels.upload(
            Upload(
                name=form.name,
                file=form.file,
                size=form.size,
                tags=read_tags(form.tags),
                replace=form.replace,
                actor=_actor(request),
                source=_source(request),
            )
        )
    return json_response(wheel_view(wheel))


@router.get(
    "/wheels/history",
    summary="List wheel uploads and removals",
    responses=answers_like(schemas.list_of(WheelEvent)),
)
async def wheel_history(
    request: Request,
    *,
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of entries")] = 100,
    wheel_name: Annotated[
        str | None, Query(pattern=r"\.whl$", max_length=255, description="Filter by file name")
    ] = None,
    action: Annotated[WheelAction | None, Query(description="Filter by action")] = None,
) -> Response:
    events = await levels_of(request).runs.wheels.history(wheel_name, action, limit)
    return json_response(events)


@router.get(
    "/wheels/{wheel_name}",
    summary="Download a wheel",
    responses={200: {"content": {"application/octet-stream": {}}}, **answers_with(WheelNotFound)},
)
async def download_wheel(request: Request, wheel_name: WheelName) -> Response:
    wheels = levels_of(request).runs.wheels
    wheel = await wheels.find(wheel_name)
    return StreamingResponse(
        wheels.read(wheel),
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{wheel.name}"',
            "Content-Length": str(wheel.size_bytes),
        },
    )


@router.delete(
    "/wheels/{wheel_name}",
    summary="Remove a wheel",
    responses={**answers_like(schemas.of(WheelDeleted)), **answers_with(WheelNotFound)},
)
async def delete_wheel(request: Request, wheel_name: WheelName) -> Response:
    wheel = await levels_of(request).runs.wheels.delete(wheel_name, _actor(request), _source(request))
    return json_response(WheelDeleted(wheel.name, deleted=True))


def _actor(request: Request) -> Actor:
    caller = caller_of(request)
    return Actor(tenant_id=caller.tenant_id, api_key_id=caller.api_key_id)


def _source(request: Request) -> Source:
    headers = request.headers
    return Source(
        remote_addr=request.client.host if request.client else None,
        x_forwarded_for=headers.get("x-forwarded-for"),
        x_real_ip=headers.get("x-real-ip"),
        user_agent=headers.get("user-agent"),
        host=headers.get("host"),
        scheme=request.url.scheme,
    )
