"""Wheels: the code that workers get."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from pyoco_server.domain.wheels import Actor, Source, Wheel, WheelAction, WheelEvent, read_tags
from pyoco_server.errors import RequestTooLarge, WheelNotFound, WheelVersionConflict
from pyoco_server.http_api import schemas
from pyoco_server.http_api.bodies import StrictRoute
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with
from pyoco_server.http_api.forms import WHEEL_DOCS, open_wheel_form
from pyoco_server.http_api.gateway import gateway_of, levels_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import iso_time, json_response
from pyoco_server.usecases.wheels import Upload

router = APIRouter(tags=["wheels"], route_class=StrictRoute, responses=EVERYWHERE)

WheelName = Annotated[str, Path(description="its file name")]


@router.get(
    "/wheels", summary="Registered wheels", responses=answers_like(schemas.list_of(schemas.WheelFile))
)
async def list_wheels(request: Request) -> Response:
    wheels = await levels_of(request).runs.wheels.list_wheels()
    return json_response([wheel_view(wheel) for wheel in wheels])


@router.post(
    "/wheels",
    summary="Register a wheel",
    responses={
        **answers_like(schemas.of(schemas.WheelFile)),
        **answers_with(WheelVersionConflict, RequestTooLarge),
    },
    openapi_extra=WHEEL_DOCS,
)
async def upload_wheel(request: Request) -> Response:
    """The version must be newer than every registered one of the same package."""
    max_bytes = gateway_of(request).config.wheel_max_bytes
    async with open_wheel_form(request, max_bytes) as form:
        wheel = await levels_of(request).runs.wheels.upload(
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
    summary="Who registered and removed what",
    responses=answers_like(schemas.list_of(WheelEvent)),
)
async def wheel_history(
    request: Request,
    *,
    limit: Annotated[int, Query(ge=1, le=500, description="the last so many")] = 100,
    wheel_name: Annotated[
        str | None, Query(pattern=r"\.whl$", max_length=255, description="only of this file name")
    ] = None,
    action: Annotated[WheelAction | None, Query(description="only this")] = None,
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
    responses={**answers_like(schemas.of(schemas.WheelDeleted)), **answers_with(WheelNotFound)},
)
async def delete_wheel(request: Request, wheel_name: WheelName) -> Response:
    wheel = await levels_of(request).runs.wheels.delete(wheel_name, _actor(request), _source(request))
    return json_response({"name": wheel.name, "deleted": True})


def wheel_view(wheel: Wheel) -> dict[str, Any]:
    return {
        "name": wheel.name,
        "size_bytes": wheel.size_bytes,
        "bucket": wheel.bucket,
        "nuid": wheel.nuid,
        "modified": wheel.modified,
        "sha256_hex": wheel.sha256_hex,
        "tags": wheel.tags,
        # Older clients read these:
        "sha256_b64": wheel.sha256_b64,
        "digest": None if wheel.sha256_b64 is None else f"SHA-256={wheel.sha256_b64}",
        "mtime": iso_time(wheel.modified),
    }


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
