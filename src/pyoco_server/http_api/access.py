"""Who may call a route, and what the audit trail records of it: declared at the endpoint, in one line.

    @router.put("/limits/{name}", ...)
    @needs(Scope.DEPLOY, audit="limit.put")
    async def put_limit(request: Request, name: str) -> Response: ...

The route class refuses a key without the scope before it reads the query or the body, and OpenAPI shows
both. A route without the line, or one that changes something without an audit action, is refused when the
module is imported. The use case appends the record; tests/gateway/test_audit.py checks each route for it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from msgspec import Struct
from starlette.types import Receive, Scope as AsgiScope, Send

from pyoco_server.domain.auth import Scope
from pyoco_server.errors import MissingScope
from pyoco_server.http_api.middleware import Endpoint, caller_of, caller_or_refusal
from pyoco_server.usecases.auth import Caller

SECURITY_SCHEME = "api_key"
AUDIT_DOCS = "x-audit-actions"
_DECLARED = "__pyoco_access__"
_READING = frozenset({"GET", "HEAD"})
_HARMLESS = (Scope.READ, Scope.SUBMIT)
"""What they allow changes nothing that is there, so it needs no audit record."""

P = ParamSpec("P")
R = TypeVar("R", bound=Awaitable[Response])


class Access(Struct, frozen=True):
    scope: Scope
    audit: tuple[str, ...] = ()
    """Actions of the audit trail, one of which a call is recorded as."""
    other_credentials: bool = False
    """Whether the endpoint decides what a refused key means, because there may be a token or signature."""

    @property
    def docs(self) -> dict[str, Any]:
        """For OpenAPI."""
        security: dict[str, Any] = {"security": [{SECURITY_SCHEME: [self.scope.value]}]}
        return {**security, AUDIT_DOCS: list(self.audit)} if self.audit else security


def needs(
    scope: Scope, *, audit: str | tuple[str, ...] = (), other_credentials: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`audit`: `noun.verb` of the audit trail, or several if the body decides which."""
    access = Access(scope, (audit,) if isinstance(audit, str) else audit, other_credentials)

    def declare(endpoint: Callable[P, R]) -> Callable[P, R]:
        setattr(endpoint, _DECLARED, access)
        return endpoint

    return declare


def access_of(endpoint: Callable[..., Any]) -> Access:
    declared = getattr(endpoint, _DECLARED, None)
    if not isinstance(declared, Access):
        raise TypeError(f"{endpoint.__qualname__}: declare its scope: @needs(Scope.…)")
    return declared


def require_scope(request: Request, scope: Scope) -> None:
    """Raises MissingScope."""
    if scope not in caller_of(request).scopes:
        raise MissingScope(scope.value)


def check_access(request: Request, access: Access) -> None:
    if not access.other_credentials:
        require_scope(request, access.scope)
        return
    caller = caller_or_refusal(request)
    if isinstance(caller, Caller) and access.scope not in caller.scopes:
        request.state.caller = MissingScope(access.scope.value)


def guarded(endpoint: Endpoint) -> Endpoint:
    """For a call that does not go through the routes."""
    access = access_of(endpoint)

    async def allowed(request: Request) -> Response:
        check_access(request, access)
        return await endpoint(request)

    return allowed


class ScopedRoute(APIRoute):
    """A route whose endpoint has declared its scope."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        self.access = access_of(endpoint)
        extra = {**(given.pop("openapi_extra", None) or {}), **self.access.docs}
        super().__init__(path, endpoint, openapi_extra=extra, **given)
        self._methods = frozenset(self.methods or ())
        is_change = not self._methods <= _READING and self.access.scope not in _HARMLESS
        if is_change and not self.access.audit:
            raise TypeError(f"{path}: declare its audit action: @needs(…, audit='noun.verb')")

    async def handle(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["method"] in self._methods:
            check_access(Request(scope), self.access)
        await super().handle(scope, receive, send)
