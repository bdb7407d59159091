"""Who is asking, settled before anything of the request's body is read."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import InvalidApiKey, PyocoServerError
from pyoco_server.usecases.authenticate import Authenticate
from pyoco_server.usecases.callers import ANONYMOUS, Caller
from pyoco_server.usecases.ports import ApiKeyStore

AskWho = Callable[[str | None], Awaitable[Caller]]
"""From the header's text to the caller, or to an error."""

PROTECTED = ("/runs", "/workers", "/metrics", "/wheels", "/executions", "/graphs", "/waits", "/api")


@asynccontextmanager
async def authentication(config: NatsBackendConfig, api_keys: ApiKeyStore) -> AsyncIterator[AskWho]:
    """What the settings ask for, for as long as the backend is open."""
    if config.http_auth_mode == "none":
        yield let_everybody_in
        return
    async with api_keys.follow_keys() as feed:
        yield Authenticate(api_keys, feed, config.auth_pepper, secrets.token_bytes(32))


async def let_everybody_in(_presented: str | None) -> Caller:
    return ANONYMOUS


class ApiKeyMiddleware:
    """Outside of the routes: a stranger's body is not parsed, nor is a stranger told what is wrong in it."""

    def __init__(self, app: ASGIApp, *, header: str, ask_who: Callable[[Request], AskWho]) -> None:
        self._app = app
        self._header = header.lower().encode()
        self._ask_who = ask_who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_protected(_route_path(scope)):
            request = Request(scope, receive)
            try:
                caller = await self._ask_who(request)(_only_value(scope, self._header))
            except PyocoServerError as error:
                response = await _answer(request, error)
                await response(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)


def is_protected(path: str) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in PROTECTED)


def _route_path(scope: Scope) -> str:
    """The path as the router sees it: without the prefix under which a proxy mounts the gateway."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _only_value(scope: Scope, header: bytes) -> str | None:
    values = [value for name, value in scope["headers"] if name == header]
    if len(values) > 1:
        raise InvalidApiKey  # whoever stands in front of us may have checked the other one
    return values[0].decode("latin-1").strip() if values else None


async def _answer(request: Request, error: PyocoServerError) -> Response:
    """By the one table, as if a route had raised it."""
    answer = request.app.exception_handlers[PyocoServerError]
    response: Response = await answer(request, error)
    return response
