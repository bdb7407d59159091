"""Signed events: verify and read those of Standard Webhooks, GitHub, Stripe and plain HMAC."""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey
from standardwebhooks import Webhook

from pyoco_server.domain.events.cloud_events import Mode, mode_of, refuse_form
from pyoco_server.domain.events.requests import (
    EventRequest,
    choose_key,
    from_fields,
    json_object,
    read_request,
)
from pyoco_server.domain.events.templates import is_id
from pyoco_server.errors import InvalidEventToken, InvalidRequest

WINDOW_SEC = 300.0
MAX_SECRETS = 2
MIN_SECRET = 16
MAX_SECRET = 500
SIGNATURE_TEXT = "Invalid workflow event signature."

PING = "ping"
"""GitHub's event for a new webhook."""

PUBLIC, PRIVATE = "whpk_", "whsk_"
"""Prefixes of the ed25519 keys of Standard Webhooks."""
PUBLIC_BYTES = 32
MAX_SIGNATURES = 8

SourceKind = Literal["standard", "github", "stripe", "hmac"]
KeyOf = Literal["body", "delivery"]


class Source(Struct, frozen=True, kw_only=True):
    """A sender of signed events. Two secrets, or public keys, may be valid at once, for rotation."""

    id: str
    kind: SourceKind
    secrets: tuple[str, ...]
    updated_at: str
    template_id: str | None = None
    """The template for its events; None: chosen by event_name."""
    signature_header: str = "x-signature"
    timestamp_header: str | None = None
    """Kind hmac: header with the timestamp, signed as `<timestamp>.<body>`."""
    tenant_id: str | None = None
    key_of: KeyOf = "body"
    """Kind github: what identifies an event. GitHub signs the body, but not the delivery id."""

    def __repr__(self) -> str:
        return f"Source({self.id})"


def check_source(source: Source) -> Source:
    """Raises InvalidRequest, never with a secret in it."""
    if not is_id(source.id):
        raise InvalidRequest("id: must match [A-Za-z0-9_-]{1,64}")
    if not 1 <= len(source.secrets) <= MAX_SECRETS:
        raise InvalidRequest(f"secrets: must be 1 to {MAX_SECRETS}")
    for number, secret in enumerate(source.secrets, 1):
        _check_secret(number, secret, source.kind)
    if source.template_id is not None and not is_id(source.template_id):
        raise InvalidRequest("template_id: must match [A-Za-z0-9_-]{1,64}")
    return source


def _check_secret(number: int, secret: str, kind: SourceKind) -> None:
    if not MIN_SECRET <= len(secret) <= MAX_SECRET or not secret.isascii() or not secret.isprintable():
        raise InvalidRequest(f"secrets: secret {number} must have {MIN_SECRET} to {MAX_SECRET} characters")
    if kind == "standard":
        _check_standard_key(f"secrets: secret {number}", secret)


def _check_standard_key(place: str, secret: str) -> None:
    if secret.startswith(PRIVATE):
        raise InvalidRequest(
            f"{place} is the sender's private key; register the public key, which begins with {PUBLIC}"
        )
    try:
        key = _decoded(secret.removeprefix("whsec_").removeprefix(PUBLIC))
    except ValueError:
        raise InvalidRequest(f"{place} must be whsec_ or {PUBLIC} followed by base64") from None
    if secret.startswith(PUBLIC) and len(key) != PUBLIC_BYTES:
        raise InvalidRequest(f"{place} must have {PUBLIC_BYTES} bytes, not {len(key)}")


def _decoded(text: str) -> bytes:
    """Base64, also without its padding. Raises ValueError."""
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def verify(source: Source, body: bytes, headers: Mapping[str, str], now: float) -> None:
    """Raises InvalidEventToken. `headers` by lower-case name."""
    is_signed = {
        "standard": _is_standard,
        "github": _is_github,
        "stripe": _is_stripe,
        "hmac": _is_hmac,
    }[source.kind]
    if not is_signed(source, body, headers, now):
        raise InvalidEventToken(SIGNATURE_TEXT)


def read_signed(source: Source, body: bytes, headers: Mapping[str, str]) -> EventRequest:
    """The event in a body of this kind of source. Raises InvalidRequest or UnsupportedMediaType."""
    refuse_form(body, headers)
    request = _READERS[source.kind](body, headers)
    if source.kind == "github" and source.key_of == "body":
        request = _with(request, key=_body_key(source, body), is_key_ignored=False)
    changes: dict[str, Any] = {"source": request.source or source.id}
    if source.template_id is not None:
        changes["template_id"] = source.template_id
    return _with(request, **changes)


def is_batch(sender: object, headers: Mapping[str, str]) -> bool:
    """Whether a request has several events. GitHub and Stripe send one at a time."""
    if isinstance(sender, Source) and sender.kind not in ("standard", "hmac"):
        return False
    return mode_of(headers) is Mode.BATCHED


def is_ping(source: Source, request: EventRequest) -> bool:
    return source.kind == "github" and request.event_name == PING


def _body_key(source: Source, body: bytes) -> str:
    """A captured body cannot be replayed as another event; a redelivery has the same body."""
    digest = hashlib.sha256(source.id.encode() + b"\0" + body).hexdigest()
    return f"github-{digest[:40]}"


def _with(request: EventRequest, **changes: Any) -> EventRequest:
    values = {name: getattr(request, name) for name in request.__struct_fields__}
    return EventRequest(**{**values, **changes})


def _read_github(body: bytes, headers: Mapping[str, str]) -> EventRequest:
    fields = {"event_name": headers.get("x-github-event"), "data": json_object(body)}
    return _keyed(from_fields(fields, {}), headers.get("x-github-delivery"))


def _read_stripe(body: bytes, _headers: Mapping[str, str]) -> EventRequest:
    event = json_object(body)
    return _keyed(from_fields({"event_name": event.get("type"), "data": event}, {}), event.get("id"))


def _read_standard(body: bytes, headers: Mapping[str, str]) -> EventRequest:
    """`{"type": …, "data": …}` as recommended, and our own fields; or a CloudEvent."""
    if mode_of(headers) is not None:
        return _keyed(read_request(body, headers), headers.get("webhook-id"))
    event = json_object(body)
    fields = {"event_name": event.get("type"), "data": event, **event}
    return _keyed(from_fields(fields, headers), headers.get("webhook-id"))


def _keyed(request: EventRequest, delivery: Any) -> EventRequest:
    """The sender's delivery id takes precedence over other keys."""
    chosen = choose_key([delivery])
    return _with(request, key=chosen.key or request.key, is_key_ignored=chosen.is_ignored)


_READERS = {
    "standard": _read_standard,
    "github": _read_github,
    "stripe": _read_stripe,
    "hmac": read_request,
}


def _is_standard(source: Source, body: bytes, headers: Mapping[str, str], now: float) -> bool:
    message_id, signatures = headers.get("webhook-id", ""), headers.get("webhook-signature", "")
    at = _timestamp(headers.get("webhook-timestamp", ""), now)
    if at is None or not message_id:
        return False
    try:
        data = body.decode()
    except UnicodeDecodeError:
        return False
    given = signatures.split(" ")
    when = datetime.fromtimestamp(at, UTC)
    shared = [secret for secret in source.secrets if not secret.startswith(PUBLIC)]
    if _matches([Webhook(secret).sign(message_id, when, data) for secret in shared], given):
        return True
    signed = f"{message_id}.{at}.".encode() + body
    keys = [secret for secret in source.secrets if secret.startswith(PUBLIC)]
    return any(_is_signed_with(key, one, signed) for key in keys for one in given[:MAX_SIGNATURES])


def _is_signed_with(public_key: str, signature: str, signed: bytes) -> bool:
    """`v1a`: ed25519."""
    version, _, encoded = signature.partition(",")
    if version != "v1a":
        return False
    try:
        VerifyKey(_decoded(public_key.removeprefix(PUBLIC))).verify(signed, _decoded(encoded))
    except (ValueError, BadSignatureError):
        return False
    return True


def _is_github(source: Source, body: bytes, headers: Mapping[str, str], _now: float) -> bool:
    """GitHub signs no timestamp: a replay is detected by the key."""
    expected = [f"sha256={_hex(secret, body)}" for secret in source.secrets]
    return _matches(expected, [headers.get("x-hub-signature-256", "")])


def _is_stripe(source: Source, body: bytes, headers: Mapping[str, str], now: float) -> bool:
    parts = [part.partition("=") for part in headers.get("stripe-signature", "").split(",")]
    times = [value for name, _, value in parts if name.strip() == "t"]
    at = _timestamp(times[0], now) if len(times) == 1 else None
    if at is None:
        return False
    expected = [_hex(secret, f"{at}.".encode() + body) for secret in source.secrets]
    return _matches(expected, [value for name, _, value in parts if name.strip() == "v1"])


def _is_hmac(source: Source, body: bytes, headers: Mapping[str, str], now: float) -> bool:
    signed = body
    if source.timestamp_header is not None:
        at = _timestamp(headers.get(source.timestamp_header.lower(), ""), now)
        if at is None:
            return False
        signed = f"{at}.".encode() + body
    given = headers.get(source.signature_header.lower(), "").removeprefix("sha256=")
    return _matches([_hex(secret, signed) for secret in source.secrets], [given.lower()])


def _timestamp(text: str, now: float) -> int | None:
    """None: not a timestamp, or outside the window."""
    if not (text.isascii() and text.isdigit() and len(text) <= 12):  # noqa: PLR2004
        return None
    at = int(text)
    return at if abs(now - at) <= WINDOW_SEC else None


def _hex(secret: str, data: bytes) -> str:
    return hmac.new(secret.encode(), data, hashlib.sha256).hexdigest()


def _matches(expected: Sequence[str], given: Sequence[str]) -> bool:
    """Compares all pairs, each in constant time."""
    pairs = [(one, other) for one in expected for other in given[:MAX_SIGNATURES]]
    return any([hmac.compare_digest(one.encode(), other.encode()) for one, other in pairs])  # noqa: C419
