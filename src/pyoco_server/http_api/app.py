"""`create_app`: the gateway as an ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api import api_page, error_table, shapes
from pyoco_server.http_api.auth import ApiKeyMiddleware
from pyoco_server.http_api.body_turns import BodyTurns
from pyoco_server.http_api.browsers import BrowserRules
from pyoco_server.http_api.event_use_cases import check_settings
from pyoco_server.http_api.gateway import Gateway, OpenBackend, gateway_of
from pyoco_server.http_api.hot_path import HotPath
from pyoco_server.http_api.metrics import MeasureRequests, Metrics
from pyoco_server.http_api.routes import (
    executions,
    graphs,
    health,
    pages,
    runs,
    wheels,
    workers,
    workflow_definitions,
    workflow_events,
)
from pyoco_server.http_api.routes import metrics as metrics_route
from pyoco_server.logs import configure_unless_configured
from pyoco_server.wiring import open_gateway_backend


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """With the shapes of the answers, which routes refer to by name."""
        document = super().openapi()
        document["components"]["schemas"].update(shapes.COMPONENTS)
        return document


def create_app(
    config: NatsBackendConfig | None = None, *, open_backend: OpenBackend | None = None
) -> FastAPI:
    """The gateway. Without arguments it is configured by the environment; tests bring their own backend.

    So are its logs, if the program has none yet (`uvicorn pyoco_server.http_api:create_app --factory`).
    """
    if config is None:
        configure_unless_configured("pyoco-server:http")
    settings = config or NatsBackendConfig.from_env()
    check_settings(settings)
    opener = open_backend or partial(open_gateway_backend, settings)

    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = Gateway(settings, opener, metrics)
        app.state.gateway = gateway
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    app = _App(
        title="pyoco-server",
        version=version("pyoco-server"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # Costs every request a look, and nothing of it is set up; figures are at /metrics.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    error_table.install(app)
    app.add_middleware(HotPath, endpoints={("POST", "/runs"): runs.submit_run})
    app.add_middleware(BodyTurns)
    app.add_middleware(ApiKeyMiddleware, config=settings, ask_who=lambda request: gateway_of(request).ask_who)
    app.add_middleware(BrowserRules, config=settings)
    app.add_middleware(MeasureRequests, metrics=metrics)
    app.include_router(health.router)
    app.include_router(runs.lists)
    app.include_router(runs.router)
    app.include_router(workers.router)
    app.include_router(metrics_route.router)
    app.include_router(wheels.router)
    app.include_router(graphs.router)
    app.include_router(executions.router)
    app.include_router(workflow_events.router)
    app.include_router(workflow_events.receiving)
    app.include_router(workflow_definitions.router)
    app.router.routes.append(api_page.route(app.openapi))
    app.router.routes.extend(pages.routes())
    return app
