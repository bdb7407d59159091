"""The HTTP edge: a route parses, calls one use case, renders. Errors are raised; one table answers them.

`create_app` is the gateway as an ASGI application.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.types import Lifespan

from pyoco_server import otel
from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api import errors, pages
from pyoco_server.http_api.access import SECURITY_SCHEME, guarded
from pyoco_server.http_api.gateway import Gateway, OpenBackend, gateway_of
from pyoco_server.http_api.metrics import MeasureRequests, Metrics
from pyoco_server.http_api.middleware import (
    ApiKeyMiddleware,
    BrowserSecurity,
    HotPath,
    LargeBodyLimit,
    TracedRequests,
    ZippedAnswers,
)
from pyoco_server.http_api.routes import (
    alerts,
    api_keys,
    bulk,
    dead_letters,
    definitions,
    deletes,
    diagnosis,
    events,
    execution_reads,
    executions,
    flows,
    graphs,
    limits,
    operations,
    queues,
    run_lists,
    runs,
    schedules,
    secrets,
    stats,
    values,
)
from pyoco_server.logs import configure_unless_configured
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.wiring import check_nats_access, new_run_id, open_gateway_backend
from pyoco_server.wiring.event_level import check_settings, default_timezone
from pyoco_server.wiring.gateway import Setup, Tuning

__all__ = ["create_app"]


class _App(FastAPI):
    api_key_header = "X-API-Key"
    requires_key = False

    def openapi(self) -> dict[str, Any]:
        """With the shapes of the answers, which routes refer to by name."""
        document = super().openapi()
        document["components"]["schemas"].update(errors.COMPONENTS)
        key = {"type": "apiKey", "in": "header", "name": self.api_key_header}
        document["components"]["securitySchemes"] = {SECURITY_SCHEME: key}
        if not self.requires_key:
            _allow_anybody(document["paths"])
        return document


def _allow_anybody(paths: dict[str, dict[str, Any]]) -> None:
    """Beside the scope of each operation: a server without API keys asks nobody for one."""
    for methods in paths.values():
        for operation in methods.values():
            if "security" in operation:
                operation["security"] = [operation["security"][0], {}]


def create_app(
    config: NatsBackendConfig | None = None,
    *,
    open_backend: OpenBackend | None = None,
    clock: Clock = time.time,
    monotonic: Clock = time.monotonic,
    new_id: Callable[[], str] = new_run_id,
    tuning: Tuning | None = None,
) -> FastAPI:
    """The gateway. Without arguments it is configured by the environment; tests bring their own parts.

    So are its logs, if the program has none yet (`uvicorn pyoco_server.http_api:create_app --factory`).
    """
    if config is None:
        configure_unless_configured("pyoco-server:http")
    settings = config or NatsBackendConfig.from_env()
    check_settings(settings)
    default_timezone(settings.timezone)
    check_nats_access(settings)
    metrics = Metrics()
    setup = Setup(
        config=settings,
        meter=metrics,
        clock=clock,
        monotonic=monotonic,
        new_id=new_id,
        tuning=tuning or Tuning(),
    )
    app = _App(
        title="pyoco-server",
        version=version("pyoco-server"),
        lifespan=_lifespan(setup, open_backend or partial(open_gateway_backend, settings), metrics),
        docs_url=None,
        redoc_url=None,
        # Costs every request a check, and none of it is set up; figures are at /metrics.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.api_key_header = settings.http_api_key_header
    app.requires_key = settings.http_auth_mode == "api_key"
    errors.install(app)
    _add_middleware(app, settings, metrics)
    _add_routes(app)
    return app


def _lifespan(setup: Setup, opener: OpenBackend, metrics: Metrics) -> Lifespan[FastAPI]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = Gateway(setup, opener, metrics)
        app.state.gateway = gateway
        otel.start("pyoco-gateway")
        try:
            await gateway.start()
            try:
                yield
            finally:
                await gateway.stop()
        finally:
            await asyncio.to_thread(otel.stop)

    return lifespan


def _add_middleware(app: FastAPI, config: NatsBackendConfig, metrics: Metrics) -> None:
    """From the innermost to the outermost."""
    app.add_middleware(ZippedAnswers)
    app.add_middleware(HotPath, endpoints={("POST", "/runs"): guarded(runs.submit_run)})
    app.add_middleware(LargeBodyLimit)
    app.add_middleware(ApiKeyMiddleware, config=config, ask_who=lambda request: gateway_of(request).ask_who)
    app.add_middleware(BrowserSecurity, config=config)
    app.add_middleware(MeasureRequests, metrics=metrics)
    if otel.is_wanted():
        app.add_middleware(TracedRequests)


def _add_routes(app: FastAPI) -> None:
    for router in (
        operations.router,
        run_lists.router,
        runs.router,
        diagnosis.router,
        operations.workers_router,
        operations.audit_router,
        flows.router,
        queues.router,
        operations.wheels_router,
        values.router,
        graphs.router,
        execution_reads.router,
        executions.router,
        schedules.router,
        limits.router,
        secrets.router,
        api_keys.router,
        dead_letters.router,
        bulk.router,
        stats.router,
        alerts.router,
        deletes.router,
        events.router,
        events.receiving,
        definitions.router,
    ):
        app.include_router(router)
    app.router.routes.append(pages.api_docs_route(app.openapi))
    app.router.routes.extend(pages.dashboard_routes())
