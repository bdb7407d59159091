"""Channels: where the messages of alerts go, and what of them is confidential.

A channel is kept as it was written: its texts may name secrets and variables (`${secrets.x}`). They are
resolved, and checked again, whenever a message is sent.
"""

import base64
import re
from enum import StrEnum
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from pyoco_server.domain.alerts.targets import Target, check_host, parse_target
from pyoco_server.domain.audit_trail import MASK
from pyoco_server.domain.codec import decoding
from pyoco_server.domain.named import check_name, stored_key
from pyoco_server.errors import InvalidRequest

MAX_RECIPIENTS = 50
MAX_TEXT = 1_000
MAX_PORT = 65_535
SECRET_PREFIX = "whsec_"  # noqa: S105 - of the form, not a secret
SECRET_BYTES = (16, 128)
_MAILBOX = re.compile(r"[^\s@<>,;:\"\\()\[\]]{1,64}@[^\s@<>,;:\"\\()\[\]]{1,253}")
_WRITTEN_ORIGIN = re.compile(r"(?:https?://)?[^/?#]*")


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
    origin: str | None = None
    """What is shown of a URL that is sealed."""
    sealed: str | None = None
    """What is confidential, encrypted and bound to `store_key`; None: it is not sealed."""

    def __repr__(self) -> str:
        """Without secrets, for logs and tracebacks."""
        return f"Channel({self.name!r}, {self.type})"

    @property
    def store_key(self) -> str:
        return channel_key(self.tenant_id, self.name)

    @property
    def bound_to(self) -> bytes:
        """What the sealed part belongs to: it opens under no other name, and for no other tenant."""
        return f"channel\0{self.store_key}".encode()


def channel_key(tenant_id: str | None, name: str) -> str:
    return f"channel.{stored_key(tenant_id, name)}"


# What is confidential


class Confidential(Struct, frozen=True, omit_defaults=True):
    """A URL, because whoever knows that of a chat can write there."""

    url: str | None = None
    secret: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return "Confidential()"


decode_confidential = decoding(Confidential, "sealed channel")


def confidential_of(channel: Channel) -> Confidential:
    return Confidential(channel.url, channel.secret, None if channel.mail is None else channel.mail.password)


def closed(channel: Channel, sealed: str) -> Channel:
    """Without what `sealed` contains."""
    mail = None if channel.mail is None else replace(channel.mail, password=None)
    origin = None if channel.url is None else _origin_of(channel.url)
    return replace(channel, url=None, secret=None, mail=mail, origin=origin, sealed=sealed)


def opened(channel: Channel, found: Confidential) -> Channel:
    mail = None if channel.mail is None else replace(channel.mail, password=found.password)
    return replace(channel, url=found.url, secret=found.secret, mail=mail, origin=None, sealed=None)


# Defined


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
    now: float,
) -> Channel:
    """As it is written; `checked` decides on its values. `new_secret` is used where a webhook has none.

    Raises InvalidRequest.
    """
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
        return replace(channel, mail=_mail(wanted, None if known is None else known.mail))
    if wanted.url is None:
        raise InvalidRequest("url: is missing")
    return replace(channel, url=wanted.url, secret=_secret(wanted, known, new_secret))


def _refuse_fields(wanted: ChannelDefinition, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(wanted, name) is not None:
            raise InvalidRequest(f"{_SENT_AS.get(name, name)}: is not a field of {wanted.type}")
    for name in ("secret", "password", "url"):
        if MASK in (getattr(wanted, name) or ""):
            raise InvalidRequest(f"{name}: is masked; give the value itself, or leave it out to keep it")


def _secret(wanted: ChannelDefinition, known: Channel | None, otherwise: str) -> str | None:
    if wanted.type is ChannelType.WEBHOOK:
        kept = None if known is None else known.secret
        return wanted.secret or kept or otherwise
    if wanted.secret is not None:
        raise InvalidRequest(f"secret: is not a field of {wanted.type}; its URL is the secret")
    return None


def secret_of(random: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(random).decode()


def _mail(wanted: ChannelDefinition, known: MailServer | None) -> MailServer:
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
    if (wanted.password is not None) and wanted.username is None:
        raise InvalidRequest("username: a password needs one")
    server = MailServer(
        host=host,
        port=port,
        security=security,
        sender=sender,
        to=to,
        username=wanted.username,
        password=wanted.password,
    )
    return _with_known_password(server, known)


def _with_known_password(wanted: MailServer, known: MailServer | None) -> MailServer:
    """Kept for the same login at the same server: another server must not get it."""
    if wanted.username is None or known is None:
        return wanted
    is_kept = wanted.password is None and _is_same_login(wanted, known)
    return replace(wanted, password=known.password) if is_kept else wanted


def _is_same_login(wanted: ChannelDefinition | MailServer, known: MailServer) -> bool:
    return all(
        getattr(wanted, name) == getattr(known, name) for name in ("host", "port", "username", "security")
    )


def keeps_confidential(wanted: ChannelDefinition, known: Channel) -> bool:
    """Whether the new channel has the secret or the password of the known one."""
    if wanted.type is not known.type:
        return False
    if known.mail is not None:
        is_kept = wanted.username is not None and wanted.password is None
        return is_kept and _is_same_login(wanted, known.mail)
    return wanted.type is ChannelType.WEBHOOK and wanted.secret is None


def is_generated(wanted: ChannelDefinition, known: Channel | None) -> bool:
    """Whether a webhook got a new secret, which is shown once."""
    kept = known is not None and known.type is ChannelType.WEBHOOK
    return wanted.type is ChannelType.WEBHOOK and wanted.secret is None and not kept


# Values in place of references


def texts_of(channel: Channel) -> dict[str, Any]:
    """Everything in which somebody may name secrets and variables, under the names of the request."""
    mail = channel.mail
    found: dict[str, Any] = {"url": channel.url, "secret": channel.secret}
    if mail is not None:
        found |= {"host": mail.host, "username": mail.username, "password": mail.password}
        found |= {"from": mail.sender, "to": list(mail.to)}
    return {name: text for name, text in found.items() if text is not None}


def with_texts(channel: Channel, texts: dict[str, Any]) -> Channel:
    """Raises InvalidRequest, without the value: a variable may be anything."""
    for name, value in texts.items():
        if not all(isinstance(one, str) for one in (value if name == "to" else [value])):
            raise InvalidRequest(f"{name}: a reference has a value that is not text")
    if channel.mail is None:
        return replace(channel, **texts)
    named = {**texts, "sender": texts["from"], "to": tuple(texts["to"])}
    del named["from"]
    return replace(channel, mail=replace(channel.mail, **named))


def checked(channel: Channel, *, allow_private: bool) -> Channel:
    """As it is sent with. Raises InvalidRequest or TargetRefused."""
    if channel.mail is not None:
        return replace(channel, mail=_checked_mail(channel.mail, allow_private=allow_private))
    parse_target(channel.url or "", allow_private=allow_private)
    if channel.secret is not None:
        _check_secret(channel.secret)
    return channel


def _check_secret(secret: str) -> None:
    try:
        size = len(base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True))
    except ValueError:
        size = 0
    least, most = SECRET_BYTES
    if not least <= size <= most:
        raise InvalidRequest(f"secret: must be whsec_ and {least} to {most} bytes in Base64")


def _checked_mail(mail: MailServer, *, allow_private: bool) -> MailServer:
    for field, address in (("from", mail.sender), *(("to", one) for one in mail.to)):
        if not _MAILBOX.fullmatch(address) or not address.isprintable():
            raise InvalidRequest(f"{field}: {address[:80]!r} is not an e-mail address")
    for field, text in (("username", mail.username), ("password", mail.password)):
        if text is not None and not 1 <= len(text) <= MAX_TEXT:
            raise InvalidRequest(f"{field}: must have 1 to {MAX_TEXT:,} characters")
    return replace(mail, host=check_host(mail.host.rstrip("."), allow_private=allow_private))


def host_of(channel: Channel) -> tuple[str, int]:
    if channel.mail is not None:
        return channel.mail.host, channel.mail.port
    target = target_at(channel.url or "")
    return target.host, target.port


def target_at(url: str) -> Target:
    """It was checked before. What is private is decided again when its name is looked up."""
    return parse_target(url, allow_private=True)


# Views


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


def channel_view(channel: Channel, *, with_secret: bool = False) -> ChannelView:
    """`with_secret` only of one that is not sealed."""
    is_sealed = channel.sealed is not None
    shown = (
        _shown_url(channel, with_secret=with_secret)
        if channel.mail is None
        else _shown_mail(channel.mail, is_sealed=is_sealed)
    )
    return ChannelView(
        name=channel.name,
        type=channel.type,
        created_at=channel.created_at,
        updated_at=channel.updated_at,
        **shown,
    )


def _shown_url(channel: Channel, *, with_secret: bool) -> dict[str, Any]:
    origin = channel.origin or _origin_of(channel.url or "")
    shown: dict[str, Any] = {"host": _host_in(origin), "url": f"{origin}/{MASK}"}
    if channel.type is ChannelType.WEBHOOK:
        shown["secret"] = channel.secret if with_secret else MASK
    return shown


def _origin_of(url: str) -> str:
    """Scheme and host of a URL; of one with references as it is written. The rest may be a secret."""
    if "${" in url:
        found = _WRITTEN_ORIGIN.match(url)
        return MASK if found is None else found[0]
    target = target_at(url)
    return f"{target.scheme}://{target.authority}"


def _host_in(origin: str) -> str:
    return origin.rpartition("//")[2] if "${" in origin else target_at(origin).host


def _shown_mail(mail: MailServer, *, is_sealed: bool) -> dict[str, Any]:
    return {
        "host": mail.host,
        "port": mail.port,
        "security": mail.security,
        "username": mail.username or UNSET,
        "password": MASK if mail.password or is_sealed else UNSET,
        "sender": mail.sender,
        "to": mail.to,
    }
