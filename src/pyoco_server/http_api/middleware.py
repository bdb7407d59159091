"""Middleware: API keys, foreign web pages, memory for large bodies, a hot path, compressed answers."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus

from fastapi import Request, Response
from msgspec.structs import replace
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyoco_server import tracing
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.audit_trail import origin
from pyoco_server.errors import ForeignRequest, InvalidApiKey, PyocoServerError
from pyoco_server.http_api.errors import answer_any, answer_error
from pyoco_server.usecases.auth import ANONYMOUS, AskWho, Caller
from pyoco_server.usecases.concurrency import ROOM_WAIT_SEC, Room


def caller_of(request: Request) -> Caller:
    """As authenticated by the middleware; with auth off, everybody is the same."""
    caller: Caller = getattr(request.state, "caller", ANONYMOUS)
    return caller


def author_of(request: Request) -> Caller:
    """The caller, with the origin of the request, which is recorded with a change."""
    headers = request.headers
    peer = request.client.host if request.client else None
    return replace(
        caller_of(request),
        origin=origin(peer, headers.get("user-agent"), headers.get("x-forwarded-for")),
    )


def caller_or_refusal(request: Request) -> Caller | PyocoServerError:
    """For the route that also takes other credentials: the caller, or why the API key was refused."""
    found: Caller | PyocoServerError = getattr(request.state, "caller", ANONYMOUS)
    return found


# API keys, checked before the body is read

NOBODY = Caller(tenant_id="", scopes=frozenset())
"""The caller of a route that needs no key. No tenant has this name, so no tenant's data is shown."""

EVENTS_PATH = "/api/workflow-events"
PROTECTED = frozenset(
    {
        "/runs",
        "/flows",
        "/queues",
        "/workers",
        "/metrics",
        "/wheels",
        "/values",
        "/executions",
        "/graphs",
        "/waits",
        "/schedules",
        "/audit",
        "/limits",
        "/secrets",
        "/variables",
        "/dead-letters",
        "/bulk",
        "/stats",
        "/alerts",
        "/channels",
        "/deliveries",
        "/api",
        "/api-keys",
    }
)
"""First segments of the paths that need a key, if auth is on."""


class ApiKeyMiddleware:
    """Before the routes: the body of an unauthenticated request is neither parsed nor validated.

    `app.add_middleware(ApiKeyMiddleware, config=settings, ask_who=lambda request: ...)`; `ask_who` may raise
    NatsUnavailable.
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
                # Some log formats include the local variables of a traceback, and here the key is one.
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
            raise InvalidApiKey  # a proxy may have checked the other one
        text = presented[0].decode("latin-1").strip() if presented else None
        return await self._ask_who(request)(text)


def _accepts_other_credentials(scope: Scope) -> bool:
    """The one route that also takes a token or a signature, and that audits its refusals."""
    return scope["method"] == "POST" and route_path(scope) == EVENTS_PATH


def is_protected(path: str) -> bool:
    end = path.find("/", 1)
    return (path if end < 0 else path[:end]) in PROTECTED


def route_path(scope: Scope) -> str:
    """The path as the router sees it: without the prefix of a proxy."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _taken_out(scope: Scope, header: bytes) -> list[bytes]:
    """Removes the keys from a request, so that nothing behind can log them or pass them on."""
    values = [value for name, value in scope["headers"] if name == header]
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name != header]
    return values


async def _answer(request: Request, error: PyocoServerError) -> Response:
    """As if a route had raised it."""
    answer = request.app.exception_handlers[PyocoServerError]
    response: Response = await answer(request, error)
    return response


# Traces

_UNTRACED = frozenset({"/health", "/metrics"})
"""Polled for ever by machines."""


class TracedRequests:
    """A span for every request, below that of its sender (`traceparent`). Only there if traces are wanted."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if tracing.active is None or scope["type"] != "http" or route_path(scope) in _UNTRACED:
            await self._app(scope, receive, send)
            return
        above = header_of(scope, b"traceparent")
        sender = above and tracing.trace_of_headers(above, header_of(scope, b"tracestate"))
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        with tracing.span(method, {}, kind="SERVER", above=sender or None) as span:
            await self._app(scope, receive, _noting(span, scope, send) if span.is_sampled else send)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def _noting(span: tracing.OpenSpan, scope: Scope, send: Send) -> Send:
    span.attributes |= {
        "http.request.method": span.name,
        "url.path": scope["path"],
        "url.scheme": scope["scheme"],
    }

    async def send_noting(message: Message) -> None:
        if message["type"] == "http.response.start":
            _note_response(span, scope, message["status"])
        await send(message)

    return send_noting


def _note_response(span: tracing.OpenSpan, scope: Scope, status: int) -> None:
    span.attributes["http.response.status_code"] = status
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        span.name = f"{span.name} {route}"
        span.attributes["http.route"] = route
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        span.is_error = True
        span.attributes["error.type"] = str(status)


# Browsers
#
# A web page can send some requests (a form, plain text) to any address, also to a gateway on localhost. These
# are refused. Programs send neither `Origin` nor `Sec-Fetch-Site`, and pass.

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})
_RULES = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""The second only where data is served, and unless the route has its own."""


class BrowserSecurity:
    """Pure ASGI middleware: reads four headers per request."""

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
                headers = message["headers"]
                names = {name for name, _ in headers}
                added = _RULES if protected else _RULES[:1]
                message["headers"] = [*headers, *(rule for rule in added if rule[0] not in names)]
            await send(message)

        reason = _reason_to_refuse(scope, self._hosts) if protected else None
        if reason is None:
            await self._app(scope, receive, send_with_rules)
        else:
            response = await answer_error(Request(scope, receive), ForeignRequest(reason))
            await response(scope, receive, send_with_rules)


def _reason_to_refuse(scope: Scope, hosts: Collection[str]) -> str | None:
    # The first of each name counts, as everywhere; a mapping of the framework decodes all for every look-up.
    headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
    host = headers.get(b"host", "").lower()
    if hosts and _name_of(host) not in hosts:
        return f"{host!r} is not a name of this gateway; PYOCO_ALLOWED_HOSTS lists its names"
    if scope["method"] in _READING:
        return None
    if headers.get(b"sec-fetch-site", "none") not in _OWN_SITES:
        return "the request comes from a web page of another site"
    origin = headers.get(b"origin")
    if origin is not None and origin.lower().partition("://")[2] != host:
        return f"the request comes from a web page of {origin!r}, not of this gateway"
    return None


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header of this name, in lower case. Cheaper than the framework's mapping."""
    return next((value.decode("latin-1") for known, value in scope["headers"] if known == name), None)


def _name_of(host: str) -> str:
    """Without the port and the dot of the root; an IPv6 address keeps its brackets."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).removesuffix(".")


# Memory for large bodies: decoded JSON takes up to 40 times its size
#
# A large body waits, undecoded, until there is room for it; the room is released after the response. After
# `ROOM_WAIT_SEC` the request is refused with 503, and the client should retry. Small bodies do not wait.

SMALL_BYTES = 8 * 1024
ROOM_BYTES = 1024 * 1024
"""Bodies decoded at the same time: one of the largest events, or four of the largest runs."""
_TURN = "pyoco.body_turn"


class _Turn:
    def __init__(self, room: Room) -> None:
        self._room = room
        self.taken = 0

    async def take(self, size: int) -> None:
        self.taken += await self._room.take(size, ROOM_WAIT_SEC)

    def end(self) -> None:
        self._room.give_back(self.taken)


class LargeBodyLimit:
    """Around everything that reads bodies: the room of a request is always released."""

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
    """Waits before a body of `size` bytes is decoded. Called once per request."""
    if size > SMALL_BYTES:
        await request.scope[_TURN].take(size)


# The hot path: the few calls that are made thousands of times, answered without the framework's routing.
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
        if scope["type"] == "http" and not scope["query_string"]:  # the framework checks queries
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
    """Stands in for a route of the framework in the metrics, which count by route."""

    def __init__(self, path: str, endpoint: Endpoint) -> None:
        self.path = path
        self.endpoint = endpoint


# Large JSON answers, compressed
#
# Only an answer that is sent in one piece: a stream of events must not be held back.

MIN_ZIPPED_BYTES = 8 * 1024
"""A page of 20 runs. 25 kB become 3 kB in 0.2 ms; a smaller answer fits into a few packets anyway."""
OFF_LOOP_BYTES = 256 * 1024
"""What takes more than a millisecond or two is done by a thread."""
_LEVEL = 1
"""Level 6 makes it a tenth smaller and takes twice as long."""
_GZIP_WBITS = 31


class ZippedAnswers:
    """Pure ASGI middleware, around the routes of the framework."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or "gzip" not in (header_of(scope, b"accept-encoding") or ""):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_zipped(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _may_be_zipped(message):
                start = message  # the length is known with the body
                return
            if start is not None:
                first, start = start, None
                if not message.get("more_body"):
                    first, message = await _zipped(first, message)
                await send(first)
            await send(message)

        await self._app(scope, receive, send_zipped)


def _may_be_zipped(start: Message) -> bool:
    headers = dict(start["headers"])
    return (
        headers.get(b"content-type", b"").startswith(b"application/json")
        and b"content-encoding" not in headers
        and int(headers.get(b"content-length", 0)) >= MIN_ZIPPED_BYTES
    )


async def _zipped(start: Message, body: Message) -> tuple[Message, Message]:
    plain: bytes = body["body"]
    if len(plain) < OFF_LOOP_BYTES:
        packed = zlib.compress(plain, _LEVEL, wbits=_GZIP_WBITS)
    else:
        packed = await asyncio.to_thread(zlib.compress, plain, _LEVEL, wbits=_GZIP_WBITS)
    kept = [(name, value) for name, value in start["headers"] if name != b"content-length"]
    added = [
        (b"content-length", str(len(packed)).encode()),
        (b"content-encoding", b"gzip"),
        (b"vary", b"Accept-Encoding"),
    ]
    return {**start, "headers": [*kept, *added]}, {**body, "body": packed}
