"""Whether the process is there (`/health`), and whether it can do its work (`/ready`)."""

import time
from http import HTTPStatus

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from pyoco_server.http_api import schemas
from pyoco_server.http_api.errors import EVERYWHERE, answers_like
from pyoco_server.http_api.gateway import gateway_of, levels_of, reading_of
from pyoco_server.http_api.metrics import CONTENT_TYPE
from pyoco_server.http_api.middleware import caller_of

router = APIRouter(tags=["operations"], responses=EVERYWHERE)


@router.get("/health", summary="The process is alive", responses=answers_like(schemas.of(schemas.Health)))
async def health(request: Request) -> JSONResponse:
    """Always 200: restarting the gateway does not bring NATS back, so a missing NATS is only told."""
    return JSONResponse({"status": "ok", "nats": "ok" if levels_of(request).is_connected else "unavailable"})


@router.get("/ready", summary="The gateway can take work", responses={503: {"description": "Not yet"}})
async def ready(request: Request) -> JSONResponse:
    """503 while NATS is away or stores nothing, and after a start until the list of runs has been read."""
    gateway = gateway_of(request)
    facts = {
        "nats": "ok" if gateway.levels.is_connected else "unavailable",
        "storage": "ok" if gateway.levels.is_storing else "unavailable",
        "read_model": "ok" if gateway.is_caught_up else "catching up",
    }
    if set(facts.values()) == {"ok"}:
        return JSONResponse({"status": "ready", **facts})
    return JSONResponse({"status": "unavailable", **facts}, status_code=HTTPStatus.SERVICE_UNAVAILABLE)


@router.get("/metrics", summary="Figures for Prometheus", responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """With auth on, runs are counted for the caller's tenant only."""
    gateway = gateway_of(request)
    levels = reading_of(request).levels
    gateway.metrics.watchers.set(levels.watchers)
    text = gateway.metrics.text(
        levels.runs.index.counts(caller_of(request).tenant_id),
        levels.runs.list_workers.alive_count(),
        await levels.runs.count_dead_letters(time.monotonic()),
        levels.executions.index.counts(caller_of(request).tenant_id),
    )
    return Response(text, media_type=CONTENT_TYPE)
