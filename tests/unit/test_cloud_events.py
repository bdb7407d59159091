"""CloudEvents 1.0: what is valid, what is not and which attribute is named, and what a flow receives."""

import base64
import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec import UNSET

from pyoco_server.domain.events.cloud_events import (
    BATCHED,
    MAX_BATCH,
    STRUCTURED,
    CloudEvent,
    Mode,
    members,
    mode_of,
    read_binary,
    read_structured,
)
from pyoco_server.domain.events.requests import EventRequest, decide_period, read_request, run_params
from pyoco_server.domain.events.templates import Step, Template, TriggerKind
from pyoco_server.errors import InvalidRequest, InvalidYearMonth, PyocoServerError, UnsupportedMediaType

LEAST = {"specversion": "1.0", "id": "7", "type": "shop.paid", "source": "https://shop.example"}
JSON = {"content-type": "application/json"}


def structured(**members: Any) -> CloudEvent:
    """`...` leaves a member out."""
    event = {name: value for name, value in {**LEAST, **members}.items() if value is not ...}
    return read_structured(msgspec.json.encode(event))


def binary(body: bytes = b"", content_type: str = "application/json", **attributes: str) -> CloudEvent:
    headers = {f"ce-{name}": value for name, value in {**LEAST, **attributes}.items()}
    return read_binary(body, {**headers, "content-type": content_type} if content_type else headers)


# Valid and invalid events: the cases of the specification's conformance tests, and more

VALID: dict[str, dict[str, Any]] = {
    "the least": {},
    "null for what is optional": dict.fromkeys(("datacontenttype", "dataschema", "subject", "time")),
    "null for an extension": {"ext": None},
    "all attributes": {
        "datacontenttype": "text/plain",
        "dataschema": "https://shop.example/schema",
        "subject": "order 7",
        "time": "2026-02-03T04:05:06Z",
    },
    "nanoseconds": {"time": "2026-02-03T04:05:06.123456789Z"},
    "an offset to the east": {"time": "2026-02-03T05:05:06+01:00"},
    "an offset to the west": {"time": "2026-02-03T03:05:06-01:00"},
    "a leap second": {"time": "1990-12-31T23:59:60Z"},
    "a fragment as the source": {"source": "#here"},
    "a path as the source": {"source": "/shop/7"},
    "an authority as the source": {"source": "//shop.example/7"},
    "a URN as the source": {"source": "urn:shop:7"},
    "a type with parameters": {"datacontenttype": 'text/plain; charset="utf-8"; x=y'},
    "extensions of each type": {
        "extinteger": -(2**31),
        "extboolean": True,
        "extstring": "text",
        "exturi": "https://shop.example",
        "exttimestamp": "2026-02-03T04:05:06Z",
        "extbinary": "TWE=",
        "0": 2**31 - 1,
    },
    "text beyond 16 bits": {"subject": "😀 注文"},
}
INVALID: dict[str, tuple[dict[str, Any], str]] = {
    **{f"no {name}": ({name: ...}, name) for name in LEAST},
    **{f"null as {name}": ({name: None}, name) for name in LEAST},
    **{f"empty {name}": ({name: ""}, name) for name in LEAST},
    **{f"empty {name}": ({name: ""}, name) for name in ("datacontenttype", "dataschema", "subject", "time")},
    "another version": ({"specversion": "0.9"}, "specversion"),
    "the version as a number": ({"specversion": 1.0}, "specversion"),
    "the id as a number": ({"id": 25}, "id"),
    "the id as an object": ({"id": {"a": "b"}}, "id"),
    "the type as a boolean": ({"type": True}, "type"),
    "no time at all": ({"time": "lunchtime"}, "time"),
    "no seconds": ({"time": "2026-02-03T04:05Z"}, "time"),
    "an unknown offset": ({"time": "2026-02-03T04:05:06X"}, "time"),
    "an offset of 25 hours": ({"time": "2026-02-03T04:05:06+25:00"}, "time"),
    "an offset of letters": ({"time": "2026-02-03T04:05:06+xx:00"}, "time"),
    "an offset of hours": ({"time": "2026-02-03T04:05:06+05"}, "time"),
    "no offset": ({"time": "2026-02-03T04:05:06"}, "time"),
    "a day that is not there": ({"time": "2026-02-30T04:05:06Z"}, "time"),
    "the time as a number": ({"time": 1770091506}, "time"),
    "a type without a slash": ({"datacontenttype": "xyz"}, "datacontenttype"),
    "a type with a space": ({"datacontenttype": "text/pl ain"}, "datacontenttype"),
    "a relative schema": ({"dataschema": "schema/7"}, "dataschema"),
    "a space in the source": ({"source": "/shop 7"}, "source"),
    "a source that is not ASCII": ({"source": "/läden"}, "source"),
    "half a percent-encoding": ({"source": "/a%2"}, "source"),
    "a long source": ({"source": "/" * 2001}, "source"),
    "a long type": ({"type": "t" * 2001}, "type"),
    "a capital in a name": ({"MyExtension": "bad"}, "MyExtension"),
    "a dot in a name": ({"my.extension": "bad"}, "my.extension"),
    "a line in a name": ({"my_extension": "bad"}, "my_extension"),
    "an empty name": ({"": "bad"}, ": "),
    "a fraction": ({"ext": 1.5}, "ext"),
    "33 bits": ({"ext": 2**31}, "ext"),
    "a list": ({"ext": []}, "ext"),
    "a control character": ({"ext": "a\tb"}, "ext"),
    "a noncharacter": ({"subject": "a\ufdd0"}, "subject"),
    "a noncharacter beyond 16 bits": ({"ext": "\U0001ffff"}, "ext"),
    "data twice": ({"data": "text", "data_base64": "e30="}, "data_base64"),
    "bytes as a number": ({"data_base64": 5}, "data_base64"),
    "bytes that are not base64": ({"data_base64": "e3!="}, "data_base64"),
    "bytes that are not the JSON they claim to be": (
        {"data_base64": "e3s=", "datacontenttype": "application/json"},
        "data_base64",
    ),
}


@pytest.mark.parametrize("changes", VALID.values(), ids=VALID.keys())
def test_a_valid_event_is_read(changes: dict[str, Any]) -> None:
    found = structured(**changes)
    assert (found.id, found.type) == ("7", "shop.paid")
    assert found.source == changes.get("source", LEAST["source"])
    assert found.data is UNSET


@pytest.mark.parametrize(("changes", "named"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_event_is_refused_with_the_name_of_the_attribute(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        structured(**changes)
    assert raised.value.detail.startswith(named), raised.value.detail


@pytest.mark.parametrize("body", [b"", b"[]", b'"text"', b"{", b"\xff", b'{"id": 1, "id": 2}'])
def test_what_is_not_an_object_of_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_structured(body)


# Data, in structured mode


@pytest.mark.parametrize("data", [{"a": [1, None]}, [1, 2], "text", '{"a": 1}', 7, 1.5, True, False, None])
@pytest.mark.parametrize("declared", [..., None, "application/json", "application/vnd.shop+json"])
def test_data_is_the_event_whatever_its_type(data: Any, declared: Any) -> None:
    found = structured(data=data, datacontenttype=declared)
    assert type(found.data) is type(data)
    assert found.data == data


def test_text_and_xml_are_strings() -> None:
    assert structured(data="<a/>", datacontenttype="application/xml").data == "<a/>"
    assert structured(data="text", datacontenttype="text/plain").data == "text"


@pytest.mark.parametrize(
    ("data", "declared", "expected"),
    [
        (b'{"a": 1}', "application/json", {"a": 1}),
        (b"[1]", "application/vnd.shop+json; charset=utf-8", [1]),
        (b"null", "application/json", None),
        (b'{"a": 1}', ..., {"a": 1}),
        (b"\x00\xff", ..., {"$base64": "AP8=", "type": None}),
        (b"\x00\xff", "application/octet-stream", {"$base64": "AP8=", "type": "application/octet-stream"}),
        (b"text", "text/plain", {"$base64": "dGV4dA==", "type": "text/plain"}),
        (b"", "image/png", {"$base64": "", "type": "image/png"}),
    ],
)
def test_bytes_are_decoded_if_they_are_json_and_else_kept_as_base64(
    data: bytes, declared: Any, expected: Any
) -> None:
    encoded = base64.b64encode(data).decode()
    assert structured(data_base64=encoded, datacontenttype=declared).data == expected


# Binary mode


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b'{"a": 1}', "application/json", {"a": 1}),
        (b'{"a": 1}', "Application/JSON; charset=utf-8", {"a": 1}),
        (b'"text"', "application/vnd.shop+json", "text"),
        (b"[1]", "", [1]),
        (b"null", "application/json", None),
        (b"", "application/json", UNSET),
        (b"", "text/plain", UNSET),
        (b"", "", UNSET),
        (b'{"a": 1}', "text/plain", '{"a": 1}'),
        ("注文".encode(), "text/plain", "注文"),
        ("注文".encode("shift_jis"), "text/plain; charset=Shift_JIS", "注文"),
        (b"<a/>", "application/xml", "<a/>"),
        (b"<a/>", "application/atom+xml", "<a/>"),
        (b"\x00\xff", "image/png", {"$base64": "AP8=", "type": "image/png"}),
        (b" ", "application/octet-stream", {"$base64": "IA==", "type": "application/octet-stream"}),
        (b'{"a": 1}', "application/x-www-form-urlencoded", {"a": 1}),
    ],
)
def test_the_content_type_decides_what_the_body_is(body: bytes, content_type: str, expected: Any) -> None:
    found = binary(body, content_type)
    assert found.data == expected
    assert type(found.data) is type(expected)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("plain", "plain"),
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ("%e2%82%ac", "€"),
        ("%41%42", "AB"),
        ("a%2520b", "a%20b"),
        ("100%", "100%"),
        ('"quoted \\"text\\""', 'quoted "text"'),
        ('"%20"', " "),
    ],
)
def test_headers_are_unquoted_and_percent_decoded_once(sent: str, expected: str) -> None:
    assert binary(type=sent).type == expected


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn"]), min_size=1, max_size=50))
def test_any_text_survives_percent_encoding(text: str) -> None:
    assert binary(type=urllib.parse.quote(text, safe="")).type == text


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"id": ""}, "id"),
        ({"type": "%C0%A0"}, "type"),
        ({"type": "\xfc"}, "type"),
        ({"type": "a%00b"}, "type"),
        ({"time": "now"}, "time"),
        ({"specversion": "0.3"}, "specversion"),
        ({"datacontenttype": "text/plain"}, "datacontenttype"),
        ({"my-ext": "x"}, "my-ext"),
    ],
)
def test_an_invalid_header_is_named(attributes: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        binary(b"", "application/json", **attributes)
    assert raised.value.detail.startswith(f"{named}: "), raised.value.detail


@pytest.mark.parametrize("missing", list(LEAST))
def test_one_header_makes_it_a_cloud_event_and_the_missing_one_is_named(missing: str) -> None:
    headers = {f"ce-{name}": value for name, value in LEAST.items() if name != missing}
    assert mode_of(headers) is Mode.BINARY
    with pytest.raises(InvalidRequest, match=f"^{missing}: "):
        read_binary(b"", headers)


class Headers(dict[str, str]):
    """With a header twice, as those of a request may have."""

    def items(self) -> Any:
        return [*super().items(), ("ce-id", "8")]


def test_an_attribute_may_be_given_once() -> None:
    with pytest.raises(InvalidRequest, match=r"^id: given twice"):
        read_binary(b"", Headers({f"ce-{name}": value for name, value in LEAST.items()}))


@pytest.mark.parametrize(
    ("body", "content_type", "error"),
    [
        (b"text", "application/json", InvalidRequest),
        (b"text", "", InvalidRequest),
        (b"\xff", "text/plain", InvalidRequest),
        (b"\xff", "text/plain; charset=us-ascii", InvalidRequest),
        (b"text", "text/plain; charset=klingon", UnsupportedMediaType),
        (b"text", "text/plain; charset=unicode_escape", UnsupportedMediaType),
        (b"a=b", "application/x-www-form-urlencoded", UnsupportedMediaType),
    ],
)
def test_a_body_that_is_not_what_it_claims_to_be_is_refused(
    body: bytes, content_type: str, error: type[PyocoServerError]
) -> None:
    with pytest.raises(error):
        binary(body, content_type)


# Formats and batches


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (STRUCTURED, Mode.STRUCTURED),
        ("Application/CloudEvents+JSON ; charset=UTF-8", Mode.STRUCTURED),
        (BATCHED, Mode.BATCHED),
        ("application/json", None),
        ("", None),
    ],
)
def test_the_mode_follows_from_the_content_type(content_type: str, expected: Mode | None) -> None:
    assert mode_of({"content-type": content_type}) is expected


@pytest.mark.parametrize(
    "content_type",
    [
        *(
            f"application/cloudevents{kind}+{format_}"
            for kind in ("", "-batch")
            for format_ in ("xml", "avro")
        ),
        "application/cloudevents+protobuf",
        "application/cloudevents",
        f"{STRUCTURED}; charset=utf-16",
    ],
)
def test_other_formats_are_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType) as raised:
        mode_of({"content-type": content_type, **{f"ce-{name}": value for name, value in LEAST.items()}})
    assert raised.value.status == 415


def test_a_batch_has_a_hundred_events_at_most() -> None:
    assert members(b"[]") == []
    assert members(b'[{"a": 1}, 5]') == [b'{"a": 1}', b"5"]
    assert len(members(msgspec.json.encode([LEAST] * MAX_BATCH))) == MAX_BATCH
    for body in (msgspec.json.encode([LEAST] * (MAX_BATCH + 1)), b"{}", b"", b"[", b"null"):
        with pytest.raises(InvalidRequest, match=r"^body: "):
            members(body)


# What a flow receives

TEMPLATE = Template(
    id="t",
    name="t",
    updated_at="",
    steps=(Step(id="a", action="shop.paid", trigger_kind=TriggerKind.EXTERNAL_EVENT),),
)


def request_with(data: Any) -> EventRequest:
    return read_request(msgspec.json.encode({**LEAST, "data": data}), {"content-type": STRUCTURED})


def test_null_is_data_and_no_data_is_none() -> None:
    assert run_params({}, request_with(None), TEMPLATE, None)["event"] is None
    without = read_request(msgspec.json.encode(LEAST), {"content-type": STRUCTURED})
    assert "event" not in run_params({}, without, TEMPLATE, None)


@pytest.mark.parametrize(
    "data",
    [
        {"notes": ["a"], "mfcloud_url": 5.5, "template_id": {"a": 1}, "wait_key": []},
        {"year": 1987, "month": "March"},
        {"month": 3},
        {"node_id": "n"},
        {"notes": "x" * 5000},
    ],
)
def test_data_may_have_any_members_by_chance(data: dict[str, Any]) -> None:
    request = request_with(data)
    assert (request.template_id, request.target, request.data) == (None, None, data)
    assert decide_period(request, TEMPLATE) is None


def test_a_template_that_needs_a_month_takes_it_from_the_data() -> None:
    needs = msgspec.structs.replace(TEMPLATE, needs_month=True)
    found = decide_period(request_with({"year": 2026, "month": "2"}), needs)
    assert found is not None
    assert found.ym == "2026-02"
    with pytest.raises(InvalidYearMonth):
        decide_period(request_with({"year": 2026, "month": 13}), needs)


# Whatever arrives

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*LEAST, "time", "subject", "dataschema", "datacontenttype", "data", "data_base64"])
types = st.sampled_from(
    [STRUCTURED, BATCHED, "application/json", "text/plain", "text/plain; charset=x", "image/png", "", ";"]
)
headers = st.dictionaries(
    st.sampled_from([f"ce-{name}" for name in (*LEAST, "time", "x")]) | st.text("ce-x", max_size=5),
    st.text(st.characters(max_codepoint=255), max_size=20),
    max_size=6,
)


def is_read_or_refused(body: bytes, given_headers: Mapping[str, str]) -> None:
    with suppress(InvalidRequest):
        assert isinstance(read_request(body, given_headers), EventRequest)


@given(st.dictionaries(names | st.text(max_size=5), json_values, max_size=6))
def test_any_json_is_an_event_or_refused(changes: dict[str, Any]) -> None:
    is_read_or_refused(msgspec.json.encode({**LEAST, **changes}), {"content-type": STRUCTURED})


@given(st.binary(max_size=40) | json_values.map(msgspec.json.encode), types, headers)
def test_any_body_with_any_headers_is_an_event_or_refused(
    body: bytes, content_type: str, attributes: dict[str, str]
) -> None:
    least = {f"ce-{name}": value for name, value in LEAST.items()}
    is_read_or_refused(body, {**attributes, "content-type": content_type})
    is_read_or_refused(body, {**least, **attributes, "content-type": content_type})
