"""The few calls that are made thousands of times, answered without the framework's routing.

FastAPI documents them and would serve them just the same; what stands between its outermost layer and a
route costs as much as the rest of a small request.
"""

from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pyoco_server.http_api.auth import route_path
from pyoco_server.http_api.error_table import answer_any

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
