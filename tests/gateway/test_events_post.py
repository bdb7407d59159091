"""POST /api/workflow-events: who may send, what is meant, what is started, what is answered and recorded."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.domain.events.audit import MAX_OF_ADDRESS, Summary
from pyoco_server.domain.executions.records import LoggedCommit
from pyoco_server.memory.stores import MemoryExecutionLog
from pyoco_server.usecases.events.start import StartTemplate
from pyoco_server.usecases.ports.stores import Revision, WrongRevision
from pyoco_server.wiring.gateway import Tuning
from support.captured_logs import capture_logs
from support.events import (
    ACTION,
    URL,
    a_template,
    define,
    events_gateway,
    events_lab,
    lines_of,
    post,
    prepare,
    put,
    records,
    run_ids,
    run_params,
    send,
)
from support.gateway import RunningGateway, memory_app, new_key
from support.waiting import until

TOKEN = "the-token-of-the-test"  # noqa: S105


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with events_gateway() as found:
        yield found


@pytest.fixture
async def guarded() -> AsyncIterator[RunningGateway]:
    async with events_gateway(workflow_event_token=TOKEN) as found:
        yield found


async def refused(gateway: RunningGateway, body: Any = None, **options: Any) -> dict[str, Any]:
    """What a refused event is told; it left one record, of the same reason."""
    before = len(records(gateway))
    answer = await gateway.client.post(URL, json={} if body is None else body, **options)
    assert answer.status_code >= 400, answer.text
    found: dict[str, Any] = answer.json()
    recorded = records(gateway)[before:]
    assert [record.event_id for record in recorded] == [found["event_id"]]
    details = recorded[0].details
    assert (details.reason, details.reason_class, details.reason_code, details.retry_advice) == (
        found["detail"],
        found["reason_class"],
        found["reason_code"],
        found["retry_advice"],
    )
    return {**found, "http": answer.status_code, "recorded": recorded[0].status}


def told(answer: dict[str, Any]) -> tuple[int, str]:
    return answer["http"], answer["detail"]


async def started(gateway: RunningGateway, body: Any = None, **options: Any) -> dict[str, Any]:
    answer = await gateway.client.post(URL, json={} if body is None else body, **options)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# 2. Who may send


async def test_without_a_token_set_nobody_is_asked_for_one(gateway: RunningGateway) -> None:
    assert (await started(gateway))["triggered"] is True


async def test_with_a_token_set_an_event_without_it_is_refused(guarded: RunningGateway) -> None:
    answer = await refused(guarded)
    assert told(answer) == (401, "Invalid workflow event token.")
    assert answer["err_id"] == "ERR-PYOCO-0041"
    assert (answer["reason_class"], answer["reason_code"], answer["retry_advice"]) == (
        "auth",
        "http_401",
        "retry_after_fix",
    )
    assert answer["recorded"] == "rejected"
    assert run_ids(guarded) == set()


@pytest.mark.parametrize(
    "options",
    [
        {"params": {"token": TOKEN}},
        {"headers": {"x-workflow-event-token": TOKEN}},
        {"headers": {"Authorization": f"Bearer {TOKEN}"}},
        {"headers": {"Authorization": f"bearer  {TOKEN}"}},
        {"params": {"token": ""}, "headers": {"x-workflow-event-token": TOKEN}},
    ],
)
async def test_the_token_may_stand_in_three_places(guarded: RunningGateway, options: dict[str, Any]) -> None:
    assert (await started(guarded, **options))["triggered"] is True


@pytest.mark.parametrize(
    "options",
    [
        {"params": {"token": "wrong"}, "headers": {"x-workflow-event-token": TOKEN}},
        {"headers": {"x-workflow-event-token": "wrong", "Authorization": f"Bearer {TOKEN}"}},
        {"headers": {"Authorization": f"Basic {TOKEN}"}},
        {"params": {"token": "geheim-ä"}},
    ],
)
async def test_the_first_place_that_has_one_decides(guarded: RunningGateway, options: dict[str, Any]) -> None:
    assert told(await refused(guarded, **options)) == (401, "Invalid workflow event token.")


async def test_a_stranger_is_not_told_what_is_wrong_with_the_body(guarded: RunningGateway) -> None:
    answer = await guarded.client.post(URL, content=b"{")
    assert answer.status_code == 401


async def test_the_body_of_a_stranger_is_not_read(guarded: RunningGateway) -> None:
    """The credentials are checked first: an endless body ties nothing up."""
    read = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            read.append(1)
            yield b"x"
            await asyncio.sleep(0)

    async with asyncio.timeout(20):
        answer = await guarded.client.post(URL, content=endless())
    assert (answer.status_code, read) == (401, [])
    assert [record.status for record in records(guarded)] == ["rejected"]


async def test_what_is_wrong_with_a_body_is_recorded_with_its_sender() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        key = await new_key(gateway.backend.api_keys, "acme", "key-a")
        answer = await gateway.client.post(URL, content=b"x" * (1024 * 1024 + 1), headers=key)
        assert answer.status_code == 413
        (record,) = records(gateway)
        assert (record.actor.tenant_id, record.actor.api_key_id) == ("acme", "key-a")
        assert record.details.reason_code == "http_413"


async def test_the_token_guards_the_post_alone(guarded: RunningGateway) -> None:
    for path in ("summary?ym=2026-02", "retry-jobs", "notification-settings"):
        assert (await guarded.client.get(f"{URL}/{path}")).status_code == 200


async def test_with_api_keys_on_the_token_lets_events_in_as_the_tenant_of_events() -> None:
    settings = {"http_auth_mode": "api_key", "workflow_event_token": TOKEN, "workflow_event_tenant": "hooks"}
    async with memory_app(**settings) as gateway:
        hooks = await new_key(gateway.backend.api_keys, "hooks", "key-h")
        gateway.client.headers.update(hooks)
        await define(gateway.client)
        del gateway.client.headers["X-API-Key"]
        answer = await started(gateway, headers={"x-workflow-event-token": TOKEN})
        run = await gateway.backend.runs.get(answer["run_id"])
        assert run is not None
        assert run.value.tenant_id == "hooks"
        by_key = await started(gateway, headers=hooks)
        assert (await gateway.backend.runs.get(by_key["run_id"])) is not None
        assert told(await refused(gateway)) == (401, "Invalid workflow event token.")
        unknown = {"X-API-Key": "pyoco_nobody.x"}
        assert told(await refused(gateway, headers=unknown)) == (401, "Invalid workflow event token.")
        both = {"x-workflow-event-token": TOKEN, **unknown}
        assert (await started(gateway, headers=both))["triggered"] is True, "the token alone is enough"


async def test_with_api_keys_on_and_no_token_a_key_is_needed_and_its_lack_is_recorded() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        answer = await refused(gateway)
        assert (answer["http"], answer["err_id"], answer["reason_class"]) == (401, "ERR-PYOCO-0014", "auth")
        answer = await refused(gateway, headers={"X-API-Key": "pyoco_nobody.x"})
        assert (answer["http"], answer["err_id"], answer["reason_code"]) == (
            403,
            "ERR-PYOCO-0015",
            "http_403",
        )


# 3. What is sent


@pytest.mark.parametrize("body", [b"", b"  ", b"{}"])
async def test_an_empty_body_is_an_event_that_says_nothing(gateway: RunningGateway, body: bytes) -> None:
    assert (await gateway.client.post(URL, content=body)).json()["triggered"] is True


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"{", b'{"a": NaN}', b"\xff", b"[" * 5000])
async def test_any_other_body_is_refused(gateway: RunningGateway, body: bytes) -> None:
    answer = await gateway.client.post(URL, content=body)
    assert (answer.status_code, answer.json()["reason_code"]) == (422, "http_422")
    assert len(records(gateway)) == 1


async def test_a_body_that_is_too_large_is_refused(gateway: RunningGateway) -> None:
    answer = await gateway.client.post(URL, content=b'{"notes": "' + b"x" * 1024 * 1024 + b'"}')
    assert answer.status_code == 413
    assert (answer.json()["reason_class"], answer.json()["reason_code"]) == ("validation", "http_413")
    assert answer.json()["retry_advice"] == "retry_after_fix"
    assert [record.status for record in records(gateway)] == ["rejected"]


async def test_data_that_is_too_large_for_a_run_is_refused_and_does_not_use_up_its_key(
    gateway: RunningGateway,
) -> None:
    answer = await refused(gateway, {"idempotency_key": "k", "data": {"x": "y" * 300_000}})
    assert (answer["http"], answer["reason_code"]) == (413, "http_413")
    assert (await started(gateway, {"idempotency_key": "k"}))["duplicate"] is False


@pytest.mark.parametrize(
    "body",
    [{"template_id": "close"}, {"templateId": "close"}, {"template_id": "", "templateId": "close"}],
)
async def test_a_template_is_named_in_either_case(gateway: RunningGateway, body: dict[str, Any]) -> None:
    assert (await started(gateway, body))["template_id"] == "close"


async def test_snake_case_comes_before_camel_case(gateway: RunningGateway) -> None:
    body = {"template_id": "close", "templateId": "other", "event_name": "a", "eventName": "b"}
    answer = await started(gateway, body)
    params = await run_params(gateway, answer["run_id"])
    assert (answer["template_id"], params["trigger"]["event_name"]) == ("close", "a")


@pytest.mark.parametrize(
    ("body", "headers", "key"),
    [
        ({"idempotency_key": "a", "event_id": "b"}, {}, "a"),
        ({"idempotencyKey": "a", "event_id": "b"}, {}, "a"),
        ({"event_id": "a", "eventId": "b"}, {}, "a"),
        ({"eventId": "a"}, {"x-idempotency-key": "b"}, "a"),
        ({}, {"x-idempotency-key": "a", "Idempotency-Key": "b"}, "a"),
        ({}, {"Idempotency-Key": "a", "webhook-id": "b"}, "a"),
        ({}, {"webhook-id": "a"}, "a"),
        ({"event_id": 42}, {}, "42"),
        ({"idempotency_key": "A-z.0:@_"}, {}, "A-z.0:@_"),
        ({"idempotency_key": "x" * 128}, {}, "x" * 128),
    ],
)
async def test_the_key_is_the_first_that_is_given(
    gateway: RunningGateway, body: dict[str, Any], headers: dict[str, str], key: str
) -> None:
    answer = await started(gateway, body, headers=headers)
    assert answer["idempotency_key"] == key
    assert "idempotency_key_ignored" not in answer


@pytest.mark.parametrize("bad", ["x" * 129, "a b", "a/b", "ä", "a\n", {"a": 1}, True, 1.5])
async def test_a_bad_key_is_as_if_absent_and_the_answer_says_so(gateway: RunningGateway, bad: Any) -> None:
    answers = [await started(gateway, {"idempotency_key": bad}) for _ in range(2)]
    assert [answer["duplicate"] for answer in answers] == [False, False]
    assert all(answer["idempotency_key_ignored"] for answer in answers)
    assert "idempotency_key" not in answers[0]


async def test_behind_a_bad_key_the_next_one_counts(gateway: RunningGateway) -> None:
    answer = await started(gateway, {"idempotency_key": "a b", "event_id": "c"})
    assert (answer["idempotency_key"], answer["idempotency_key_ignored"]) == ("c", True)


async def test_source_and_event_source_are_the_same(gateway: RunningGateway) -> None:
    for body in ({"source": "erp"}, {"event_source": "erp"}, {"source": "", "event_source": "erp"}):
        run_id = (await started(gateway, body))["run_id"]
        assert (await run_params(gateway, run_id))["trigger"]["source"] == "erp"


@pytest.mark.parametrize("field", ["event_name", "source", "notes", "mfcloud_url"])
async def test_a_field_that_must_be_text_is_named_when_it_is_not(gateway: RunningGateway, field: str) -> None:
    assert told(await refused(gateway, {field: 5})) == (422, f"{field}: must be a string")


# 4. Which template is meant


async def test_a_template_id_that_is_not_there_is_not_found(gateway: RunningGateway) -> None:
    answer = await refused(gateway, {"template_id": "nope"})
    assert told(answer) == (404, "Workflow template not found.")
    assert (answer["reason_class"], answer["reason_code"]) == ("template_not_found", "http_404")
    assert answer["retry_advice"] == "retry_after_fix"


@pytest.mark.parametrize("bad", ["a.b", "a b", "*", ">", "x" * 65, 5, ["close"], "../close"])
async def test_a_bad_template_id_never_falls_through_to_another(gateway: RunningGateway, bad: Any) -> None:
    body = {"template_id": bad, "event_name": ACTION}
    assert told(await refused(gateway, body)) == (404, "Workflow template not found.")


async def test_a_template_that_no_event_starts_is_a_conflict(gateway: RunningGateway) -> None:
    await define(gateway.client, "by-hand", trigger="manual_start")
    answer = await refused(gateway, {"template_id": "by-hand"})
    assert told(answer) == (409, "Template step 1 must use trigger_kind=external_event.")
    assert (answer["reason_class"], answer["reason_code"]) == ("template_conflict", "http_409")
    assert answer["retry_advice"] == "retry_after_fix"


async def test_an_event_name_finds_the_template_that_begins_with_that_action(gateway: RunningGateway) -> None:
    await define(gateway.client, "other", action="other.action")
    assert (await started(gateway, {"event_name": "other.action"}))["template_id"] == "other"
    assert (await started(gateway, {"eventName": ACTION}))["template_id"] == "close"


async def test_an_event_name_that_nobody_waits_for_is_not_found(gateway: RunningGateway) -> None:
    answer = await refused(gateway, {"event_name": "nobody"})
    assert told(answer) == (404, "No external_event workflow template matched event_name.")


async def test_an_event_name_that_two_wait_for_is_a_conflict(gateway: RunningGateway) -> None:
    await define(gateway.client, "second")
    answer = await refused(gateway, {"event_name": ACTION})
    assert told(answer) == (409, "Multiple templates matched event_name. Specify template_id.")


async def test_an_event_name_does_not_find_a_template_that_no_event_starts(gateway: RunningGateway) -> None:
    await define(gateway.client, "by-hand", action="manual", trigger="manual_start")
    answer = await refused(gateway, {"event_name": "manual"})
    assert told(answer) == (404, "No external_event workflow template matched event_name.")


async def test_an_event_that_names_nothing_means_the_only_template(gateway: RunningGateway) -> None:
    await define(gateway.client, "by-hand", trigger="scheduled")
    assert (await started(gateway))["template_id"] == "close"


async def test_an_event_that_names_nothing_needs_a_template_at_all() -> None:
    async with memory_app() as gateway:
        answer = await refused(gateway)
        assert told(answer) == (404, "No external_event workflow template was found.")


async def test_an_event_that_names_nothing_cannot_mean_two(gateway: RunningGateway) -> None:
    await define(gateway.client, "second", action="other")
    answer = await refused(gateway)
    assert told(answer) == (409, "Multiple external_event templates found. Specify template_id.")


async def test_the_template_id_counts_before_the_event_name(gateway: RunningGateway) -> None:
    assert (await started(gateway, {"template_id": "close", "event_name": "x"}))["template_id"] == "close"


# 5. What is started


async def test_an_action_that_is_not_registered_is_not_executable(gateway: RunningGateway) -> None:
    await gateway.client.delete(f"/api/workflow-actions/{ACTION}")
    answer = await refused(gateway, {"idempotency_key": "k"})
    assert told(answer) == (409, f"external_event action is not executable in MVP: {ACTION}")
    assert (answer["reason_class"], answer["reason_code"], answer["retry_advice"]) == (
        "unsupported_action",
        "unsupported_action",
        "retry_after_fix",
    )
    assert answer["queued"] is False
    await put(gateway.client, f"/api/workflow-actions/{ACTION}", {"flow_name": "flow"})
    assert (await started(gateway, {"idempotency_key": "k"}))["duplicate"] is False


async def test_f6_an_execution_that_cannot_be_read_yet_keeps_its_key(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6: the log refuses its first commit for another one that no server tells of yet."""
    steps = [
        {"id": "one", "action": ACTION, "trigger_kind": "external_event"},
        {"id": "two", "action": ACTION, "trigger_kind": "after_previous"},
    ]
    await put(gateway.client, "/api/workflow-templates/close", a_template(steps=steps))
    asked: list[str] = []

    async def refuse(_self: MemoryExecutionLog, logged: LoggedCommit, _expected: Revision) -> Revision:
        asked.append(logged.commit.execution_id)
        raise WrongRevision

    with monkeypatch.context() as patch:
        patch.setattr(MemoryExecutionLog, "append", refuse)
        assert told(await refused(gateway, {"idempotency_key": "k"}))[0] == 503
    assert asked == [(await started(gateway, {"idempotency_key": "k"}))["execution_id"]]


async def test_a_template_of_several_steps_becomes_an_execution(gateway: RunningGateway) -> None:
    steps = [
        {"id": "one", "action": ACTION, "trigger_kind": "external_event"},
        {"id": "two", "action": ACTION, "trigger_kind": "manual_start"},
    ]
    await put(gateway.client, "/api/workflow-templates/close", a_template(steps=steps))
    answer = await started(gateway, {"idempotency_key": "k", "data": {"x": 1}})
    again = await started(gateway, {"idempotency_key": "k", "data": {"x": 1}})
    assert (again["duplicate"], again["execution_id"]) == (True, answer["execution_id"])
    assert again["run_id"] == answer["run_id"]

    async def look() -> set[str]:
        return run_ids(gateway)

    assert await until(look) == {answer["run_id"]}, "the run of the first step"
    assert (await run_params(gateway, answer["run_id"]))["event"] == {"x": 1}
    state = (await gateway.client.get(f"/executions/{answer['execution_id']}")).json()
    assert (state["status"], state["graph_id"], state["graph_version"]) == ("ACTIVE", "template-close", 1)
    assert {name: node["node_type"] for name, node in state["nodes"].items()} == {
        "one": "task",
        "two-start": "wait",
        "two": "task",
    }
    await started(gateway, {"idempotency_key": "another"})
    versions = (await gateway.client.get("/graphs/template-close")).json()
    assert versions["version"] == 1, "a template that has not changed is one graph"


async def test_a_graph_that_is_not_registered_is_not_executable(gateway: RunningGateway) -> None:
    await put(gateway.client, f"/api/workflow-actions/{ACTION}", {"graph_id": "nobody-made-it"})
    answer = await refused(gateway, {"idempotency_key": "k"})
    assert (answer["http"], answer["reason_class"]) == (409, "unsupported_action")
    assert "graph nobody-made-it is not registered" in answer["detail"]
    assert await gateway.backend.events.receipts.count() == 0


async def test_an_action_of_a_registered_graph_starts_it(gateway: RunningGateway) -> None:
    graph = {"nodes": {"ask": {"type": "wait", "prompt": "ok?"}}}
    assert (await gateway.client.put("/graphs/approve", json=graph)).status_code == 201
    await put(gateway.client, f"/api/workflow-actions/{ACTION}", {"graph_id": "approve"})
    answer = await started(gateway, {"idempotency_key": "k"})
    state = (await gateway.client.get(f"/executions/{answer['execution_id']}")).json()
    assert (state["graph_id"], state["input"]["ym"]) == ("approve", "2026-02")


@pytest.mark.parametrize(
    ("template", "request_", "expected"),
    [
        ((2026, 2), {"year": 2027, "month": 3}, (2027, 3)),
        ((2026, 2), {"year": "2027", "month": "03"}, (2027, 3)),
        ((2026, 2), {}, (2026, 2)),
        ((2026, 2), {"year": 2027}, (2027, 2)),
        ((2026, 2), {"month": 3.0}, (2026, 3)),
        ((2026, 2), {"year": "", "month": None}, (2026, 2)),
        ((0, 0), {"year": 2000, "month": 12}, (2000, 12)),
    ],
)
async def test_year_and_month_are_the_requests_or_the_templates_each_by_itself(
    gateway: RunningGateway, template: tuple[int, int], request_: dict[str, Any], expected: tuple[int, int]
) -> None:
    """D26"""
    year, month = template
    await put(gateway.client, "/api/workflow-templates/close", a_template(year=year, month=month))
    params = await run_params(gateway, (await started(gateway, request_))["run_id"])
    assert (params["year"], params["month"]) == expected
    assert params["ym"] == f"{expected[0]:04d}-{expected[1]:02d}"


@pytest.mark.parametrize(
    "body",
    [{}, {"year": 1999, "month": 1}, {"year": 2026, "month": 0}, {"year": 2026, "month": 13}, {"month": 5}],
)
async def test_without_a_valid_year_and_month_nothing_is_started(
    gateway: RunningGateway, body: dict[str, Any]
) -> None:
    template = a_template(year=0, month=0, needs_month=True)
    await put(gateway.client, "/api/workflow-templates/close", template)
    answer = await refused(gateway, {"idempotency_key": "k", **body})
    assert told(answer) == (400, "Workflow event requires valid year/month.")
    assert (answer["reason_class"], answer["reason_code"], answer["retry_advice"]) == (
        "validation",
        "invalid_year_month",
        "retry_after_fix",
    )
    again = await started(gateway, {"idempotency_key": "k", "year": 2026, "month": 2})
    assert again["duplicate"] is False, "a refusal gives the key back"


@pytest.mark.parametrize(
    "given",
    [13, 0, -1, 2.5, True, "March", "2026-03", {"month": 3}, [3], 10**15, 1e300, " 3"],
    ids=repr,
)
@pytest.mark.parametrize("field", ["year", "month"])
async def test_a_year_or_month_that_cannot_be_used_is_never_replaced_by_the_templates(
    gateway: RunningGateway, field: str, given: Any
) -> None:
    """D26: silently running the template's month is running the wrong month."""
    answer = await refused(gateway, {field: given})
    assert told(answer) == (400, "Workflow event requires valid year/month.")
    assert answer["reason_code"] == "invalid_year_month"
    assert run_ids(gateway) == set()


async def test_a_template_without_year_and_month_asks_for_none(gateway: RunningGateway) -> None:
    """D26"""
    made = a_template()
    del made["year"], made["month"]
    template = await put(gateway.client, "/api/workflow-templates/close", made)
    assert template["needs_month"] is False
    params = await run_params(gateway, (await started(gateway))["run_id"])
    assert not {"year", "month", "ym"} & set(params)
    both = await run_params(gateway, (await started(gateway, {"year": 2027, "month": 3}))["run_id"])
    assert both["ym"] == "2027-03"
    for half in ({"month": 3}, {"year": 2027}, {"year": 2027, "month": 13}):
        assert told(await refused(gateway, half))[0] == 400


async def test_whether_a_month_is_needed_is_shown_and_can_be_said(gateway: RunningGateway) -> None:
    """D26"""
    path = "/api/workflow-templates/close"
    assert (await gateway.client.get(path)).json()["needs_month"] is True
    assert (await put(gateway.client, path, a_template(needs_month=False)))["needs_month"] is False
    assert (await run_params(gateway, (await started(gateway))["run_id"]))["ym"] == "2026-02"


async def test_the_params_of_an_action_reach_its_graph(gateway: RunningGateway) -> None:
    """D26"""
    graph = {"nodes": {"ask": {"type": "wait", "prompt": "${input.depth}"}}, "edges": []}
    assert (await gateway.client.put("/graphs/approve", json=graph)).status_code == 201
    action = {"graph_id": "approve", "params": {"depth": 3, "year": "overwritten"}}
    await put(gateway.client, f"/api/workflow-actions/{ACTION}", action)
    answer = await started(gateway, {"data": {"x": 1}})
    state = (await gateway.client.get(f"/executions/{answer['execution_id']}")).json()
    found = state["input"]
    assert (found["depth"], found["year"], found["event"], found["notes"]) == (3, 2026, {"x": 1}, None)


async def test_a_tag_that_a_graph_would_ignore_is_refused(gateway: RunningGateway) -> None:
    """D26"""
    path = "/api/workflow-actions/graph"
    answer = await gateway.client.put(path, json={"graph_id": "approve", "tag": "cpu"})
    assert answer.status_code == 422
    assert "tag: not allowed with graph_id" in answer.json()["detail"]


async def test_the_run_gets_what_the_event_the_action_and_the_template_say(gateway: RunningGateway) -> None:
    action = {"flow_name": "close", "tag": "cpu", "params": {"depth": 3, "year": "overwritten"}}
    await put(gateway.client, f"/api/workflow-actions/{ACTION}", action)
    await put(gateway.client, "/api/workflow-templates/close", a_template(notes="of the template"))
    data = {"rows": [1, 2, {"ä": None}]}
    body = {
        "event_name": ACTION,
        "source": "erp",
        "idempotency_key": "k",
        "mfcloud_url": "https://x",
        "data": data,
    }
    answer = await started(gateway, body)
    run = await gateway.backend.runs.get(answer["run_id"])
    assert run is not None
    assert (run.value.flow_name, run.value.tag, run.value.status) == ("close", "cpu", "PENDING")
    assert run.value.params == {
        "depth": 3,
        "year": 2026,
        "month": 2,
        "ym": "2026-02",
        "mfcloud_url": "https://x",
        "notes": "of the template",
        "event": data,
        "trigger": {
            "template_id": "close",
            "event_name": ACTION,
            "source": "erp",
            "idempotency_key": "k",
        },
    }
    assert await gateway.backend.queue.run_ids() == {answer["run_id"]}


async def test_without_data_the_run_has_no_event_param(gateway: RunningGateway) -> None:
    assert "event" not in await run_params(gateway, (await started(gateway))["run_id"])


# 6. What is answered


async def test_a_new_start_is_answered_with_its_run(gateway: RunningGateway) -> None:
    answer = await started(gateway, {"idempotency_key": "k"})
    run_id, event_id = answer.pop("run_id"), answer.pop("event_id")
    assert answer == {
        "status": "ok",
        "duplicate": False,
        "triggered": True,
        "template_id": "close",
        "template_name": "Close the month",
        "action_key": ACTION,
        "idempotency_key": "k",
    }
    assert run_ids(gateway) == {run_id}
    assert records(gateway)[0].event_id == event_id


async def test_a_duplicate_is_answered_with_the_first_run(gateway: RunningGateway) -> None:
    first = await started(gateway, {"idempotency_key": "k"})
    again = await started(gateway, {"idempotency_key": "k"})
    assert (again["status"], again["duplicate"], again["triggered"]) == ("ok", True, False)
    assert again["run_id"] == first["run_id"]
    assert "payload_mismatch" not in again
    assert run_ids(gateway) == {first["run_id"]}


async def test_a_duplicate_that_says_something_else_is_told_so(gateway: RunningGateway) -> None:
    first = await started(gateway, {"idempotency_key": "k", "data": {"x": 1}})
    again = await started(gateway, {"idempotency_key": "k", "data": {"x": 2}})
    assert (again["duplicate"], again["payload_mismatch"], again["run_id"]) == (True, True, first["run_id"])


async def test_equal_content_may_be_written_in_any_order(gateway: RunningGateway) -> None:
    await gateway.client.post(URL, content=b'{"event_id": "k", "data": {"a": 1, "b": 2}}')
    again = await gateway.client.post(URL, content=b'{"data": {"b": 2, "a": 1}, "eventId": "k"}')
    assert again.json()["duplicate"] is True
    assert "payload_mismatch" not in again.json()


async def test_with_strict_keys_another_content_is_refused() -> None:
    async with events_gateway(workflow_event_strict_keys=True) as gateway:
        first = await started(gateway, {"idempotency_key": "k", "data": {"x": 1}})
        answer = await refused(gateway, {"idempotency_key": "k", "data": {"x": 2}})
        assert (answer["http"], answer["reason_class"]) == (422, "validation")
        again = await started(gateway, {"idempotency_key": "k", "data": {"x": 1}})
        assert (again["duplicate"], again["run_id"]) == (True, first["run_id"])


async def test_a_key_belongs_to_its_template(gateway: RunningGateway) -> None:
    await define(gateway.client, "second")
    first = await started(gateway, {"idempotency_key": "k", "template_id": "close"})
    second = await started(gateway, {"idempotency_key": "k", "template_id": "second"})
    assert (second["duplicate"], second["run_id"] != first["run_id"]) == (False, True)


async def test_events_without_a_key_are_all_started(gateway: RunningGateway) -> None:
    answers = [await started(gateway) for _ in range(3)]
    assert len({answer["run_id"] for answer in answers}) == 3


async def test_of_fifty_at_once_one_starts_and_the_others_are_told_its_run(gateway: RunningGateway) -> None:
    body = {"idempotency_key": "k"}
    answers = await asyncio.gather(*(started(gateway, body) for _ in range(50)))
    assert [answer["duplicate"] for answer in answers].count(False) == 1
    assert {answer["run_id"] for answer in answers} == run_ids(gateway)
    assert len(run_ids(gateway)) == 1


async def test_while_the_first_is_starting_a_repeat_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    real = StartTemplate._place_run

    async def slowly(self: StartTemplate, *args: Any) -> None:
        reached.set()
        await go_on.wait()
        await real(self, *args)

    monkeypatch.setattr(StartTemplate, "_place_run", slowly)
    async with events_gateway(given={"tuning": Tuning(event_repeat_sec=0.0)}) as gateway:
        first = asyncio.ensure_future(started(gateway, {"idempotency_key": "k"}))
        await reached.wait()
        answer = await gateway.client.post(URL, json={"idempotency_key": "k"})
        assert (answer.status_code, answer.headers["retry-after"]) == (409, "1")
        assert (answer.json()["reason_class"], answer.json()["queued"]) == ("duplicate", False)
        go_on.set()
        run_id = (await first)["run_id"]
        assert (await started(gateway, {"idempotency_key": "k"}))["run_id"] == run_id


# 7. What is recorded


async def test_a_start_is_recorded_as_a_success(gateway: RunningGateway) -> None:
    body = {"event_name": ACTION, "source": "erp", "idempotency_key": "k", "year": 2027, "month": 3}
    answer = await started(gateway, body, headers={"user-agent": "the test"})
    (record,) = records(gateway)
    assert (record.event_type, record.status, record.action) == ("workflow_event", "success", ACTION)
    assert (record.run_id, record.ym, record.at[-1]) == (answer["run_id"], "2027-03", "Z")
    assert (record.actor.ip, record.actor.user_agent) == ("127.0.0.1", "the test")
    details = record.details
    assert (details.template_id, details.template_name) == ("close", "Close the month")
    assert (details.event_name, details.source, details.idempotency_key) == (ACTION, "erp", "k")
    assert (details.reason_class, details.duplicate) == (None, False)


async def test_a_duplicate_is_recorded_as_skipped(gateway: RunningGateway) -> None:
    for _ in range(2):
        answer = await started(gateway, {"idempotency_key": "k"})
    record = records(gateway)[1]
    assert (record.status, record.run_id, record.details.duplicate) == ("skipped", answer["run_id"], True)
    assert record.details.reason_class == "duplicate"
    assert record.details.reason_code == "duplicate_idempotency_key"
    assert record.details.retry_advice == "do_not_retry"


async def test_what_fails_for_a_reason_nobody_foresaw_is_recorded_as_failed_and_queued(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(StartTemplate, "_place_run", broken)
    answer = await refused(gateway, {"idempotency_key": "k"})
    assert (answer["http"], answer["err_id"], answer["recorded"]) == (500, "ERR-PYOCO-0044", "failed")
    assert (answer["reason_class"], answer["reason_code"]) == ("infra", "exception")
    assert (answer["retry_advice"], answer["queued"]) == ("retry_with_backoff", True)
    assert "a bug" not in answer["detail"]


async def test_the_records_are_lines_of_a_file_too(gateway: RunningGateway) -> None:
    await started(gateway)
    await refused(gateway, {"template_id": "nope"})
    found = lines_of("reports/audit_log.jsonl")
    assert [line["status"] for line in found] == ["success", "rejected"]
    assert {"at", "event_id", "ym", "event_type", "action", "status", "run_id", "actor", "details"} <= set(
        found[0]
    )


@pytest.mark.parametrize("path", ["", "/dev/full", "reports/a-directory/"])
async def test_a_file_that_cannot_be_written_costs_the_file_and_not_the_request(path: str) -> None:
    async with events_gateway(audit_log_path=path) as gateway:
        assert (await started(gateway))["triggered"] is True
        assert len(records(gateway)) == 1


async def test_a_file_that_cannot_be_written_is_reported_once() -> None:
    """D44: on a read-only root, a warning for every event would bury the log."""
    path = Path("reports/audit_log.jsonl")
    with capture_logs() as lines:
        async with events_gateway() as gateway:
            await asyncio.to_thread(path.mkdir, parents=True)
            for _ in range(5):
                await started(gateway)
            await asyncio.to_thread(path.rmdir)
            for _ in range(2):
                await started(gateway)
            assert len(records(gateway)) == 7
    told = [(line["log_level"], line["action"]) for line in lines if "audit.file" in line.get("action", "")]
    assert told == [("warning", "audit.file"), ("info", "audit.file_again")]
    warning = next(line for line in lines if line.get("action") == "audit.file")
    assert str(path) in str(warning["exc_info"])
    assert len(lines_of(str(path))) == 2


async def test_refusals_without_credentials_fill_no_audit() -> None:
    """D57: the first of a minute are records of their own; one record counts the rest."""
    with capture_logs() as lines:
        async with events_lab(workflow_event_token=TOKEN) as lab:
            await prepare(lab, concurrency="allow")
            for _ in range(100):
                assert (await post(lab, None)).error is not None
            for number in range(30):
                answer = await send(lab.level.receive, {"event_id": str(number)}, TOKEN)
                assert answer.started is not None
            stored = lab.backend.events.audit.events
            assert Counter(event.record.status for event in stored) == {
                "rejected": MAX_OF_ADDRESS,
                "success": 30,
            }, "nobody else's record is lost"
            lab.clock.advance(60)
            assert (await post(lab, None)).error is not None
            rest = stored[-2].record
    assert (rest.status, rest.details.count, rest.details.reason_class) == ("rejected", 80, "auth")
    assert sum(line.get("action") == "event.refused" for line in lines) == MAX_OF_ADDRESS + 1
    summary = Summary()
    for event in stored:
        summary.add(event.record)
    assert summary.shown(rest.ym, 20)["by_status"]["rejected"] == 101


async def test_what_was_only_counted_is_recorded_when_a_gateway_stops() -> None:
    """D57"""
    async with events_lab(workflow_event_token=TOKEN) as lab:
        for _ in range(MAX_OF_ADDRESS + 1):
            await post(lab, None)
        counting = asyncio.ensure_future(lab.use_cases.audit.run_counts())
        await asyncio.sleep(0)
        counting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await counting
        assert lab.backend.events.audit.events[-1].record.details.count == 1
