"""Who is asking, settled before anything of the request's body is read."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import InvalidApiKey, PyocoServerError
from pyoco_server.usecases.authenticate import Authenticate
from pyoco_server.usecases.callers import ANONYMOUS, Caller
from pyoco_server.usecases.ports import ApiKeyStore

AskWho = Callable[[str | None], Awaitable[Caller]]
"""From the header's text to the caller, or to an error."""

NOBODY = Caller(tenant_id="")
"""Who comes without a key where none is needed. No tenant has this name, so nothing of a tenant is shown."""

EVENTS_PATH = "/api/workflow-events"
PROTECTED = frozenset(
    {"/runs", "/workers", "/metrics", "/wheels", "/executions", "/graphs", "/waits", "/api"}
)
"""The first part of the paths for which one needs a key, when keys are needed."""


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
    """Outside of the routes: a stranger's body is not parsed, nor is a stranger told what is wrong in it.

    `app.add_middleware(ApiKeyMiddleware, config=settings, ask_who=lambda request: ...)`; the latter may raise
    NatsUnavailable while there is nobody to ask.
    """

    def __init__(
        self, app: ASGIApp, *, config: NatsBackendConfig, ask_who: Callable[[Request], AskWho]
    ) -> None:
        self._app = app
        self._is_on = config.http_auth_mode != "none"
        self._header = config.http_api_key_header.lower().encode()
        self._ask_who = ask_who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_on and scope["type"] == "http":
            request = Request(scope, receive)
            presented = _taken_out(scope, self._header)
            if _asks_by_itself(scope):
                request.state.ask_caller = partial(self._caller, request, presented)
                await self._app(scope, receive, send)
                return
            try:
                request.state.caller = await self._caller(request, presented)
            except PyocoServerError as error:
                # Some log formats show the variables of a traceback's frames, and here the key is one.
                response = await _answer(request, error.with_traceback(None))
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _caller(self, request: Request, presented: list[bytes]) -> Caller:
        if not is_protected(route_path(request.scope)):
            return NOBODY
        if len(presented) > 1:
            raise InvalidApiKey  # whoever stands in front of us may have checked the other one
        text = presented[0].decode("latin-1").strip() if presented else None
        return await self._ask_who(request)(text)


def _asks_by_itself(scope: Scope) -> bool:
    """The one route that other proofs than a key can open, and that keeps a record of whom it turned away."""
    return scope["method"] == "POST" and route_path(scope) == EVENTS_PATH


def is_protected(path: str) -> bool:
    end = path.find("/", 1)
    return (path if end < 0 else path[:end]) in PROTECTED


def route_path(scope: Scope) -> str:
    """The path as the router sees it: without the prefix under which a proxy mounts the gateway."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _taken_out(scope: Scope, header: bytes) -> list[bytes]:
    """The keys in a request, which nobody after us needs, and so nobody can log or pass on."""
    values = [value for name, value in scope["headers"] if name == header]
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name != header]
    return values


async def _answer(request: Request, error: PyocoServerError) -> Response:
    """By the one table, as if a route had raised it."""
    answer = request.app.exception_handlers[PyocoServerError]
    response: Response = await answer(request, error)
    return response
