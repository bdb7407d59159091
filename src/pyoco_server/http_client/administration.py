"""Calls for administrators: API keys and the audit trail."""

from collections.abc import Sequence
from datetime import datetime

from pyoco_server.http_client.answers import ApiKeyPage, AuditPage, IssuedApiKey, ListedApiKey
from pyoco_server.http_client.calls import Calls, blocking, given, segment

Time = float | str | datetime
"""Unix seconds, RFC 3339 with an offset, or a `datetime` with a time zone."""


class AsyncApiKeys(Calls):
    """Calls about the API keys of the caller's tenant. They need the scope `admin`."""

    async def create(
        self, scopes: Sequence[str], *, expires_at: Time | None = None, description: str | None = None
    ) -> IssuedApiKey:
        """`api_key` in the answer is the only copy of the key.

        `scopes`: any of `read`, `submit`, `operate`, `deploy`, `admin`.
        """
        fields = given({"expires_at": _time(expires_at), "description": description})
        body = {"scopes": list(scopes), **fields}
        key: IssuedApiKey = await self._call("POST", "/api-keys", json=body, is_safe=False)
        return key

    async def list(self, cursor: str | None = None, limit: int | None = None) -> ApiKeyPage:
        """Newest first, with revoked and expired keys: `items` and `next_cursor`."""
        wanted = given({"cursor": cursor, "limit": limit})
        page: ApiKeyPage = await self._call("GET", "/api-keys", params=wanted)
        return page

    async def revoke(self, key_id: str) -> ListedApiKey:
        """Gateways refuse it within a second. It stays in the list."""
        key: ListedApiKey = await self._call("DELETE", f"/api-keys/{segment(key_id)}")
        return key


class ApiKeys:
    """The same calls as `AsyncApiKeys`, each until it is answered."""

    def __init__(self, calls: AsyncApiKeys) -> None:
        self._calls = calls

    create = blocking(AsyncApiKeys.create)
    list = blocking(AsyncApiKeys.list)
    revoke = blocking(AsyncApiKeys.revoke)


class AuditCalls(Calls):
    async def list_audit(
        self,
        *,
        action: str | None = None,
        target: str | None = None,
        key_id: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> AuditPage:
        """Who changed what, newest first: `items` and `next_cursor`. Needs the scope `admin`.

        `target`: an id, a kind, or `kind/id`.
        """
        wanted = {
            "action": action,
            "target": target,
            "key_id": key_id,
            "since": _time(since),
            "until": _time(until),
            "cursor": cursor,
            "limit": limit,
        }
        page: AuditPage = await self._call("GET", "/audit", params=given(wanted))
        return page


def _time(value: Time | None) -> float | str | None:
    return value.isoformat() if isinstance(value, datetime) else value
