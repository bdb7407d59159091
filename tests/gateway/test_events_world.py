"""Events as the world sends them: filters, GitHub's webhooks, CloudEvents, batches and public keys."""

import base64
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from nacl.signing import SigningKey

from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.events.start import StartTemplate
from support.events import (
    ACTION,
    SECRET,
    SOURCES,
    TEMPLATES,
    URL,
    a_template,
    define,
    events_gateway,
    from_github,
    put,
    records,
    run_ids,
    run_params,
    without_month,
)
from support.gateway import RunningGateway, memory_app

BATCHED = {"content-type": "application/cloudevents-batch+json"}
STRUCTURED = {"content-type": "application/cloudevents+json"}


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with events_gateway() as found:
        yield found


async def filtered_by(gateway: RunningGateway, when: str, template_id: str = "close") -> None:
    await put(gateway.client, f"{TEMPLATES}/{template_id}", without_month(when=when))


# Year and month


async def test_a_template_that_has_year_and_month_also_as_zero_asks_for_them(
    gateway: RunningGateway,
) -> None:
    """Made without them, it does not; and what was read may be written again."""
    http, path = gateway.client, f"{TEMPLATES}/close"
    for given_, needs in ((without_month(), False), (a_template(year=0, month=0), True)):
        made = await put(http, path, given_)
        assert made["needs_month"] is needs
        answer = await http.post(URL, json={})
        assert answer.status_code == (400 if needs else 200), answer.text
        read = {name: made[name] for name in made if name not in ("id", "updated_at")}
        assert (await put(http, path, read))["needs_month"] is needs
    assert (await put(http, path, a_template(year=0, month=0, needs_month=False)))["needs_month"] is False


# Filters


@pytest.mark.parametrize(
    ("when", "body", "is_passing"),
    [
        ("event.ref == 'main'", {"data": {"ref": "main"}}, True),
        ("event.ref == 'main'", {"data": {"ref": "other"}}, False),
        ("event.ref == 'main'", {"data": {}}, False),
        ("event.ref == 'main'", {}, False),
        ("has(event.ref)", {"data": {"ref": None}}, True),
        (f"event_name == '{ACTION}' && source == 'erp'", {"event_name": ACTION, "source": "erp"}, True),
        ("source == null", {}, True),
        ("event.labels.exists(l, l.name == 'bug')", {"data": {"labels": [{"name": "bug"}]}}, True),
        ("event.labels.exists(l, l.name == 'bug')", {"data": {"labels": []}}, False),
        ("event.n > 1", {"data": {"n": "text"}}, False),
        ("event", {"data": {"n": 1}}, False),
        ("event == 7", {"data": 7}, True),
    ],
)
async def test_an_event_that_does_not_pass_the_filter_starts_nothing(
    gateway: RunningGateway, when: str, body: dict[str, Any], *, is_passing: bool
) -> None:
    await filtered_by(gateway, when)
    answer = await gateway.client.post(URL, json={"idempotency_key": "k", **body})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["triggered"] is is_passing
    assert len(run_ids(gateway)) == is_passing
    if not is_passing:
        assert (found["reason_code"], found["template_id"]) == ("filtered", "close")
        record = records(gateway)[-1]
        assert (record.status, record.details.reason_code, record.details.template_id) == (
            "skipped",
            "filtered",
            "close",
        )
        assert record.details.reason == found["message"]
        assert found["message"].startswith("when: ")


async def test_a_filtered_event_leaves_its_key_and_can_be_replayed(gateway: RunningGateway) -> None:
    await filtered_by(gateway, "event.n > 5")
    body = {"idempotency_key": "k", "data": {"n": 3}}
    first = (await gateway.client.post(URL, json=body)).json()
    await filtered_by(gateway, "event.n > 1")
    replayed = (await gateway.client.post(f"{URL}/{first['event_id']}/replay")).json()
    assert (replayed["triggered"], replayed["duplicate"]) == (True, False)
    assert (await gateway.client.post(URL, json=body)).json()["triggered"] is True, "its key was not used"


async def test_a_filter_is_for_events_and_not_for_a_start_by_hand(gateway: RunningGateway) -> None:
    await filtered_by(gateway, "false")
    assert (await gateway.client.post(f"{TEMPLATES}/close/start")).json()["triggered"] is True


async def test_filters_decide_between_templates_of_one_event(gateway: RunningGateway) -> None:
    http = gateway.client
    await filtered_by(gateway, "event.ref == 'main'")
    await filtered_by(gateway, "event.ref != 'main'", "other")
    for ref, expected in (("main", "close"), ("dev", "other")):
        answer = await http.post(URL, json={"event_name": ACTION, "data": {"ref": ref}})
        assert answer.json()["template_id"] == expected
    none = (await http.post(URL, json={"event_name": ACTION, "data": {}})).json()
    assert (none["reason_code"], "template_id" in none) == ("filtered", False)
    await filtered_by(gateway, "true", "third")
    both = await http.post(URL, json={"event_name": ACTION, "data": {"ref": "main"}})
    assert (both.status_code, both.json()["detail"]) == (
        409,
        "Multiple templates matched event_name. Specify template_id.",
    )


@pytest.mark.parametrize(
    ("when", "problem"),
    [
        ("event.ref ==", "column 13: "),
        ("evnt.ref == 'x'", "column 5: undeclared reference to 'evnt.ref'"),
        ("input.x == 1", "undeclared reference to 'input.x'"),
        ("1 + 1", "not true or false"),
        ("event.map(x, x) == []", "map is not allowed"),
        ("true || " * 200 + "true", "1,000 are allowed"),
        ("", "when"),
        (5, "when"),
    ],
)
async def test_an_invalid_filter_is_refused_when_it_is_put(
    gateway: RunningGateway, when: Any, problem: str
) -> None:
    answer = await gateway.client.put(f"{TEMPLATES}/bad", json=without_month(when=when))
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert "when" in answer.text
    assert problem in answer.text


async def test_a_filter_that_would_take_too_long_lets_nothing_pass(gateway: RunningGateway) -> None:
    """Its cost is bounded before it is evaluated: this one would compare 81 million numbers."""
    await filtered_by(gateway, "event.all(x, event == event)")
    found = (await gateway.client.post(URL, json={"data": [*range(9_000)]})).json()
    assert found["reason_code"] == "filtered"
    assert "steps" in found["message"]


# GitHub


SAMPLES: list[tuple[str, dict[str, Any], str, bool]] = [
    ("push", {"ref": "refs/heads/main", "commits": []}, "event.ref == 'refs/heads/main'", True),
    ("push", {"ref": "refs/tags/v1", "deleted": True}, "event.ref.startsWith('refs/heads/')", False),
    ("issues", {"action": "opened", "issue": {"labels": []}}, "event.action == 'opened'", True),
    (
        "pull_request",
        {"action": "closed", "pull_request": {"merged": True}},
        "event.pull_request.merged",
        True,
    ),
    ("workflow_run", {"workflow_run": {"conclusion": None}}, "event.workflow_run.conclusion == null", True),
    ("gollum", {"pages": [{"title": "ホーム"}]}, "event.pages.exists(p, p.title == 'ホーム')", True),
    ("installation", {"installation": {"id": 2**53}}, "event.installation.id > 0", True),
    ("ping", {"zen": "Keep it simple.", "hook_id": 1}, "true", False),
]


async def test_github_events_of_several_kinds_pass_their_filters_or_not() -> None:
    """The public example payloads: test_github_payloads.py."""
    async with memory_app() as gateway:
        await put(gateway.client, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})
        for number, (event, payload, when, is_passing) in enumerate(SAMPLES):
            await define(gateway.client, "sample", action=event, when=when)
            body = msgspec.json.encode({**payload, "number": number})
            answer = await gateway.client.post(f"{URL}?signature_source=gh", **from_github(body, event))
            assert answer.status_code == 200, answer.text
            found = answer.json()
            assert found["triggered"] is is_passing, event
            if is_passing:
                params = await run_params(gateway, found["run_id"])
                assert params["event"] == {**payload, "number": number}


@pytest.mark.parametrize("media", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=b"])
async def test_a_form_is_refused_with_what_to_send_instead(gateway: RunningGateway, media: str) -> None:
    """GitHub's default content type. Who is not admitted learns nothing of it."""
    await put(gateway.client, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})
    event = from_github(b"payload=%7B%7D", "push", **{"content-type": media})
    for url in (URL, f"{URL}?signature_source=gh"):
        answer = await gateway.client.post(url, **event)
        assert answer.status_code == 415, answer.text
        assert "application/json" in answer.json()["detail"]
        assert answer.json()["reason_code"] == "http_415"
        assert records(gateway)[-1].status == "rejected"
    forged = {**event, "content": b"payload=%7B1%7D"}
    assert (await gateway.client.post(f"{URL}?signature_source=gh", **forged)).status_code == 401


async def test_json_that_curl_calls_a_form_is_an_event(gateway: RunningGateway) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert (await gateway.client.post(URL, content=b' {"data": {}}', headers=headers)).status_code == 200


# CloudEvents


def cloud_event(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "type": ACTION, "source": "/erp", "id": str(number), **changes}


async def test_data_of_any_type_reaches_the_flow(gateway: RunningGateway) -> None:
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"data": value}, value) for value in ({"a": 1}, [1], "text", 7, 1.5, False, None)
    ]
    cases.append(({"data_base64": "AP8=", "datacontenttype": "a/b"}, {"$base64": "AP8=", "type": "a/b"}))
    for number, (changes, expected) in enumerate(cases):
        body = msgspec.json.encode(cloud_event(number, **changes))
        answer = await gateway.client.post(URL, content=body, headers=STRUCTURED)
        assert answer.status_code == 200, answer.text
        params = await run_params(gateway, answer.json()["run_id"])
        assert "event" in params
        assert params["event"] == expected


async def test_headers_of_a_binary_event_are_decoded(gateway: RunningGateway) -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-type": ACTION.replace("c", "%63"),
        "ce-source": "/erp",
        "ce-id": "1",
    }
    answer = await gateway.client.post(
        URL, content=b"text", headers={**headers, "content-type": "text/plain"}
    )
    assert answer.status_code == 200, answer.text
    assert (await run_params(gateway, answer.json()["run_id"]))["event"] == "text"
    twice = [*headers.items(), ("ce-id", "2")]
    assert (await gateway.client.post(URL, headers=twice)).json()["detail"] == "id: given twice"


@pytest.mark.parametrize("suffix", ["+xml", "+avro", "+protobuf", "-batch+xml"])
async def test_another_format_is_refused_with_those_that_are_not(
    gateway: RunningGateway, suffix: str
) -> None:
    headers = {"content-type": f"application/cloudevents{suffix}"}
    answer = await gateway.client.post(URL, content=b"x", headers=headers)
    assert answer.status_code == 415, answer.text
    assert "application/cloudevents+json" in answer.json()["detail"]


async def test_each_event_of_a_batch_is_answered_and_recorded_alone(gateway: RunningGateway) -> None:
    body = msgspec.json.encode(
        [
            cloud_event(1, data=1),
            cloud_event(2, time="lunchtime"),
            "text",
            cloud_event(3, type="unknown"),
            cloud_event(1, data=1),
            cloud_event(4, specversion="0.9"),
        ]
    )
    headers = {**BATCHED, "idempotency-key": "of the request, not of its events"}
    answer = await gateway.client.post(URL, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert list(answer.json()) == ["results"]
    results = answer.json()["results"]
    assert [one["status"] for one in results] == [200, 422, 422, 404, 200, 422]
    assert results[4]["run_id"] == results[0]["run_id"]
    assert [results[number]["duplicate"] for number in (0, 4)] == [False, True]
    assert [results[number]["detail"].partition(":")[0] for number in (1, 2, 5)] == [
        "time",
        "body",
        "specversion",
    ]
    assert [record.event_id for record in records(gateway)] == [one["event_id"] for one in results]
    assert len(run_ids(gateway)) == 1
    metrics = (await gateway.client.get("/metrics")).text
    assert 'pyoco_workflow_events_total{outcome="rejected"} 4.0' in metrics
    assert 'pyoco_workflow_events_total{outcome="duplicate"} 1.0' in metrics


async def test_an_empty_batch_is_fine_and_a_bad_one_is_refused_whole(gateway: RunningGateway) -> None:
    empty = await gateway.client.post(URL, content=b"[]", headers=BATCHED)
    assert (empty.status_code, empty.json()) == (200, {"results": []})
    assert records(gateway)[-1].details.reason_code == "empty_batch"
    for body in (b"{}", b"", msgspec.json.encode([cloud_event(n) for n in range(101)])):
        answer = await gateway.client.post(URL, content=body, headers=BATCHED)
        assert (answer.status_code, records(gateway)[-1].status) == (422, "rejected")
        assert "batch" in answer.json()["detail"]
    assert len(records(gateway)) == 4
    assert run_ids(gateway) == set()


async def test_without_nats_a_batch_is_to_be_sent_again_and_starts_nothing_twice(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = msgspec.json.encode([cloud_event(number) for number in range(3)])
    with monkeypatch.context() as patched:
        real = StartTemplate.__call__

        async def failing(self: StartTemplate, order: Any) -> Any:
            if order.request.key.endswith(":1") or run_ids(gateway):
                raise NatsUnavailable("nats unavailable")
            return await real(self, order)

        patched.setattr(StartTemplate, "__call__", failing)
        answer = await gateway.client.post(URL, content=body, headers=BATCHED)
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert "1 of 3 events handled" in answer.json()["detail"]
    again = (await gateway.client.post(URL, content=body, headers=BATCHED)).json()["results"]
    assert [one["duplicate"] for one in again] == [True, False, False]
    assert len(run_ids(gateway)) == 3


async def test_a_signed_batch_is_verified_once_and_read_event_by_event(gateway: RunningGateway) -> None:
    key = SigningKey(b"a seed of exactly 32 bytes......")
    public = "whpk_" + base64.b64encode(key.verify_key.encode()).decode()
    await put(gateway.client, f"{SOURCES}/shop", {"kind": "standard", "secrets": [public]})
    body, now = msgspec.json.encode([cloud_event(1), cloud_event(2)]), int(time.time())
    signature = base64.b64encode(key.sign(f"msg_1.{now}.".encode() + body).signature).decode()
    headers = {
        **BATCHED,
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1a,{signature}",
    }
    url = f"{URL}?signature_source=shop"
    results = (await gateway.client.post(url, content=body, headers=headers)).json()["results"]
    assert [one["triggered"] for one in results] == [True, True], "each by its own id"
    assert (await gateway.client.post(url, content=body + b" ", headers=headers)).status_code == 401


# Whatever arrives


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
known = st.sampled_from(
    ["specversion", "id", "type", "source", "time", "data", "data_base64", "datacontenttype", "year", "month"]
)
objects = st.dictionaries(known | st.text(max_size=5), json_values, max_size=5)
bodies = st.binary(max_size=30) | (
    objects | st.lists(objects | st.builds(lambda more: cloud_event(1, **more), objects), max_size=3)
).map(msgspec.json.encode)
media_types = st.sampled_from(
    [
        *(one["content-type"] for one in (BATCHED, STRUCTURED)),
        *("application/json", "text/plain", "image/png", "application/x-www-form-urlencoded"),
    ]
)
attributes = st.dictionaries(
    st.sampled_from(["ce-specversion", "ce-id", "ce-type", "ce-source", "ce-time", "ce-ext"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=10),
    max_size=4,
)


async def test_nothing_that_arrives_is_an_error_of_the_server(gateway: RunningGateway) -> None:
    """Every request has one answer below 500, whatever its body and headers are."""
    sent: list[tuple[bytes, dict[str, str]]] = []

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(bodies, media_types, attributes)
    def gather(body: bytes, media: str, headers: dict[str, str]) -> None:
        sent.append((body, {**headers, "content-type": media}))

    gather()
    await filtered_by(gateway, "event.n > 1 || event_name == 'x'")
    for body, headers in sent:
        answer = await gateway.client.post(URL, content=body, headers=headers)
        assert answer.status_code < 500, (body, headers, answer.text)
        results = answer.json().get("results", [])
        assert all(one["status"] < 500 for one in results), (body, headers, answer.text)
