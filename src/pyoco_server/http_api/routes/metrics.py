"""Figures for Prometheus."""

import time

from fastapi import APIRouter, Request, Response

from pyoco_server.http_api.callers import caller_of
from pyoco_server.http_api.error_docs import EVERYWHERE
from pyoco_server.http_api.gateway import gateway_of
from pyoco_server.http_api.metrics import CONTENT_TYPE

router = APIRouter(tags=["operations"], responses=EVERYWHERE)


@router.get("/metrics", summary="Figures for Prometheus", responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """With auth on, runs are counted for the caller's tenant only."""
    gateway = gateway_of(request)
    use_cases = gateway.read_model
    gateway.metrics.watchers.set(gateway.hub.count + gateway.execution_hub.count)
    text = gateway.metrics.text(
        use_cases.index.counts(caller_of(request).tenant_id),
        use_cases.list_workers.alive_count(),
        await use_cases.count_dead_letters(time.monotonic()),
        use_cases.executions.index.counts(caller_of(request).tenant_id),
    )
    return Response(text, media_type=CONTENT_TYPE)
