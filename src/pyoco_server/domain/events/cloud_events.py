"""CloudEvents 1.0 over HTTP in structured, binary and batched mode. What is invalid is named."""

import base64
import codecs
import re
from collections import Counter
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any
from urllib.parse import unquote_to_bytes

import jsonschema_rs
import msgspec
from msgspec import UNSET, Struct, UnsetType

from pyoco_server.domain.inputs import Refused, decode_json
from pyoco_server.errors import InvalidRequest, UnsupportedMediaType

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
MAX_BATCH = 100
MAX_ATTRIBUTE = 2_000
"""Characters of `type` and `source`, which are stored with every record."""
MAX_INT = 2**31 - 1
SPEC_VERSION = "1.0"
REQUIRED = ("specversion", "type", "source", "id")

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_PREFIX = "ce-"
_NAME = re.compile(r"[a-z0-9]+")
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 - of RFC 9110
_MEDIA_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(\s*;\s*({_TOKEN}=({_TOKEN}|"(\\.|[^"\\])*"))?)*\s*')
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^\s;"]+)', re.IGNORECASE)
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Control characters, halves of surrogate pairs and noncharacters; those beyond 16 bits are checked apart."""
_QUOTED = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_TEXTS = re.compile(r"text/.*|application/(xml|yaml|javascript)|.*\+(xml|yaml)")
_CHARSETS = ("ascii", "utf-8", "iso8859-1", "cp1252", "utf-16", "shift_jis", "cp932", "euc_jp", "iso2022_jp")


class Mode(Enum):
    STRUCTURED = auto()
    BINARY = auto()
    BATCHED = auto()


class CloudEvent(Struct, frozen=True, kw_only=True):
    type: str
    source: str
    id: str
    data: Any | UnsetType = UNSET
    """Unset, the event has none, which differs from null."""


class MediaType(Struct, frozen=True):
    text: str

    @property
    def essence(self) -> str:
        return self.text.partition(";")[0].strip().lower()

    @property
    def charset(self) -> str | None:
        found = _CHARSET.search(self.text)
        return None if found is None else found[1]

    @property
    def is_json(self) -> bool:
        subtype = self.essence.partition("/")[2]
        return subtype == "json" or subtype.endswith("+json")

    @property
    def is_text(self) -> bool:
        return _TEXTS.fullmatch(self.essence) is not None

    @property
    def is_form(self) -> bool:
        return self.essence in _FORMS


def content_type(headers: Mapping[str, str]) -> MediaType:
    return MediaType(headers.get("content-type", ""))


def refuse_form(body: bytes, headers: Mapping[str, str]) -> None:
    """Raises UnsupportedMediaType. JSON is accepted under any type: `curl -d` declares it a form."""
    given = content_type(headers)
    if given.is_form and body.strip() and body.lstrip()[:1] not in b"{[":
        raise UnsupportedMediaType(
            f"content-type: {given.essence} is not supported; let the sender use application/json"
        )


def mode_of(headers: Mapping[str, str]) -> Mode | None:
    """None: not a CloudEvent. Raises UnsupportedMediaType for formats other than JSON."""
    given = content_type(headers)
    if given.essence.startswith("application/cloudevents"):
        return _event_format(given)
    return Mode.BINARY if any(_PREFIX + name in headers for name in REQUIRED) else None


def _event_format(given: MediaType) -> Mode:
    mode = {STRUCTURED: Mode.STRUCTURED, BATCHED: Mode.BATCHED}.get(given.essence)
    if mode is None:
        raise UnsupportedMediaType(
            f"content-type: {given.essence[:100]} is not supported; CloudEvents may be {STRUCTURED}, "
            f"{BATCHED}, or in binary mode"
        )
    if given.charset is not None and given.charset.lower() not in ("utf-8", "us-ascii"):
        raise UnsupportedMediaType("content-type: charset: JSON must be utf-8")
    return mode


# Batched mode


def members(body: bytes) -> list[bytes]:
    """The events of a batch, each as JSON, so that each can be refused alone. Raises InvalidRequest."""
    try:
        found = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"body: a batch must be a JSON array: {error}") from error
    if len(found) > MAX_BATCH:
        raise InvalidRequest(f"body: a batch may have {MAX_BATCH} events, not {len(found)}")
    return [bytes(one) for one in found]


# Structured mode


def read_structured(body: bytes) -> CloudEvent:
    """Raises InvalidRequest, which names the attribute."""
    event = parsed_json(body)
    if not isinstance(event, dict):
        raise InvalidRequest("body: a CloudEvent must be a JSON object")
    attributes = {
        name: value
        for name, value in event.items()
        if name not in ("data", "data_base64") and _is_set(name, value)
    }
    return _event(attributes, _structured_data(event, attributes))


def _is_set(name: str, value: Any) -> bool:
    """Null is the same as absent. Raises InvalidRequest for a value that no attribute can have."""
    _require(_NAME.fullmatch(name) is not None, name, "attribute names consist of a to z and 0 to 9")
    is_number = isinstance(value, int) and not isinstance(value, bool)
    _require(
        value is None or isinstance(value, str | bool) or is_number,
        name,
        "must be a string, an integer or a boolean",
    )
    _require(not is_number or -MAX_INT - 1 <= value <= MAX_INT, name, "must fit into 32 bits")
    return value is not None


def _structured_data(event: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    encoded = event.get("data_base64")
    if encoded is None:
        return event.get("data", UNSET)
    _require("data" not in event, "data_base64", "not allowed together with data")
    _require(isinstance(encoded, str), "data_base64", "must be a string")
    try:
        data = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise InvalidRequest("data_base64: is not base64") from None
    declared = attributes.get("datacontenttype")
    if declared is None:
        return _untyped(data)
    is_json = isinstance(declared, str) and MediaType(declared).is_json
    return _json_data(data, "data_base64") if is_json else _bytes_data(data, declared)


def _untyped(data: bytes) -> Any:
    """Without a type, data is JSON; senders of other bytes often leave the type out, too."""
    try:
        return decode_json(data)
    except Refused:
        return _bytes_data(data, None)


# Binary mode


def read_binary(body: bytes, headers: Mapping[str, str]) -> CloudEvent:
    """Raises InvalidRequest, which names the attribute, or UnsupportedMediaType."""
    names = Counter(name for name in map(str.lower, _names(headers)) if name.startswith(_PREFIX))
    attributes: dict[str, Any] = {}
    for header, count in names.items():
        name = header.removeprefix(_PREFIX)
        _require(count == 1, name, "given twice")
        _require(_NAME.fullmatch(name) is not None, name, "attribute names consist of a to z and 0 to 9")
        attributes[name] = _header_value(name, headers[header])
    _require("datacontenttype" not in attributes, "datacontenttype", "is the header content-type")
    refuse_form(body, headers)
    declared = content_type(headers)
    if declared.text and not declared.is_form:
        attributes["datacontenttype"] = declared.text
    return _event(attributes, _binary_data(body, declared))


def _names(headers: Mapping[str, str]) -> list[str]:
    """With repetitions; the keys of a mapping of headers may have none."""
    return [name for name, _ in headers.items()]


def _header_value(name: str, value: str) -> str:
    """Quotes first, then one round of percent-decoding."""
    quoted = _QUOTED.fullmatch(value)
    if quoted is not None:
        value = re.sub(r"\\(.)", r"\1", quoted[1])
    try:
        return unquote_to_bytes(value.encode("latin-1", "replace")).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name}: is not percent-encoded UTF-8") from None


def _binary_data(body: bytes, declared: MediaType) -> Any:
    if not declared.text or declared.is_json or declared.is_form:
        return _json_data(body, "body") if body.strip() else UNSET
    if not body:
        return UNSET
    return _text_data(body, declared) if declared.is_text else _bytes_data(body, declared.text)


def _text_data(body: bytes, declared: MediaType) -> str:
    charset = declared.charset or "utf-8"
    try:
        known = codecs.lookup(charset).name
    except (LookupError, ValueError):
        known = ""
    if known not in _CHARSETS:
        raise UnsupportedMediaType(f"content-type: charset {charset[:40]!r} is not supported; use utf-8")
    try:
        return body.decode(known)
    except UnicodeDecodeError:
        raise InvalidRequest(f"body: is not {known} text") from None


# Any mode


def _event(attributes: Mapping[str, Any], data: Any) -> CloudEvent:
    for name in REQUIRED:
        _require(name in attributes, name, "required in a CloudEvent")
    for name, value in attributes.items():
        _check(name, value)
    return CloudEvent(**{name: attributes[name] for name in ("type", "source", "id")}, data=data)


def _check(name: str, value: Any) -> None:
    if name in _RULES:
        _require(isinstance(value, str), name, "must be a string")
        _require(value != "", name, "must not be empty")
        is_valid, problem = _RULES[name]
        _require(is_valid(value), name, problem)
    if isinstance(value, str):
        _require(not _has_forbidden(value), name, "must not have control characters or noncharacters")


def _has_forbidden(text: str) -> bool:
    return _FORBIDDEN.search(text) is not None or any(
        ord(character) & 0xFFFE == 0xFFFE  # noqa: PLR2004 - the last two of each plane
        for character in text
        if character > "\uffff"
    )


def _format(name: str) -> Any:
    """A check of the JSON Schema library: RFC 3339 and RFC 3986."""
    schema = {"type": "string", "format": name}
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid


def _any(_text: str) -> bool:
    return True


def _is_media_type(text: str) -> bool:
    return _MEDIA_TYPE.fullmatch(text) is not None


def _is_short(text: str) -> bool:
    return len(text) <= MAX_ATTRIBUTE


_is_reference = _format("uri-reference")
_SHORT = f"at most {MAX_ATTRIBUTE:,} characters"
_RULES: dict[str, tuple[Any, str]] = {
    "specversion": (SPEC_VERSION.__eq__, f"must be {SPEC_VERSION}"),
    "type": (_is_short, _SHORT),
    "source": (
        lambda text: _is_short(text) and _is_reference(text),
        f"must be a URI or a relative reference, {_SHORT}",
    ),
    "id": (_any, ""),
    "subject": (_any, ""),
    "time": (_format("date-time"), "must be RFC 3339, as 2026-02-03T04:05:06Z"),
    "dataschema": (_format("uri"), "must be an absolute URI"),
    "datacontenttype": (_is_media_type, "must be a media type, as application/json"),
}


def _require(is_valid: bool, name: str, problem: str) -> None:  # noqa: FBT001
    if not is_valid:
        raise InvalidRequest(f"{name[:40]}: {problem}")


def _json_data(data: bytes, name: str) -> Any:
    try:
        return decode_json(data)
    except Refused as error:
        raise InvalidRequest(f"{name}: is not JSON: {error}") from error


def _bytes_data(data: bytes, declared: str | None) -> dict[str, str | None]:
    return {"$base64": base64.b64encode(data).decode(), "type": declared}


def parsed_json(body: bytes) -> Any:
    try:
        return decode_json(body)
    except Refused as error:
        raise InvalidRequest(f"body: is not JSON: {error}" if not error.path else str(error)) from error
