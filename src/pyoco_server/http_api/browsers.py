"""What browsers are told, and what is refused to pages that are not ours.

Browsers send some requests to any address without asking there first: a form, a text, also to a gateway that
only its own machine can reach. Programs send neither `Origin` nor `Sec-Fetch-Site`; they pass.
"""

from collections.abc import Collection

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import ForeignRequest
from pyoco_server.http_api.auth import is_protected, route_path
from pyoco_server.http_api.error_table import answer_error

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})


class BrowserRules:
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
