"""Define alerts and channels; list, show and replay deliveries."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct, to_builtins

from pyoco_server.domain.alerts.deliveries import (
    Delivery,
    DeliveryDetail,
    DeliveryPage,
    DeliveryStatus,
    delivery_detail,
    delivery_view,
    replayed,
)
from pyoco_server.domain.alerts.model import (
    Alert,
    AlertDefinition,
    AlertPage,
    AlertRecord,
    AlertView,
    Channel,
    ChannelDefinition,
    ChannelPage,
    ChannelView,
    alert_key,
    alert_view,
    changed,
    channel_key,
    channel_view,
    host_of,
    is_generated,
    new_alert,
    new_channel,
    secret_of,
)
from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.inputs import is_run_id, is_tag, nearest
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.errors import (
    AlertNotFound,
    ChannelInUse,
    ChannelNotFound,
    DeliveryNotFound,
    InvalidRequest,
    NatsUnavailable,
)
from pyoco_server.logs import get_logger
from pyoco_server.usecases.alerts.follow import FollowAlerts, FollowDeliveries
from pyoco_server.usecases.alerts.notice import StartNoticing
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import change_value, write
from pyoco_server.usecases.ports.alerts import Outbound
from pyoco_server.usecases.ports.stores import Clock, Store, Versioned, WrongRevision

log = get_logger(__name__)

MAX_TRIES = 100
T = TypeVar("T", Alert, Channel)


def _newest_first(
    records: Sequence[T], cursor: str | None, limit: int, of: str
) -> tuple[list[T], str | None]:
    before = None if cursor is None else place_of(cursor, of)
    ordered = sorted(records, key=lambda one: (one.created_at, one.name), reverse=True)
    left = [
        one
        for one in ordered
        if before is None or (one.created_at, one.name) < (before.updated_at, before.run_id)
    ]
    shown = left[:limit]
    more = cursor_at(Place(shown[-1].created_at, shown[-1].name), of) if len(left) > limit else None
    return shown, more


class ManageAlerts:
    def __init__(
        self,
        definitions: Store[AlertRecord],
        followed: FollowAlerts,
        start: StartNoticing,
        clock: Clock,
        new_id: Callable[[], str],
        trail: AuditTrail,
    ) -> None:
        self._definitions = definitions
        self._followed = followed
        self._start = start
        self._clock = clock
        self._new_id = new_id
        self._trail = trail

    async def put(self, name: str, definition: AlertDefinition, caller: Caller) -> tuple[AlertView, bool]:
        """The alert, and whether it is new. Raises InvalidRequest."""
        wanted = new_alert(
            name, definition, tenant_id=caller.tenant_id, incarnation=self._new_id(), now=self._clock()
        )
        await self._require_channel(definition.channel, caller)
        await self._start(definition.on)
        for _ in range(MAX_TRIES):
            stored = await self._definitions.get(wanted.store_key)
            known = None if stored is None else stored.value
            alert = changed(known, wanted) if isinstance(known, Alert) else wanted
            if alert is known:
                return alert_view(alert), False
            try:
                revision = await write(self._definitions, alert.store_key, alert, stored)
            except WrongRevision:
                continue
            self._followed.note(alert.store_key, Versioned(alert, revision))
            log.info("alert defined", action="alert.defined", alert=name, by=caller.name)
            before = alert_view(known) if isinstance(known, Alert) else None
            await self._record(caller, "alert.put", name, before, alert_view(alert))
            return alert_view(alert), stored is None
        raise NatsUnavailable(f"alert {name} could not be written")

    async def _require_channel(self, name: str, caller: Caller) -> None:
        if await self._definitions.get(channel_key(caller.tenant_id, name)) is None:
            known = [channel.name for channel in self._followed.channels(caller.tenant_id)]
            raise InvalidRequest(f"channel: there is no channel {name!r}{nearest(name, known)}")

    async def find(self, name: str, caller: Caller) -> AlertView:
        """Raises AlertNotFound."""
        return alert_view(await self._stored(name, caller))

    async def page(self, cursor: str | None, limit: int, caller: Caller) -> AlertPage:
        """Newest first."""
        await self._followed.wait()
        of = digest_of("alerts", caller.tenant_id)
        shown, more = _newest_first(self._followed.alerts(caller.tenant_id), cursor, limit, of)
        return AlertPage([alert_view(alert) for alert in shown], more)

    async def delete(self, name: str, caller: Caller) -> None:
        """What is to be delivered still is. Raises AlertNotFound."""
        alert = await self._stored(name, caller)
        await self._definitions.remove(alert.store_key, None)
        self._followed.forget(alert.store_key)
        log.info("alert deleted", action="alert.deleted", alert=name, by=caller.name)
        await self._record(caller, "alert.delete", name, alert_view(alert), None)

    async def _stored(self, name: str, caller: Caller) -> Alert:
        stored = await self._definitions.get(alert_key(caller.tenant_id, name)) if is_tag(name) else None
        if stored is None or not isinstance(stored.value, Alert):
            known = [alert.name for alert in self._followed.alerts(caller.tenant_id)]
            raise AlertNotFound(f"alert not found: {name[:64]}{nearest(name, known)}")
        return stored.value

    async def _record(
        self, caller: Caller, action: str, name: str, before: Struct | None, after: Struct | None
    ) -> None:
        await self._trail.record(caller, action, ChangeTarget("alert", name), _state(before), _state(after))


def _state(shown: Struct | None) -> dict[str, object] | None:
    """Views have no secrets; a view with a generated one is not recorded."""
    return None if shown is None else to_builtins(shown)


class ManageChannels:
    def __init__(
        self,
        *,
        definitions: Store[AlertRecord],
        followed: FollowAlerts,
        outbound: Outbound,
        allow_private: bool,
        clock: Clock,
        new_secret: Callable[[], bytes],
        trail: AuditTrail,
    ) -> None:
        self._definitions = definitions
        self._followed = followed
        self._outbound = outbound
        self._allow_private = allow_private
        self._clock = clock
        self._new_secret = new_secret
        self._trail = trail

    async def put(self, name: str, wanted: ChannelDefinition, caller: Caller) -> tuple[ChannelView, bool]:
        """The channel, with a secret that was generated, and whether it is new.

        Raises InvalidRequest or TargetRefused.
        """
        for _ in range(MAX_TRIES):
            stored = await self._known(name, caller)
            known = None if stored is None else stored.value
            known = known if isinstance(known, Channel) else None
            channel = new_channel(
                name,
                wanted,
                tenant_id=caller.tenant_id,
                known=known,
                new_secret=secret_of(self._new_secret()),
                allow_private=self._allow_private,
                now=self._clock(),
            )
            if not self._allow_private:
                await self._outbound.check_host(*host_of(channel))
            try:
                revision = await write(self._definitions, channel.store_key, channel, stored)
            except WrongRevision:
                continue
            self._followed.note(channel.store_key, Versioned(channel, revision))
            log.info("channel defined", action="channel.defined", channel=name, by=caller.name)
            before = None if known is None else channel_view(known)
            await self._record(caller, "channel.put", name, before, channel_view(channel))
            return channel_view(channel, with_secret=is_generated(wanted, known)), stored is None
        raise NatsUnavailable(f"channel {name} could not be written")

    async def _known(self, name: str, caller: Caller) -> Versioned[AlertRecord] | None:
        return await self._definitions.get(channel_key(caller.tenant_id, name)) if is_tag(name) else None

    async def find(self, name: str, caller: Caller) -> ChannelView:
        """Raises ChannelNotFound."""
        return channel_view(await self._stored(name, caller))

    async def page(self, cursor: str | None, limit: int, caller: Caller) -> ChannelPage:
        """Newest first."""
        await self._followed.wait()
        of = digest_of("channels", caller.tenant_id)
        shown, more = _newest_first(self._followed.channels(caller.tenant_id), cursor, limit, of)
        return ChannelPage([channel_view(channel) for channel in shown], more)

    async def delete(self, name: str, caller: Caller) -> None:
        """Raises ChannelNotFound or ChannelInUse."""
        await self._followed.wait()
        channel = await self._stored(name, caller)
        await self._require_unused(name, caller)
        await self._definitions.remove(channel.store_key, None)
        self._followed.forget(channel.store_key)
        log.info("channel deleted", action="channel.deleted", channel=name, by=caller.name)
        await self._record(caller, "channel.delete", name, channel_view(channel), None)

    async def _require_unused(self, name: str, caller: Caller) -> None:
        """The feed may be behind: what it knows of is asked for again."""
        for alert in self._followed.alerts(caller.tenant_id):
            if alert.definition.channel != name:
                continue
            stored = await self._definitions.get(alert.store_key)
            if stored is not None and isinstance(stored.value, Alert) and _uses(stored.value, name):
                raise ChannelInUse(f"channel {name!r} is used by alert {alert.name!r}")

    async def _stored(self, name: str, caller: Caller) -> Channel:
        stored = await self._known(name, caller)
        if stored is None or not isinstance(stored.value, Channel):
            known = [channel.name for channel in self._followed.channels(caller.tenant_id)]
            raise ChannelNotFound(f"channel not found: {name[:64]}{nearest(name, known)}")
        return stored.value

    async def _record(
        self, caller: Caller, action: str, name: str, before: Struct | None, after: Struct | None
    ) -> None:
        await self._trail.record(caller, action, ChangeTarget("channel", name), _state(before), _state(after))


def _uses(alert: Alert, channel: str) -> bool:
    return alert.definition.channel == channel


# Deliveries


class DeliveryFilter(Struct, frozen=True, kw_only=True):
    tenant_id: str | None = None
    alert: str | None = None
    channel: str | None = None
    status: DeliveryStatus | None = None

    def matches(self, delivery: Delivery) -> bool:
        return (
            self.tenant_id in (None, delivery.tenant_id)
            and self.alert in (None, delivery.alert)
            and self.channel in (None, delivery.channel)
            and self.status in (None, delivery.status)
        )


class ManageDeliveries:
    def __init__(
        self,
        deliveries: Store[Delivery],
        followed: FollowDeliveries,
        alerts: FollowAlerts,
        clock: Clock,
        trail: AuditTrail,
    ) -> None:
        self._deliveries = deliveries
        self._followed = followed
        self._alerts = alerts
        self._clock = clock
        self._trail = trail

    async def page(self, wanted: DeliveryFilter, cursor: str | None, limit: int) -> DeliveryPage:
        """Newest first."""
        await self._followed.wait()
        of = digest_of("deliveries", wanted.tenant_id, wanted.alert, wanted.channel, wanted.status)
        at = None if cursor is None else place_of(cursor, of)
        place = None if at is None else (at.updated_at, at.run_id)
        found = self._followed.before(wanted.matches, place, limit + 1)
        shown = found[:limit]
        more = cursor_at(Place(shown[-1].created_at, shown[-1].id), of) if len(found) > limit else None
        return DeliveryPage([delivery_view(one) for one in shown], more)

    async def find(self, delivery_id: str, caller: Caller) -> DeliveryDetail:
        """Raises DeliveryNotFound."""
        return delivery_detail(await self._stored(delivery_id, caller))

    async def replay(self, delivery_id: str, caller: Caller) -> DeliveryDetail:
        """Send it again, with its id and body. Raises DeliveryNotFound or ChannelNotFound."""
        before = await self._stored(delivery_id, caller)
        if self._alerts.channel(before.tenant_id, before.channel) is None:
            raise ChannelNotFound(f"channel not found: {before.channel}; it was deleted")
        self._followed.want()
        after = await change_value(
            self._deliveries,
            delivery_id,
            lambda found: None if found is None else replayed(found, self._clock()),
        )
        if after is None:
            raise DeliveryNotFound
        log.info("delivery replayed", action="delivery.replayed", delivery_id=delivery_id, by=caller.name)
        target = ChangeTarget("delivery", delivery_id)
        states = ({"status": one.status, "attempts": one.attempts} for one in (before, after))
        await self._trail.record(caller, "delivery.replay", target, *states)
        return delivery_detail(after)

    async def _stored(self, delivery_id: str, caller: Caller) -> Delivery:
        found = await self._deliveries.get(delivery_id) if is_run_id(delivery_id) else None
        if found is None or not found.value.is_shown or caller.tenant_id not in (None, found.value.tenant_id):
            raise DeliveryNotFound
        return found.value
