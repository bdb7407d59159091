"""Parse an event from any of its forms into one `EventRequest`."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from pyoco_server.domain.events.cloud_events import (
    CloudEvent,
    Mode,
    mode_of,
    parsed_json,
    read_binary,
    read_structured,
    refuse_form,
)
from pyoco_server.domain.events.templates import MAX_TEXT, MAX_YEAR, Period, Template, period
from pyoco_server.errors import InvalidRequest, InvalidYearMonth

_KEY = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
MAX_LABEL = 200
"""Characters of an event name or source."""

MAX_ID = 256
"""Characters of an id or a wait_key, as in commands to executions."""

UNUSABLE = -1
"""An invalid year or month, which differs from an absent one."""

KEY_FIELDS = ("idempotency_key", "idempotencyKey", "event_id", "eventId")
KEY_HEADERS = ("x-idempotency-key", "idempotency-key", "webhook-id")


class ResumeTarget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The waiting node an event names: by execution and node id, or by wait_key."""

    execution_id: str | None = None
    node_id: str | None = None
    wait_key: str | None = None


class EventRequest(Struct, frozen=True, kw_only=True):
    """An event in its one normal form."""

    template_id: str | None = None
    event_name: str | None = None
    source: str | None = None
    key: str | None = None
    year: int | None = None
    month: int | None = None
    mfcloud_url: str | None = None
    notes: str | None = None
    data: Any = None
    is_key_ignored: bool = False
    """An unusable key was given."""
    resume: ResumeTarget | UnsetType = UNSET
    """Unset, it is not encoded: the stored form and digest of other events stay as in older versions."""
    is_data_null: bool | UnsetType = UNSET
    """The data is null, which differs from no data."""
    is_period_in_data: bool | UnsetType = UNSET
    """Year and month are from the data of a CloudEvent, where they may mean something else."""

    @property
    def has_data(self) -> bool:
        return self.data is not None or self.is_data_null is True

    @property
    def target(self) -> ResumeTarget | None:
        """The waiting node named by the event, unless the event or its source names a template."""
        return None if self.template_id is not None or self.resume is UNSET else self.resume


class ChosenKey(Struct, frozen=True):
    key: str | None
    is_ignored: bool


def read_request(body: bytes, headers: Mapping[str, str]) -> EventRequest:
    """`headers` by lower-case name. Raises InvalidRequest, which names the invalid field."""
    match mode_of(headers):
        case Mode.STRUCTURED | Mode.BATCHED:  # the parts of a batch are structured events
            return _of_cloud_event(read_structured(body), headers)
        case Mode.BINARY:
            return _of_cloud_event(read_binary(body, headers), headers)
    refuse_form(body, headers)
    return from_fields(json_object(body), headers)


def from_fields(fields: Mapping[str, Any], headers: Mapping[str, str]) -> EventRequest:
    chosen = _chosen_key(fields, headers)
    template_id = _template_id(fields)
    return EventRequest(
        template_id=template_id,
        event_name=_label(fields, "event_name", "eventName"),
        source=_label(fields, "source", "event_source"),
        key=chosen.key,
        year=_number(fields.get("year")),
        month=_number(fields.get("month")),
        mfcloud_url=_text(fields, "mfcloud_url"),
        notes=_text(fields, "notes"),
        data=fields.get("data"),
        is_key_ignored=chosen.is_ignored,
        resume=UNSET if template_id is not None else _resume_target(fields),
    )


def _chosen_key(
    fields: Mapping[str, Any], headers: Mapping[str, str], last: str | None = None
) -> "ChosenKey":
    return choose_key([*map(fields.get, KEY_FIELDS), *map(headers.get, KEY_HEADERS), last])


def with_source(request: EventRequest, source: str) -> EventRequest:
    """`source` from the query; the one in the body takes precedence."""
    return msgspec.structs.replace(request, source=request.source or _label({"source": source}, "source"))


def _resume_target(fields: Mapping[str, Any]) -> ResumeTarget | UnsetType:
    """The waiting node named by the event. Templates take precedence over it."""
    execution_id, node_id, wait_key = (
        first_given(fields, *names)
        for names in (("execution_id", "executionId"), ("node_id", "nodeId"), ("wait_key", "waitKey"))
    )
    if wait_key is None and (execution_id is None or node_id is None):
        return UNSET
    if (execution_id is None) != (node_id is None):
        raise InvalidRequest("execution_id, node_id: with a wait_key, give both or neither")
    return ResumeTarget(
        execution_id=_checked_text(execution_id, "execution_id", MAX_ID),
        node_id=_checked_text(node_id, "node_id", MAX_ID),
        wait_key=_checked_text(_digits_as_text(wait_key), "wait_key", MAX_ID),
    )


def _digits_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def json_object(body: bytes) -> dict[str, Any]:
    """An empty body is an empty object."""
    value = parsed_json(body) if body.strip() else {}
    if not isinstance(value, dict):
        raise InvalidRequest("body: must be a JSON object")
    return value


def choose_key(candidates: Iterable[Any]) -> ChosenKey:
    """The first valid key; a number is valid too. Keys are never truncated."""
    is_ignored = False
    for candidate in candidates:
        text = _as_text(candidate)
        if not text:
            continue
        if _KEY.fullmatch(text) is not None:
            return ChosenKey(text, is_ignored)
        is_ignored = True
    return ChosenKey(None, is_ignored)


def _as_text(candidate: Any) -> str:
    if candidate is None:
        return ""
    is_number = isinstance(candidate, int) and not isinstance(candidate, bool)
    if isinstance(candidate, str) or is_number:
        return str(candidate)
    return "\0"  # present, but never a valid key


def _template_id(fields: Mapping[str, Any]) -> str | None:
    """Any value names a template; an invalid id names one that does not exist."""
    found = first_given(fields, "template_id", "templateId")
    return found if found is None or isinstance(found, str) else str(found)


def first_given(fields: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        value = fields.get(name)
        if value is not None and value != "":
            return value
    return None


def _label(fields: Mapping[str, Any], *names: str) -> str | None:
    return _checked_text(first_given(fields, *names), names[0], MAX_LABEL)


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    return _checked_text(first_given(fields, name), name, MAX_TEXT)


def _checked_text(value: Any, name: str, limit: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: must be a string")
    if len(value) > limit:
        raise InvalidRequest(f"{name}: at most {limit} characters")
    return value


def _number(value: Any) -> int | None:
    """Accepts `2026`, `2026.0` and `"2026"`. None: absent; UNUSABLE: invalid."""
    if value is None or value == "":
        return None
    is_digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 4  # noqa: PLR2004
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not (is_digits or is_whole):
        return UNUSABLE
    return int(value) if 0 <= int(value) <= MAX_YEAR else UNUSABLE


# CloudEvents

_OWN_TEXTS = {
    "template_id": MAX_LABEL,
    "templateId": MAX_LABEL,
    "mfcloud_url": MAX_TEXT,
    "notes": MAX_TEXT,
    **dict.fromkeys(("execution_id", "executionId", "node_id", "nodeId", "wait_key", "waitKey"), MAX_ID),
}


def _of_cloud_event(event: CloudEvent, headers: Mapping[str, str]) -> EventRequest:
    data = None if event.data is UNSET else event.data
    own = _own_fields(data)
    request = from_fields(own, {})
    chosen = _chosen_key({}, headers, cloud_key(event.source, event.id))
    return msgspec.structs.replace(
        request,
        event_name=event.type,
        source=event.source,
        key=chosen.key,
        is_key_ignored=chosen.is_ignored,
        data=data,
        is_data_null=True if event.data is None else UNSET,
        is_period_in_data=True if own.keys() & {"year", "month"} else UNSET,
    )


def _own_fields(data: Any) -> dict[str, Any]:
    """Fields that CloudEvents lack may be given in the data. Values that cannot be meant are left alone."""
    if not isinstance(data, dict):
        return {}
    found = {name: data[name] for name in ("year", "month") if data.get(name) not in (None, "")}
    for name, limit in _OWN_TEXTS.items():
        value = _digits_as_text(data.get(name))
        if isinstance(value, str) and len(value) <= limit:
            found[name] = value
    if _is_half_a_place(found):
        for name in ("execution_id", "executionId", "node_id", "nodeId"):
            found.pop(name, None)
    return found


def _is_half_a_place(fields: Mapping[str, Any]) -> bool:
    places = (("execution_id", "executionId"), ("node_id", "nodeId"))
    return len([names for names in places if first_given(fields, *names) is not None]) == 1


def cloud_key(source: str, event_id: str) -> str:
    """Source and id together are unique. A source is a URI, so it may have characters invalid in a key."""
    plain = f"{source}:{event_id}"
    if _KEY.fullmatch(plain) is not None:
        return plain
    return "ce-" + hashlib.sha256(f"{source}\0{event_id}".encode()).hexdigest()[:40]


# Together with its template


def decide_period(request: EventRequest, template: Template) -> Period | None:
    """None: the run has no period. Raises InvalidYearMonth."""
    found = event_period(request, template)
    is_given = request.year is not None or request.month is not None
    is_meant = is_given and request.is_period_in_data is not True
    if found is None and (is_meant or template.is_month_needed):
        raise InvalidYearMonth
    return found


def event_period(request: EventRequest, template: Template | None) -> Period | None:
    """Year and month separately: the request's if given, else the template's."""
    year, month = (None, None) if template is None else (template.year, template.month)
    return period(
        year if request.year is None else request.year, month if request.month is None else request.month
    )


def run_params(
    action_params: Mapping[str, Any], request: EventRequest, template: Template, about: Period | None
) -> dict[str, Any]:
    month = {} if about is None else {"year": about.year, "month": about.month, "ym": about.ym}
    params = {
        **action_params,
        **month,
        "mfcloud_url": request.mfcloud_url or template.mfcloud_url,
        "notes": request.notes or template.notes,
        "trigger": {
            "template_id": template.id,
            "event_name": request.event_name,
            "source": request.source,
            "idempotency_key": request.key,
        },
    }
    return {**params, "event": request.data} if request.has_data else params


def content_digest(request: EventRequest) -> str:
    """Equal for events of equal content, whatever the form of their JSON."""
    content = msgspec.structs.replace(
        request, key=None, is_key_ignored=False, is_data_null=UNSET, is_period_in_data=UNSET
    )
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
