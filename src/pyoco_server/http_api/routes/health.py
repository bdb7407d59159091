"""Whether the process is there (`/health`), and whether it can do its work (`/ready`)."""

from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from pyoco_server.http_api.gateway import gateway_of

router = APIRouter(tags=["health"])


@router.get("/health", summary="The process is alive")
async def health(request: Request) -> JSONResponse:
    """Always 200: restarting the gateway does not bring NATS back, so a missing NATS is only told."""
    return JSONResponse({"status": "ok", "nats": "ok" if gateway_of(request).is_ready else "unavailable"})


@router.get("/ready", summary="The gateway can take work")
async def ready(request: Request) -> JSONResponse:
    if gateway_of(request).is_ready:
        return JSONResponse({"status": "ready"})
    return JSONResponse(
        {"status": "unavailable", "nats": "unavailable"}, status_code=HTTPStatus.SERVICE_UNAVAILABLE
    )
