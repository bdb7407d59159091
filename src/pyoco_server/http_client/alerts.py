"""`alerts`, `channels` and `deliveries` of a client."""

from collections.abc import Sequence
from typing import Any

from pyoco_server.http_client.answers import (
    AlertDeleted,
    AlertPage,
    AlertView,
    ChannelDeleted,
    ChannelPage,
    ChannelView,
    DeliveryDetail,
    DeliveryPage,
)
from pyoco_server.http_client.calls import Calls, blocking, given, segment


class AsyncAlerts(Calls):
    """Calls about alerts."""

    async def put(
        self,
        /,
        name: str,
        on: Sequence[str],
        channel: str,
        *,
        filter: str | None = None,  # noqa: A002 - the word of the API
        late_after_sec: float | None = None,
        cooldown_sec: float = 0.0,
    ) -> AlertView:
        """Create or change an alert.

        `on`: kinds as `run.failed`. `filter`: CEL. `late_after_sec`: of `run.late`, `wait.overdue` and
        `limit.waiting`. `cooldown_sec`: shortest time between two messages about one flow.
        """
        fields = {"filter": filter, "late_after_sec": late_after_sec, "cooldown_sec": cooldown_sec}
        body = {"on": list(on), "channel": channel, **given(fields)}
        alert: AlertView = await self._call("PUT", _path("alerts", name), json=body)
        return alert

    async def get(self, name: str) -> AlertView:
        alert: AlertView = await self._call("GET", _path("alerts", name))
        return alert

    async def list(self, cursor: str | None = None, limit: int | None = None) -> AlertPage:
        """Newest first: `items` and `next_cursor`."""
        page: AlertPage = await self._call("GET", "/alerts", params=given({"cursor": cursor, "limit": limit}))
        return page

    async def delete(self, name: str) -> AlertDeleted:
        """Messages on their way are still delivered."""
        deleted: AlertDeleted = await self._call("DELETE", _path("alerts", name), is_safe=False)
        return deleted


class Alerts:
    """The same calls as `AsyncAlerts`, each until it is answered."""

    def __init__(self, calls: AsyncAlerts) -> None:
        self._calls = calls

    put = blocking(AsyncAlerts.put)
    get = blocking(AsyncAlerts.get)
    list = blocking(AsyncAlerts.list)
    delete = blocking(AsyncAlerts.delete)


class AsyncChannels(Calls):
    """Calls about channels."""

    async def put(self, /, name: str, type: str, **fields: Any) -> ChannelView:  # noqa: A002 - as in the API
        """Create or change a channel.

        `type`: `webhook`, `slack`, `teams` or `google_chat`, with `url`; or `email`, with `host`, `port`,
        `security`, `from` and `to`. A webhook without a `secret` gets one, which only this answer shows.
        """
        channel: ChannelView = await self._call(
            "PUT", _path("channels", name), is_safe=False, json={"type": type, **fields}
        )
        return channel

    async def get(self, name: str) -> ChannelView:
        """Secrets and paths are masked."""
        channel: ChannelView = await self._call("GET", _path("channels", name))
        return channel

    async def list(self, cursor: str | None = None, limit: int | None = None) -> ChannelPage:
        """Newest first: `items` and `next_cursor`."""
        wanted = given({"cursor": cursor, "limit": limit})
        page: ChannelPage = await self._call("GET", "/channels", params=wanted)
        return page

    async def delete(self, name: str) -> ChannelDeleted:
        """Raises `Conflict` while an alert uses it."""
        deleted: ChannelDeleted = await self._call("DELETE", _path("channels", name), is_safe=False)
        return deleted


class Channels:
    """The same calls as `AsyncChannels`, each until it is answered."""

    def __init__(self, calls: AsyncChannels) -> None:
        self._calls = calls

    put = blocking(AsyncChannels.put)
    get = blocking(AsyncChannels.get)
    list = blocking(AsyncChannels.list)
    delete = blocking(AsyncChannels.delete)


class AsyncDeliveries(Calls):
    """Calls about deliveries."""

    async def list(
        self,
        *,
        alert: str | None = None,
        channel: str | None = None,
        status: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> DeliveryPage:
        """Newest first: `items` and `next_cursor`. `status`: `PENDING`, `DELIVERED` or `FAILED`."""
        wanted = {"alert": alert, "channel": channel, "status": status, "cursor": cursor, "limit": limit}
        page: DeliveryPage = await self._call("GET", "/deliveries", params=given(wanted))
        return page

    async def get(self, delivery_id: str) -> DeliveryDetail:
        """With its `body`."""
        delivery: DeliveryDetail = await self._call("GET", _path("deliveries", delivery_id))
        return delivery

    async def replay(self, delivery_id: str) -> DeliveryDetail:
        """Send it again, with the same ids and body."""
        path = f"{_path('deliveries', delivery_id)}/replay"
        delivery: DeliveryDetail = await self._call("POST", path, is_safe=False)
        return delivery


class Deliveries:
    """The same calls as `AsyncDeliveries`, each until it is answered."""

    def __init__(self, calls: AsyncDeliveries) -> None:
        self._calls = calls

    list = blocking(AsyncDeliveries.list)
    get = blocking(AsyncDeliveries.get)
    replay = blocking(AsyncDeliveries.replay)


def _path(noun: str, name: str) -> str:
    return f"/{noun}/{segment(name)}"
