"""The HTTP endpoint of a worker: probes and metrics, for those who run it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pyoco_server.cli.http_server import Server, http_options, require_free
from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api.metrics import CONTENT_TYPE, new_registry
from pyoco_server.http_api.worker_metrics import worker_text
from pyoco_server.logs import get_logger
from pyoco_server.worker.worker import Worker

log = get_logger(__name__)


class WorkerProbe:
    """What the endpoint shows. It listens before NATS is there, so there may be no worker yet."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self._registry = new_registry()

    def routes(self) -> list[Route]:
        return [
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
        ]

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        """Ready to take jobs: connected, registered, and not about to stop."""
        if self.worker is not None and self.worker.is_ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "unavailable"}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics(self, _: Request) -> Response:
        text = generate_latest(self._registry)
        if self.worker is not None:
            text += worker_text(self.worker.record())
        return Response(text, media_type=CONTENT_TYPE)


@asynccontextmanager
async def worker_endpoint(config: NatsBackendConfig, probe: WorkerProbe) -> AsyncIterator[None]:
    """Listens while the context is open. Raises InvalidCliInput."""
    host, port = config.worker_http_host, config.worker_http_port
    require_free(host, port, "--http-port")
    server = Server(http_options(Starlette(routes=probe.routes()), config, host=host, port=port))
    serving = asyncio.ensure_future(server.serve())
    log.info("worker endpoint opened", action="worker.http", host=host, port=port)
    try:
        yield
    finally:
        server.should_exit = True
        await serving
