"""Alerts and channels as they are defined, and what is shown of them."""

import base64
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from pyoco_server.domain.alerts.targets import Target, check_host, parse_target
from pyoco_server.domain.audit_trail import MASK
from pyoco_server.domain.codec import decoding
from pyoco_server.domain.executions.conditions import (
    FILTER_NAMES,
    ConditionError,
    check_filter,
)
from pyoco_server.domain.inputs import is_tag
from pyoco_server.errors import InvalidRequest

__all__ = ["Alert", "AlertKind", "Channel", "ChannelType", "replace"]

MAX_SEC = 366 * 86_400.0
MAX_RECIPIENTS = 50
MAX_TEXT = 1_000
MAX_PORT = 65_535
SECRET_PREFIX = "whsec_"  # noqa: S105 - of the form, not a secret
SECRET_BYTES = (16, 128)
NO_TENANT = "="
_MAILBOX = re.compile(r"[^\s@<>,;:\"\\()\[\]]{1,64}@[^\s@<>,;:\"\\()\[\]]{1,253}")


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


class ChannelType(StrEnum):
    WEBHOOK = "webhook"
    SLACK = "slack"
    TEAMS = "teams"
    GOOGLE_CHAT = "google_chat"
    EMAIL = "email"


class Security(StrEnum):
    """Of a connection to a mail server."""

    NONE = "none"
    STARTTLS = "starttls"
    TLS = "tls"


class MailServer(Struct, frozen=True, kw_only=True):
    host: str
    port: int
    security: Security
    sender: str
    to: tuple[str, ...]
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"MailServer({self.host}:{self.port})"


class Channel(Struct, frozen=True, kw_only=True, tag_field="record", tag="channel"):
    """`url` and `secret`, or `mail`."""

    name: str
    tenant_id: str | None
    type: ChannelType
    created_at: float
    updated_at: float
    url: str | None = None
    secret: str | None = None
    mail: MailServer | None = None

    def __repr__(self) -> str:
        """Without secrets, for logs and tracebacks."""
        return f"Channel({self.name!r}, {self.type})"

    @property
    def store_key(self) -> str:
        return channel_key(self.tenant_id, self.name)


AlertRecord = Alert | Channel
decode_alert_record: Callable[[bytes], AlertRecord] = decoding(AlertRecord, "alert or channel")  # type: ignore[arg-type]


def alert_key(tenant_id: str | None, name: str) -> str:
    return f"alert.{tenant_id or NO_TENANT}.{name}"


def channel_key(tenant_id: str | None, name: str) -> str:
    return f"channel.{tenant_id or NO_TENANT}.{name}"


# Alerts


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


def check_name(what: str, name: str) -> None:
    if not is_tag(name):
        raise InvalidRequest(f"{what} {name[:80]!r} must match [A-Za-z0-9_-]{{1,64}}")


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


# Channels


class ChannelDefinition(Struct, frozen=True, kw_only=True):
    """What a PUT asks for."""

    type: ChannelType
    url: str | None = None
    secret: str | None = None
    host: str | None = None
    port: int | None = None
    security: Security | None = None
    username: str | None = None
    password: str | None = None
    sender: str | None = None
    to: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"ChannelDefinition({self.type})"


_OF_MAIL = ("host", "port", "security", "username", "password", "sender", "to")
_SENT_AS = {"sender": "from"}


def new_channel(
    name: str,
    wanted: ChannelDefinition,
    *,
    tenant_id: str | None,
    known: Channel | None,
    new_secret: str,
    allow_private: bool,
    now: float,
) -> Channel:
    """`new_secret` is used where a webhook has none. Raises InvalidRequest or TargetRefused."""
    check_name("channel", name)
    is_mail = wanted.type is ChannelType.EMAIL
    _refuse_fields(wanted, ("url", "secret") if is_mail else _OF_MAIL)
    channel = Channel(
        name=name,
        tenant_id=tenant_id,
        type=wanted.type,
        created_at=now if known is None else known.created_at,
        updated_at=now,
    )
    if is_mail:
        mail = _mail(wanted, None if known is None else known.mail, allow_private=allow_private)
        return replace(channel, mail=mail)
    if wanted.url is None:
        raise InvalidRequest("url: is missing")
    parse_target(wanted.url, allow_private=allow_private)
    kept = known.secret if known is not None else None
    return replace(channel, url=wanted.url, secret=_secret(wanted, kept or new_secret))


def _refuse_fields(wanted: ChannelDefinition, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(wanted, name) is not None:
            raise InvalidRequest(f"{_SENT_AS.get(name, name)}: is not a field of {wanted.type}")
    for name in ("secret", "password", "url"):
        if MASK in (getattr(wanted, name) or ""):
            raise InvalidRequest(f"{name}: is masked; give the value itself, or leave it out to keep it")


def _secret(wanted: ChannelDefinition, otherwise: str) -> str | None:
    if wanted.type is not ChannelType.WEBHOOK:
        if wanted.secret is not None:
            raise InvalidRequest(f"secret: is not a field of {wanted.type}; its URL is the secret")
        return None
    if wanted.secret is None:
        return otherwise
    try:
        size = len(base64.b64decode(wanted.secret.removeprefix(SECRET_PREFIX), validate=True))
    except ValueError:
        size = 0
    least, most = SECRET_BYTES
    if not least <= size <= most:
        raise InvalidRequest(f"secret: must be whsec_ and {least} to {most} bytes in Base64")
    return wanted.secret


def secret_of(random: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(random).decode()


def _mail(wanted: ChannelDefinition, known: MailServer | None, *, allow_private: bool) -> MailServer:
    host, port, security, sender, to = wanted.host, wanted.port, wanted.security, wanted.sender, wanted.to
    if host is None or port is None or security is None or sender is None or to is None:
        missing = next(
            name for name in ("host", "port", "security", "sender", "to") if getattr(wanted, name) is None
        )
        raise InvalidRequest(f"{_SENT_AS.get(missing, missing)}: is missing")
    if not 1 <= port <= MAX_PORT:
        raise InvalidRequest(f"port: must be 1 to {MAX_PORT}")
    if not 1 <= len(to) <= MAX_RECIPIENTS:
        raise InvalidRequest(f"to: must have 1 to {MAX_RECIPIENTS} addresses")
    for field, address in (("from", sender), *(("to", one) for one in to)):
        if not _MAILBOX.fullmatch(address) or not address.isprintable():
            raise InvalidRequest(f"{field}: {address[:80]!r} is not an e-mail address")
    if (wanted.password is not None) and wanted.username is None:
        raise InvalidRequest("username: a password needs one")
    server = MailServer(
        host=check_host(host.rstrip("."), allow_private=allow_private),
        port=port,
        security=security,
        sender=sender,
        to=to,
        username=_short("username", wanted.username),
        password=_short("password", wanted.password),
    )
    return _with_known_password(server, known)


def _short(name: str, text: str | None) -> str | None:
    if text is not None and not 1 <= len(text) <= MAX_TEXT:
        raise InvalidRequest(f"{name}: must have 1 to {MAX_TEXT:,} characters")
    return text


def _with_known_password(wanted: MailServer, known: MailServer | None) -> MailServer:
    """Kept for the same login at the same server: another server must not get it."""
    if wanted.username is None or known is None:
        return wanted
    same = ("host", "port", "username", "security")
    is_same = all(getattr(wanted, name) == getattr(known, name) for name in same)
    return replace(wanted, password=wanted.password or (known.password if is_same else None))


def is_generated(wanted: ChannelDefinition, known: Channel | None) -> bool:
    """Whether a webhook got a new secret, which is shown once."""
    kept = known is not None and known.secret is not None
    return wanted.type is ChannelType.WEBHOOK and wanted.secret is None and not kept


def host_of(channel: Channel) -> tuple[str, int]:
    if channel.mail is not None:
        return channel.mail.host, channel.mail.port
    target = target_of(channel)
    return target.host, target.port


def target_of(channel: Channel) -> Target:
    """It was checked when it was defined. What is private is decided again when its name is looked up."""
    return parse_target(channel.url or "", allow_private=True)


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


class ChannelView(Struct, frozen=True, kw_only=True, rename={"sender": "from"}):
    """Secrets and paths are `•••`. A generated `secret` is shown once, in the answer to its PUT."""

    name: str
    type: ChannelType
    host: str
    created_at: float
    updated_at: float
    url: str | UnsetType = UNSET
    secret: str | UnsetType = UNSET
    port: int | UnsetType = UNSET
    security: Security | UnsetType = UNSET
    username: str | UnsetType = UNSET
    password: str | UnsetType = UNSET
    sender: str | UnsetType = UNSET
    to: tuple[str, ...] | UnsetType = UNSET


class ChannelPage(Struct, frozen=True):
    """Newest first."""

    items: list[ChannelView]
    next_cursor: str | None


class ChannelDeleted(Struct, frozen=True):
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


def channel_view(channel: Channel, *, with_secret: bool = False) -> ChannelView:
    host, _ = host_of(channel)
    return ChannelView(
        name=channel.name,
        type=channel.type,
        host=host,
        created_at=channel.created_at,
        updated_at=channel.updated_at,
        **(
            _shown_url(channel, with_secret=with_secret)
            if channel.mail is None
            else _shown_mail(channel.mail)
        ),
    )


def _shown_url(channel: Channel, *, with_secret: bool) -> dict[str, Any]:
    target = target_of(channel)
    shown: dict[str, Any] = {"url": f"{target.scheme}://{target.authority}/{MASK}"}
    if channel.secret is not None:
        shown["secret"] = channel.secret if with_secret else MASK
    return shown


def _shown_mail(mail: MailServer) -> dict[str, Any]:
    return {
        "port": mail.port,
        "security": mail.security,
        "username": mail.username or UNSET,
        "password": MASK if mail.password else UNSET,
        "sender": mail.sender,
        "to": mail.to,
    }


ALERT_ANSWERS = (AlertView, AlertPage, AlertDeleted, ChannelView, ChannelPage, ChannelDeleted)
