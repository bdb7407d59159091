"""Whether the process is there (`/health`), and whether it can do its work (`/ready`)."""

from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from pyoco_server.http_api import shapes
from pyoco_server.http_api.error_docs import answers_like
from pyoco_server.http_api.gateway import gateway_of

router = APIRouter(tags=["health"])


@router.get("/health", summary="The process is alive", responses=answers_like(shapes.of(shapes.Health)))
async def health(request: Request) -> JSONResponse:
    """Always 200: restarting the gateway does not bring NATS back, so a missing NATS is only told."""
    return JSONResponse({"status": "ok", "nats": "ok" if gateway_of(request).is_connected else "unavailable"})


@router.get("/ready", summary="The gateway can take work", responses={503: {"description": "Not yet"}})
async def ready(request: Request) -> JSONResponse:
    """503 while NATS is away or stores nothing, and after a start until the list of runs has been read."""
    gateway = gateway_of(request)
    facts = {
        "nats": "ok" if gateway.is_connected else "unavailable",
        "storage": "ok" if gateway.is_storing else "unavailable",
        "read_model": "ok" if gateway.is_caught_up else "catching up",
    }
    if set(facts.values()) == {"ok"}:
        return JSONResponse({"status": "ready", **facts})
    return JSONResponse({"status": "unavailable", **facts}, status_code=HTTPStatus.SERVICE_UNAVAILABLE)
