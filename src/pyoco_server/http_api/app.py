"""`create_app`: the gateway as an ASGI application."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api import errors, pages, schemas
from pyoco_server.http_api.errors import answer_any
from pyoco_server.http_api.gateway import Gateway, OpenBackend, gateway_of
from pyoco_server.http_api.metrics import MeasureRequests, Metrics
from pyoco_server.http_api.middleware import ApiKeyMiddleware, BrowserSecurity, LargeBodyLimit, route_path
from pyoco_server.http_api.routes import (
    event_definitions,
    events,
    executions,
    graphs,
    operations,
    runs,
    schedules,
    wheels,
)
from pyoco_server.logs import configure_unless_configured
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.wiring import check_nats_access, new_run_id, open_gateway_backend
from pyoco_server.wiring.event_level import check_settings, default_timezone
from pyoco_server.wiring.gateway import Setup, Tuning

# The few calls that are made thousands of times, answered without the framework's routing.
#
# FastAPI documents them and would serve them just the same; what stands between its outermost layer and a
# route costs as much as the rest of a small request.

Endpoint = Callable[[Request], Awaitable[Response]]


class HotPath:
    """Inside of authentication: whatever is refused there does not get here."""

    def __init__(self, app: ASGIApp, *, endpoints: Mapping[tuple[str, str], Endpoint]) -> None:
        """By method and path, without parameters."""
        self._app = app
        self._routes = {key: _Route(key[1], endpoint) for key, endpoint in endpoints.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None
        if scope["type"] == "http" and not scope["query_string"]:  # the framework checks what a query says
            route = self._routes.get((scope["method"], route_path(scope)))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await route.endpoint(request)
        except Exception as error:
            answered = await answer_any(request, error)
            if answered is None:
                raise
            response = answered
        await response(scope, receive, send)


class _Route:
    """Tells, as the framework's routes do, who answers: figures are kept by route."""

    def __init__(self, path: str, endpoint: Endpoint) -> None:
        self.path = path
        self.endpoint = endpoint


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """With the shapes of the answers, which routes refer to by name."""
        document = super().openapi()
        document["components"]["schemas"].update(schemas.COMPONENTS)
        return document


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
    opener = open_backend or partial(open_gateway_backend, settings)

    metrics = Metrics()
    setup = Setup(
        config=settings,
        meter=metrics,
        clock=clock,
        monotonic=monotonic,
        new_id=new_id,
        tuning=tuning or Tuning(),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = Gateway(setup, opener, metrics)
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
    errors.install(app)
    app.add_middleware(HotPath, endpoints={("POST", "/runs"): runs.submit_run})
    app.add_middleware(LargeBodyLimit)
    app.add_middleware(ApiKeyMiddleware, config=settings, ask_who=lambda request: gateway_of(request).ask_who)
    app.add_middleware(BrowserSecurity, config=settings)
    app.add_middleware(MeasureRequests, metrics=metrics)
    app.include_router(operations.router)
    app.include_router(runs.lists)
    app.include_router(runs.router)
    app.include_router(operations.workers_router)
    app.include_router(operations.flows_router)
    app.include_router(wheels.router)
    app.include_router(graphs.router)
    app.include_router(executions.router)
    app.include_router(schedules.router)
    app.include_router(events.router)
    app.include_router(events.receiving)
    app.include_router(event_definitions.router)
    app.router.routes.append(pages.api_docs_route(app.openapi))
    app.router.routes.extend(pages.dashboard_routes())
    return app
