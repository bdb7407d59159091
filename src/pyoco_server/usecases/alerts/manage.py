"""Define alerts; list, show and replay deliveries."""

from collections.abc import Callable

from msgspec import Struct

from pyoco_server.domain.alerts.channels import channel_key
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
    alert_key,
    alert_view,
    changed,
    new_alert,
)
from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.inputs import is_run_id, nearest
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.errors import AlertNotFound, ChannelNotFound, DeliveryNotFound, InvalidRequest
from pyoco_server.logs import get_logger
from pyoco_server.usecases.alerts.follow import FollowAlerts, FollowDeliveries
from pyoco_server.usecases.alerts.notice import StartNoticing
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.named import NamedDefinitions, NounOf
from pyoco_server.usecases.ports.stores import Clock, Store

log = get_logger(__name__)

ALERTS = NounOf(
    noun="alert",
    record=Alert,
    key=alert_key,
    view=alert_view,
    page=AlertPage,
    not_found=AlertNotFound,
)


class ManageAlerts(NamedDefinitions[Alert, AlertView, AlertPage]):
    def __init__(
        self,
        definitions: Store[AlertRecord],
        followed: FollowAlerts,
        start: StartNoticing,
        clock: Clock,
        new_id: Callable[[], str],
        trail: AuditTrail,
    ) -> None:
        super().__init__(ALERTS, definitions, followed.listed_alerts, trail, followed.wrote)
        self._followed = followed
        self._start = start
        self._clock = clock
        self._new_id = new_id

    async def put(self, name: str, definition: AlertDefinition, caller: Caller) -> tuple[AlertView, bool]:
        """The alert, and whether it is new. Raises InvalidRequest."""
        wanted = new_alert(
            name, definition, tenant_id=caller.tenant_id, incarnation=self._new_id(), now=self._clock()
        )
        await self._require_channel(definition.channel, caller)
        await self._start(definition.on)

        async def decide(known: Alert | None) -> Alert:
            return wanted if known is None else changed(known, wanted)

        before, after = await self._write(name, decide, caller)
        if after is not before:
            log.info("alert defined", action="alert.defined", alert=name, by=caller.name)
        return alert_view(after), before is None

    async def _require_channel(self, name: str, caller: Caller) -> None:
        if await self._store.get(channel_key(caller.tenant_id, name)) is None:
            known = [channel.name for channel in self._followed.channels(caller.tenant_id)]
            raise InvalidRequest(f"channel: there is no channel {name!r}{nearest(name, known)}")

    async def delete(self, name: str, caller: Caller) -> None:
        """What is to be delivered still is. Raises AlertNotFound."""
        await self._remove(name, caller)
        log.info("alert deleted", action="alert.deleted", alert=name, by=caller.name)


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
