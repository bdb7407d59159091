"""Alerts as they are defined, and what is shown of them."""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.alerts.channels import Channel, ChannelDeleted, ChannelPage, ChannelView
from pyoco_server.domain.alerts.filters import FILTER_NAMES, check_filter
from pyoco_server.domain.cel.expressions import ConditionError
from pyoco_server.domain.codec import decoding
from pyoco_server.domain.named import check_name, stored_key
from pyoco_server.errors import InvalidRequest

MAX_SEC = 366 * 86_400.0


class AlertKind(StrEnum):
    RUN_FAILED = "run.failed"
    RUN_LATE = "run.late"
    RUN_STUCK = "run.stuck"
    SCHEDULE_SKIPPED = "schedule.skipped"
    SCHEDULE_MISSED = "schedule.missed"
    WAIT_OPENED = "wait.opened"
    WAIT_OVERDUE = "wait.overdue"
    EXECUTION_FAILED = "execution.failed"
    WORKER_LOST = "worker.lost"
    DEAD_LETTER = "dead_letter"
    LIMIT_WAITING = "limit.waiting"
    EVENT_ESCALATED = "event.escalated"


NEED_LATE_AFTER = frozenset({AlertKind.RUN_LATE, AlertKind.WAIT_OVERDUE, AlertKind.LIMIT_WAITING})
"""They ask for `late_after_sec`."""


class AlertDefinition(Struct, frozen=True, kw_only=True):
    """What a PUT asks for."""

    on: tuple[AlertKind, ...]
    channel: str
    filter: str | None = None
    """CEL; None: everything."""
    late_after_sec: float | None = None
    cooldown_sec: float = 0.0


class Alert(Struct, frozen=True, kw_only=True, tag_field="record", tag="alert"):
    name: str
    tenant_id: str | None
    definition: AlertDefinition
    incarnation: str
    """Another one after a delete."""
    since: dict[AlertKind, float]
    """When each kind was asked for: what happened before is no news."""
    created_at: float
    updated_at: float

    @property
    def store_key(self) -> str:
        return alert_key(self.tenant_id, self.name)


AlertRecord = Alert | Channel
decode_alert_record: Callable[[bytes], AlertRecord] = decoding(AlertRecord, "alert or channel")  # type: ignore[arg-type]


def alert_key(tenant_id: str | None, name: str) -> str:
    return f"alert.{stored_key(tenant_id, name)}"


def new_alert(
    name: str, definition: AlertDefinition, *, tenant_id: str | None, incarnation: str, now: float
) -> Alert:
    """Raises InvalidRequest."""
    check_name("alert", name)
    check_definition(definition)
    return Alert(
        name=name,
        tenant_id=tenant_id,
        definition=definition,
        incarnation=incarnation,
        since=dict.fromkeys(definition.on, now),
        created_at=now,
        updated_at=now,
    )


def changed(alert: Alert, wanted: Alert) -> Alert:
    """`alert` itself if nothing changes. A kind that stays goes on as it was."""
    if alert.definition == wanted.definition:
        return alert
    since = {kind: alert.since.get(kind, at) for kind, at in wanted.since.items()}
    return replace(wanted, created_at=alert.created_at, incarnation=alert.incarnation, since=since)


def check_definition(wanted: AlertDefinition) -> None:
    """Raises InvalidRequest."""
    if not wanted.on:
        raise InvalidRequest("on: name at least one kind")
    needing = [kind for kind in wanted.on if kind in NEED_LATE_AFTER]
    if needing and wanted.late_after_sec is None:
        raise InvalidRequest(f"late_after_sec: {needing[0]} needs it")
    late = wanted.late_after_sec
    if late is not None and not 0 < late <= MAX_SEC:
        raise InvalidRequest(f"late_after_sec: must be more than 0 and at most {MAX_SEC:.0f}")
    if not 0 <= wanted.cooldown_sec <= MAX_SEC:
        raise InvalidRequest(f"cooldown_sec: must be 0 to {MAX_SEC:.0f}")
    check_name("channel", wanted.channel)
    if wanted.filter is not None:
        try:
            check_filter(wanted.filter)
        except ConditionError as error:
            raise InvalidRequest(f"filter: {error}; it may read {', '.join(FILTER_NAMES)}") from error


# Views


class AlertView(Struct, frozen=True, kw_only=True):
    """`late_after_sec`: of `run.late`, `wait.overdue` and `limit.waiting`."""

    name: str
    on: tuple[AlertKind, ...]
    filter: str | None
    late_after_sec: float | None
    cooldown_sec: float
    channel: str
    created_at: float
    updated_at: float


class AlertPage(Struct, frozen=True):
    """Newest first."""

    items: list[AlertView]
    next_cursor: str | None


class AlertDeleted(Struct, frozen=True):
    name: str
    deleted: bool


def alert_view(alert: Alert) -> AlertView:
    wanted = alert.definition
    return AlertView(
        name=alert.name,
        on=wanted.on,
        filter=wanted.filter,
        late_after_sec=wanted.late_after_sec,
        cooldown_sec=wanted.cooldown_sec,
        channel=wanted.channel,
        created_at=alert.created_at,
        updated_at=alert.updated_at,
    )


ALERT_ANSWERS = (AlertView, AlertPage, AlertDeleted, ChannelView, ChannelPage, ChannelDeleted)
