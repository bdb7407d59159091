"""Who sent a request."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import ForeignRequest, GatewayOverloaded, InvalidApiKey, PyocoServerError
from pyoco_server.http_api.errors import answer_error
from pyoco_server.usecases.auth import ANONYMOUS, Authenticate, Caller
from pyoco_server.usecases.ports.runs import ApiKeyStore


def caller_of(request: Request) -> Caller:
    """As the auth middleware found out; with auth off, everybody is the same."""
    caller: Caller = getattr(request.state, "caller", ANONYMOUS)
    return caller


def caller_or_refusal(request: Request) -> Caller | PyocoServerError:
    """For the route that also takes other credentials: the caller, or why the API key was refused."""
    found: Caller | PyocoServerError = getattr(request.state, "caller", ANONYMOUS)
    return found


# Who is asking, settled before anything of the request's body is read.

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
            try:
                request.state.caller = await self._caller(request, presented)
            except PyocoServerError as error:
                # Some log formats show the variables of a traceback's frames, and here the key is one.
                refusal = error.with_traceback(None)
                if not _accepts_other_credentials(scope):
                    response = await _answer(request, refusal)
                    await response(scope, receive, send)
                    return
                request.state.caller = refusal
        await self._app(scope, receive, send)

    async def _caller(self, request: Request, presented: list[bytes]) -> Caller:
        if not is_protected(route_path(request.scope)):
            return NOBODY
        if len(presented) > 1:
            raise InvalidApiKey  # whoever stands in front of us may have checked the other one
        text = presented[0].decode("latin-1").strip() if presented else None
        return await self._ask_who(request)(text)


def _accepts_other_credentials(scope: Scope) -> bool:
    """The one route that also takes a token or a signature, and that audits its refusals."""
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


# What browsers are told, and what is refused to pages that are not ours.
#
# Browsers send some requests to any address without asking there first: a form, a text, also to a gateway
# that
# only its own machine can reach. Programs send neither `Origin` nor `Sec-Fetch-Site`; they pass.

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})


class BrowserSecurity:
    """Pure ASGI: costs a request a look at four headers."""

    def __init__(self, app: ASGIApp, *, config: NatsBackendConfig) -> None:
        self._app = app
        self._hosts = config.hosts_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        protected = is_protected(route_path(scope))

        async def send_with_rules(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                if protected:
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        reason = _reason_to_refuse(scope, self._hosts) if protected else None
        if reason is None:
            await self._app(scope, receive, send_with_rules)
        else:
            response = await answer_error(Request(scope, receive), ForeignRequest(reason))
            await response(scope, receive, send_with_rules)


def _reason_to_refuse(scope: Scope, hosts: Collection[str]) -> str | None:
    headers = Headers(scope=scope)
    host = headers.get("host", "").lower()
    if hosts and _name_of(host) not in hosts:
        return f"this gateway is not {host!r}; names that it answers to are in PYOCO_ALLOWED_HOSTS"
    if scope["method"] in _READING:
        return None
    if headers.get("sec-fetch-site", "none") not in _OWN_SITES:
        return "the request comes from a page of another site"
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host:
        return f"the request comes from a page of {origin!r}, not of this gateway"
    return None


def _name_of(host: str) -> str:
    """Without the port and the dot of the root; an IPv6 address keeps its brackets."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).removesuffix(".")


# Turns for large bodies: JSON takes up to 40 times its size in memory once it is decoded.
#
# A request with a large body waits until there is room for it, and leaves the room when it is answered.
# After a
# while it is refused with 503: the client should retry. Small bodies pass. What waits is bytes as they
# came.

SMALL_BYTES = 8 * 1024
ROOM_BYTES = 1024 * 1024
"""Of bodies that are decoded at the same time: one of the largest events, or four of the largest runs."""
WAIT_SEC = 30.0
"""Longer than any request to NATS takes, so that a NATS that is away does not refuse what it would accept."""
_TURN = "pyoco.body_turn"


class Room:
    """So many bytes, given out in the order of asking. Whoever wants more than all waits for all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, wanted: int) -> int:
        """How much was taken, to be given back."""
        size = min(wanted, self._size)
        if not self._waiting and size <= self._left:
            self._left -= size
            return size
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # given, and nobody there to use it
                self.give_back(size)
            raise
        return size

    def give_back(self, size: int) -> None:
        self._left += size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # cancelled while it waited
                self._waiting.popleft()
                continue
            if wanted > self._left:
                return
            self._waiting.popleft()
            self._left -= wanted
            turn.set_result(None)


class _Turn:
    def __init__(self, room: Room) -> None:
        self._room = room
        self.taken = 0

    async def take(self, size: int) -> None:
        try:
            async with asyncio.timeout(WAIT_SEC):
                self.taken += await self._room.take(size)
        except TimeoutError as error:
            raise GatewayOverloaded(f"too many large requests: no room in {WAIT_SEC:.0f} s") from error

    def end(self) -> None:
        self._room.give_back(self.taken)


class LargeBodyLimit:
    """Around everything that reads bodies: whatever becomes of a request, its room is given back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._room = Room(ROOM_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        turn = scope[_TURN] = _Turn(self._room)
        try:
            await self._app(scope, receive, send)
        finally:
            if turn.taken:
                turn.end()


async def wait_for_turn(request: Request, size: int) -> None:
    """Before a body of so many bytes is decoded. A request asks once."""
    if size > SMALL_BYTES:
        await request.scope[_TURN].take(size)
