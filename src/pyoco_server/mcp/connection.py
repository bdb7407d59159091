"""Calls to the gateway on behalf of an agent: whose key, and how a refusal reaches the agent."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from pyoco_server.http_client import PyocoError
from pyoco_server.http_client.calls import given
from pyoco_server.http_client.client import ClientCalls
from pyoco_server.http_client.transport import LoopSession
from pyoco_server.mcp.answers import shortened

TIMEOUT_SEC = 30.0
MAX_DETAIL = 4_000
_BEARER = "bearer "


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """Where the API is, and the key of an agent that can send none: the one that started this process."""

    url: str
    api_key: str | None = None
    api_key_header: str = "X-API-Key"
    user_agent: str = "pyoco-server-mcp"

    @asynccontextmanager
    async def calls(self, context: Context) -> AsyncIterator[ClientCalls]:
        """Raises ToolError with what the API answered."""
        session = LoopSession(self.url, self._headers(context), TIMEOUT_SEC)
        try:
            yield ClientCalls(session)
        except PyocoError as error:
            raise ToolError(refusal(error)) from error
        finally:
            await session.close()

    def _headers(self, context: Context) -> dict[str, str]:
        """Over HTTP every request has its own key, and never that of this process."""
        received = context.headers
        key = self.api_key if received is None else key_in(received, self.api_key_header)
        request = context.request_context.request
        peer = None if request is None or request.client is None else request.client.host
        return given(
            {"User-Agent": self.user_agent, self.api_key_header: key, "X-Forwarded-For": peer},
        )


def key_in(headers: Mapping[str, str], name: str) -> str | None:
    """That of the API's own header, or a bearer token, which is what many agents can be given."""
    bearer = headers.get("authorization", "")
    is_bearer = bearer[: len(_BEARER)].lower() == _BEARER
    return headers.get(name.lower()) or (bearer[len(_BEARER) :].strip() if is_bearer else None) or None


def refusal(error: PyocoError) -> str:
    """JSON, as the API has it."""
    detail = error.detail if error.detail is not None else str(error)
    text = detail if isinstance(detail, str) else json.dumps(detail, ensure_ascii=False, default=str)
    facts = {"status": error.status, "err_id": error.err_id, "detail": shortened(text, MAX_DETAIL)}
    return json.dumps(given({**facts, "advice": error.advice}), ensure_ascii=False)
