"""Alerts, channels and deliveries in memory, from feeds."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from pyoco_server.domain.alerts.channels import Channel, channel_key
from pyoco_server.domain.alerts.deliveries import Delivery
from pyoco_server.domain.alerts.happenings import Happening, concerns
from pyoco_server.domain.alerts.model import Alert, AlertKind, AlertRecord, alert_key
from pyoco_server.domain.cel.expressions import ConditionError
from pyoco_server.domain.cel.values import ConditionFailed
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.stores import Clock, Feed, FeedBatch, Revision, Versioned

log = get_logger(__name__)

START_PATIENCE_SEC = 5.0
"""How long a list waits for its feed after a start."""


async def _within_patience(event: asyncio.Event, what: str) -> None:
    try:
        async with asyncio.timeout(START_PATIENCE_SEC):
            await event.wait()
    except TimeoutError:
        raise NatsUnavailable(f"nats unavailable: {what} are not read yet") from None


class FollowAlerts:
    """All alerts and channels. There are few: each is somebody's definition."""

    def __init__(self, feed: Feed[AlertRecord]) -> None:
        self._feed = feed
        self._known: dict[str, Versioned[AlertRecord]] = {}
        self._by_kind: dict[AlertKind, list[Alert]] = {}
        self._caught_up = asyncio.Event()
        self._told: set[tuple[str, float]] = set()
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_caught_up(self) -> bool:
        return self._caught_up.is_set()

    async def wait(self) -> None:
        """Raises NatsUnavailable."""
        await _within_patience(self._caught_up, "alerts")

    async def caught_up(self) -> None:
        await self._caught_up.wait()

    def on_news(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            self._take(batch)
            await asyncio.sleep(0)

    @property
    def has_channels(self) -> bool:
        return any(isinstance(one.value, Channel) for one in self._known.values())

    def kinds(self) -> set[AlertKind]:
        return set(self._by_kind)

    def of_kind(self, kind: AlertKind) -> list[Alert]:
        return self._by_kind.get(kind, [])

    def concerned(self, happening: Happening) -> list[Alert]:
        return [alert for alert in self.of_kind(happening.kind) if self.concerns(alert, happening)]

    def concerns(self, alert: Alert, happening: Happening) -> bool:
        """A filter that has no result lets nothing pass, and that is logged, once for each definition."""
        try:
            return concerns(alert, happening)
        except (ConditionError, ConditionFailed) as error:
            if (alert.store_key, alert.updated_at) not in self._told:
                self._told.add((alert.store_key, alert.updated_at))
                log.warning(
                    "the filter of an alert has no result; no message is sent",
                    action="alert.filter_failed",
                    alert=alert.name,
                    error=str(error),
                )
            return False

    def alerts(self, tenant_id: str | None) -> list[Alert]:
        found = (one.value for one in self._known.values() if isinstance(one.value, Alert))
        return [alert for alert in found if alert.tenant_id == tenant_id]

    def alert(self, tenant_id: str | None, name: str) -> Alert | None:
        found = self._known.get(alert_key(tenant_id, name))
        return found.value if found is not None and isinstance(found.value, Alert) else None

    def channels(self, tenant_id: str | None) -> list[Channel]:
        found = (one.value for one in self._known.values() if isinstance(one.value, Channel))
        return [channel for channel in found if channel.tenant_id == tenant_id]

    def channel(self, tenant_id: str | None, name: str) -> Channel | None:
        found = self._known.get(channel_key(tenant_id, name))
        return found.value if found is not None and isinstance(found.value, Channel) else None

    async def listed_alerts(self, tenant_id: str | None) -> list[Alert]:
        """Raises NatsUnavailable."""
        await self.wait()
        return self.alerts(tenant_id)

    async def listed_channels(self, tenant_id: str | None) -> list[Channel]:
        """Raises NatsUnavailable."""
        await self.wait()
        return self.channels(tenant_id)

    def wrote(self, key: str, found: Versioned[Any] | None) -> None:
        """A write of this gateway, before the feed shows it."""
        if found is None:
            self.forget(key)
        else:
            self.note(key, found)

    def note(self, key: str, found: Versioned[AlertRecord]) -> None:
        known = self._known.get(key)
        if known is None or known.revision < found.revision:
            self._known[key] = found
            self._sort()

    def forget(self, key: str, revision: int = 1 << 62) -> None:
        known = self._known.get(key)
        if known is not None and known.revision < revision:
            del self._known[key]
            self._sort()

    def _take(self, batch: FeedBatch[AlertRecord]) -> None:
        if batch.is_reset:
            self._known.clear()
        for change in batch.changes:
            if change.value is not None:
                self.note(change.key, Versioned(change.value, Revision(change.revision)))
            else:
                self.forget(change.key, change.revision)
        if batch.is_reset:
            self._sort()
        if batch.is_caught_up:
            self._caught_up.set()

    def _sort(self) -> None:
        self._by_kind = {}
        for found in self._known.values():
            if isinstance(found.value, Alert):
                for kind in found.value.definition.on:
                    self._by_kind.setdefault(kind, []).append(found.value)
        for listener in self._listeners:
            listener()


class FollowDeliveries:
    """All deliveries without their bodies, once somebody asks for them."""

    def __init__(self, feed: Feed[Delivery], clock: Clock) -> None:
        self._feed = feed
        self._clock = clock
        self._known: dict[str, Versioned[Delivery]] = {}
        self._pending: set[str] = set()
        self._expires_at: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []
        self._wanted = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._listeners: list[Callable[[Delivery], None]] = []

    def want(self) -> None:
        """Read them from now on: without alerts nobody has to."""
        self._wanted.set()

    async def wait(self) -> None:
        """Raises NatsUnavailable."""
        self.want()
        await _within_patience(self._caught_up, "deliveries")

    async def caught_up(self) -> None:
        await self._caught_up.wait()

    def on_news(self, listener: Callable[[Delivery], None]) -> None:
        self._listeners.append(listener)

    async def run(self) -> None:
        await self._wanted.wait()
        async for batch in self._feed.follow(None):
            self._take(batch)
            await asyncio.sleep(0)

    def pending(self) -> Iterable[Delivery]:
        return [self._known[key].value for key in self._pending]

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def before(
        self, wanted: Callable[[Delivery], bool], place: tuple[float, str] | None, limit: int
    ) -> list[Delivery]:
        """Newest first."""
        self._expire()
        end = len(self._order) if place is None else bisect_left(self._order, place)
        found: list[Delivery] = []
        for _, key in reversed(self._order[:end]):
            delivery = self._known[key].value
            if wanted(delivery):
                found.append(delivery)
            if len(found) == limit:
                break
        return found

    def note(self, stored: Versioned[Delivery]) -> None:
        delivery = stored.value
        known = self._known.get(delivery.id)
        if not delivery.is_shown or (known is not None and known.revision >= stored.revision):
            return
        if known is None:
            insort(self._order, (delivery.created_at, delivery.id))
        light = replace(delivery, body="")
        self._known[delivery.id] = Versioned(light, stored.revision)
        (self._pending.add if delivery.is_pending else self._pending.discard)(delivery.id)
        for listener in self._listeners:
            listener(light)

    def forget(self, key: str) -> None:
        known = self._known.pop(key, None)
        self._expires_at.pop(key, None)
        self._pending.discard(key)
        if known is not None:
            del self._order[bisect_left(self._order, (known.value.created_at, key))]

    def _take(self, batch: FeedBatch[Delivery]) -> None:
        if batch.is_reset:
            self._known.clear()
            self._order.clear()
            self._pending.clear()
        for change in batch.changes:
            if change.value is None:
                self.forget(change.key)
                continue
            self.note(Versioned(change.value, Revision(change.revision)))
            if change.expires_at is not None and change.value.is_shown:
                self._expires_at[change.key] = change.expires_at
        if batch.is_caught_up:
            self._caught_up.set()

    def _expire(self) -> None:
        """What is old leaves the store without a mark. The oldest come first, nearly."""
        now = self._clock()
        while self._order and self._expires_at.get(self._order[0][1], now + 1) <= now:
            self.forget(self._order[0][1])
