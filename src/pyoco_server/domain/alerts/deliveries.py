"""Deliveries: messages that are to be sent, how their attempts go, and how many a cooldown leaves out."""

from enum import StrEnum
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from pyoco_server.domain.alerts.happenings import Happening, body_of
from pyoco_server.domain.alerts.model import Alert
from pyoco_server.domain.codec import decoding
from pyoco_server.domain.events.retry import RetryPolicy, delay

MAX_ERROR = 500


class DeliveryStatus(StrEnum):
    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"


LEFT_OUT = "LEFT_OUT"
"""Stored in place of a status: a cooldown left it out. It marks what was counted, and is not shown."""


class Delivery(Struct, frozen=True, kw_only=True):
    id: str
    tenant_id: str | None
    alert: str
    channel: str
    event_id: str
    type: str
    status: str
    subject: str
    """Those of a subject are sent in order."""
    number: int
    """The order in which they came up."""
    turn: int
    """Of the noticing gateway: a turn that was not stored is repeated."""
    created_at: float
    attempts: int = 0
    next_at: float = 0.0
    last_error: str | None = None
    delivered_at: float | None = None
    updated_at: float = 0.0
    body: str = ""
    """As it is signed and sent, also when it is replayed."""

    @property
    def is_shown(self) -> bool:
        return self.status != LEFT_OUT

    @property
    def is_pending(self) -> bool:
        return self.status == DeliveryStatus.PENDING

    @property
    def lane(self) -> tuple[str | None, str, str]:
        """Within it one is sent after the other."""
        return self.tenant_id, self.channel, self.subject


class DeliveryView(Struct, frozen=True, kw_only=True):
    id: str
    alert: str
    channel: str
    event_id: str
    type: str
    status: DeliveryStatus
    attempts: int
    last_error: str | None
    created_at: float
    delivered_at: float | None
    next_attempt_at: float | None


class DeliveryDetail(DeliveryView, frozen=True, kw_only=True):
    """With what is sent."""

    body: Any


class DeliveryPage(Struct, frozen=True):
    """Newest first."""

    items: list[DeliveryView]
    next_cursor: str | None


decode_delivery = decoding(Delivery, "delivery")


def _shown(delivery: Delivery) -> dict[str, Any]:
    names = DeliveryView.__struct_fields__
    found = {name: value for name, value in asdict(delivery).items() if name in names}
    found["next_attempt_at"] = delivery.next_at if delivery.is_pending else None
    found["status"] = DeliveryStatus(delivery.status)
    return found


def delivery_view(delivery: Delivery) -> DeliveryView:
    return DeliveryView(**_shown(delivery))


def delivery_detail(delivery: Delivery) -> DeliveryDetail:
    return DeliveryDetail(**_shown(delivery), body=msgspec.json.decode(delivery.body))


def event_id_of(alert: Alert, happening: Happening) -> str:
    """One per alert, because the messages differ: receivers drop what they know the id of."""
    of = (alert.store_key, alert.incarnation, happening.kind, happening.subject, happening.occurrence)
    return str(uuid5(NAMESPACE_URL, f"pyoco:alert-event:{':'.join(of)}"))


def delivery_id_of(event_id: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"pyoco:delivery:{event_id}"))


def new_delivery(
    alert: Alert, happening: Happening, *, suppressed: int | None, number: int, turn: int, now: float
) -> Delivery:
    """`suppressed`: how many a cooldown left out before it; None: it leaves out this one."""
    event_id = event_id_of(alert, happening)
    body = b"" if suppressed is None else msgspec.json.encode(body_of(happening, alert, suppressed))
    return Delivery(
        id=delivery_id_of(event_id),
        tenant_id=alert.tenant_id,
        alert=alert.name,
        channel=alert.definition.channel,
        event_id=event_id,
        type=happening.kind.value,
        status=LEFT_OUT if suppressed is None else DeliveryStatus.PENDING,
        subject=happening.subject,
        number=number,
        turn=turn,
        created_at=now,
        next_at=now,
        updated_at=now,
        body=body.decode(),
    )


# Attempts


def delivered(delivery: Delivery, now: float) -> Delivery:
    return replace(
        delivery,
        status=DeliveryStatus.DELIVERED,
        attempts=delivery.attempts + 1,
        last_error=None,
        delivered_at=now,
        updated_at=now,
    )


def failed(delivery: Delivery, error: str, policy: RetryPolicy, now: float, jitter: float) -> Delivery:
    """The next attempt on the ladder of events, or the end of it."""
    attempts = delivery.attempts + 1
    after = replace(delivery, attempts=attempts, last_error=error[:MAX_ERROR], updated_at=now)
    if attempts >= policy.max_attempts:
        return replace(after, status=DeliveryStatus.FAILED)
    return replace(after, next_at=now + delay(attempts, policy.base_delay_seconds, jitter))


def given_up(delivery: Delivery, error: str, now: float) -> Delivery:
    return replace(delivery, status=DeliveryStatus.FAILED, last_error=error[:MAX_ERROR], updated_at=now)


def replayed(delivery: Delivery, now: float) -> Delivery:
    """Due now, with all attempts. What it was and what was sent stays."""
    return replace(
        delivery, status=DeliveryStatus.PENDING, attempts=0, last_error=None, next_at=now, updated_at=now
    )


# Cooldown: per alert and flow


class Cooldown(Struct, frozen=True):
    """Since the last message."""

    at: float
    left_out: int = 0


def is_cooling(known: Cooldown | None, cooldown_sec: float, at: float) -> bool:
    return known is not None and at < known.at + cooldown_sec


def sent(at: float) -> Cooldown:
    return Cooldown(at)


def left_out(known: Cooldown) -> Cooldown:
    return Cooldown(known.at, known.left_out + 1)


def is_needed(known: Cooldown, cooldown_sec: float, now: float) -> bool:
    """Whether it still counts for something."""
    return known.left_out > 0 or now < known.at + cooldown_sec


ALERT_DELIVERY_ANSWERS = (DeliveryView, DeliveryDetail, DeliveryPage)
