"""Liveness (`/health`), readiness (`/ready`) and metrics (`/metrics`)."""

import time
from http import HTTPStatus

from fastapi import APIRouter, Request, Response

from pyoco_server.answers import Health, Ready
from pyoco_server.http_api import schemas
from pyoco_server.http_api.errors import EVERYWHERE, answers_like
from pyoco_server.http_api.gateway import gateway_of, levels_of, reading_of
from pyoco_server.http_api.metrics import CONTENT_TYPE
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import json_response

router = APIRouter(tags=["operations"], responses=EVERYWHERE)


@router.get("/health", summary="Liveness", responses=answers_like(schemas.of(Health)))
async def health(request: Request) -> Response:
    """Always 200: restarting the gateway does not bring NATS back, so `nats` only reports its state."""
    return json_response(Health("ok", "ok" if levels_of(request).is_connected else "unavailable"))


@router.get(
    "/ready",
    summary="Readiness",
    responses={**answers_like(schemas.of(Ready)), **answers_like(schemas.of(Ready), 503, "Not ready")},
)
async def ready(request: Request) -> Response:
    """503 while NATS is unavailable or rejects writes, and after a start until the runs have been read."""
    gateway = gateway_of(request)
    facts = {
        "nats": "ok" if gateway.levels.is_connected else "unavailable",
        "storage": "ok" if gateway.levels.is_storing else "unavailable",
        "read_model": "ok" if gateway.is_caught_up else "catching up",
    }
    is_ready = set(facts.values()) == {"ok"}
    response = json_response(Ready("ready" if is_ready else "unavailable", **facts))
    if not is_ready:
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return response


@router.get("/metrics", summary="Prometheus metrics", responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """With auth on, only the runs of the caller's tenant are counted."""
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
