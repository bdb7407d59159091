"""Events that resume a waiting node: at once, or when it waits; once; and what is refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.events.audit import AuditRecord
from pyoco_server.usecases.events.resume import ResumeWaits
from support.events import URL, define, records
from support.gateway import RunningGateway, memory_app, new_key
from support.http_executions import APPROVAL, Executions
from support.waiting import until

KEPT = {"triggered": False, "kept": True}
DONE = {"triggered": True, "kept": False, "duplicate": False}


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


@pytest.fixture
async def executions(gateway: RunningGateway) -> Executions:
    found = Executions(gateway.client)
    await found.register("approval", APPROVAL)
    return found


async def send(executions: Executions, status: int = 200, **fields: Any) -> dict[str, Any]:
    return await executions.post(URL, status, **fields)


async def book(executions: Executions, execution_id: str) -> None:
    """The node before the one that waits."""
    await executions.until_node(execution_id, "book", "READY")
    await executions.node(execution_id, "book", "start")
    await executions.node(execution_id, "book", "succeed")


async def waiting(executions: Executions, execution_id: str = "e1", ym: str = "2026-11") -> str:
    await executions.create(execution_id=execution_id, input={"ym": ym})
    await book(executions, execution_id)
    await executions.until_node(execution_id, "approve", "WAITING")
    return execution_id


async def resumes(executions: Executions, execution_id: str) -> int:
    return (await executions.types(execution_id)).count("NODE_RESUMED")


def part(answer: dict[str, Any], of: dict[str, Any]) -> dict[str, Any]:
    return {name: answer.get(name) for name in of}


async def test_an_event_resumes_the_node_it_names_with_its_data(
    gateway: RunningGateway, executions: Executions
) -> None:
    await waiting(executions)
    answer = await send(
        executions,
        execution_id="e1",
        node_id="approve",
        wait_key="2026-11",
        idempotency_key="k",
        source="bank",
        data={"ok": True},
    )
    assert answer == {
        "status": "ok",
        **DONE,
        "event_id": answer["event_id"],
        "execution_id": "e1",
        "node_id": "approve",
        "wait_key": "2026-11",
        "idempotency_key": "k",
    }
    state = await executions.until_node("e1", "report", "READY")
    assert state["nodes"]["approve"]["output"] == {"ok": True}
    (record,) = records(gateway)
    assert (record.event_id, record.status, record.action) == (answer["event_id"], "success", "resume")
    assert (record.execution_id, record.details.node_id, record.details.kept) == ("e1", "approve", False)
    assert records(gateway, "workflow_event_resume") == [], "nothing was kept"
    log = (await executions.http.get("/executions/e1/events")).json()["items"]
    resumed = next(event for event in log if event["type"] == "NODE_RESUMED")
    assert (resumed["actor"], resumed["correlation_id"]) == (
        {"kind": "external", "id": "event:bank"},
        answer["event_id"],
    )


async def test_camel_case_is_understood_and_a_number_is_a_wait_key(executions: Executions) -> None:
    await waiting(executions, ym="202611")
    answer = await send(executions, waitKey=202611)
    assert part(answer, DONE) == DONE
    assert (answer["execution_id"], answer["node_id"]) == ("e1", "approve")
    await waiting(executions, "e2", ym="x")
    assert (await send(executions, executionId="e2", nodeId="approve", waitKey="x"))["triggered"] is True


async def test_a_cloud_event_resumes_too(executions: Executions) -> None:
    await waiting(executions)
    answer = await executions.http.post(
        URL,
        json={"wait_key": "2026-11", "ok": 1},
        headers={"ce-specversion": "1.0", "ce-type": "paid", "ce-source": "bank", "ce-id": "7"},
    )
    assert part(answer.json(), DONE) == DONE
    assert (await executions.get("e1"))["nodes"]["approve"]["output"] == {"wait_key": "2026-11", "ok": 1}


async def test_an_event_that_comes_early_is_kept_and_used_when_the_node_waits(
    gateway: RunningGateway, executions: Executions
) -> None:
    await executions.create(execution_id="e1", input={"ym": "2026-11"})
    named: dict[str, Any] = {"execution_id": "e1", "node_id": "approve", "wait_key": "2026-11"}
    answer = await send(executions, **named, idempotency_key="k", data=[1])
    assert part(answer, KEPT) == KEPT
    assert (answer["execution_id"], answer["node_id"]) == ("e1", "approve")
    again = await send(executions, **named, idempotency_key="k", data=[1])
    assert part(again, {**KEPT, "duplicate": 0}) == {**KEPT, "duplicate": True}
    await book(executions, "e1")
    state = await executions.until_node("e1", "report", "READY")
    assert state["nodes"]["approve"]["output"] == [1]
    (told,) = await kept_records(gateway, 1)
    assert (told.status, told.details.kept_event_id) == ("success", answer["event_id"])
    assert (told.execution_id, told.details.node_id) == ("e1", "approve")
    assert [record.details.kept for record in records(gateway)] == [True, True]
    late = await send(executions, **named, idempotency_key="k", data=[1])
    assert (late["duplicate"], late["kept"], late["node_id"]) == (True, False, "approve")
    assert await resumes(executions, "e1") == 1
    assert await gateway.backend.events.resumes.list_values() == []


async def kept_records(gateway: RunningGateway, count: int) -> list[AuditRecord]:
    async def look() -> list[AuditRecord]:
        return records(gateway, "workflow_event_resume")

    return await until(look, lambda found: len(found) >= count)


async def test_events_that_are_kept_for_one_key_are_used_in_their_order(executions: Executions) -> None:
    for number in (1, 2):
        assert (await send(executions, wait_key="2026-11", data=number))["kept"] is True
    for number in (1, 2):
        await executions.create(execution_id=f"e{number}", input={"ym": "2026-11"})
        await book(executions, f"e{number}")
        state = await executions.until_node(f"e{number}", "report", "READY")
        assert state["nodes"]["approve"]["output"] == number


async def test_of_several_that_wait_with_one_key_the_oldest_is_resumed(executions: Executions) -> None:
    for execution_id in ("z-first", "a-second"):
        await waiting(executions, execution_id)
    answers = [await send(executions, wait_key="2026-11", idempotency_key=key) for key in ("a", "b", "a")]
    assert [answer["execution_id"] for answer in answers] == ["z-first", "a-second", "z-first"]
    assert [answer["duplicate"] for answer in answers] == [False, False, True]


async def test_fifty_equal_events_at_once_resume_one_node(executions: Executions) -> None:
    for execution_id in ("e1", "e2"):
        await waiting(executions, execution_id)
    wanted = [send(executions, wait_key="2026-11", idempotency_key="k") for _ in range(50)]
    answers = await asyncio.gather(*wanted)
    assert {answer["execution_id"] for answer in answers} == {"e1"}
    assert [answer["duplicate"] for answer in answers].count(False) == 1
    assert [await resumes(executions, execution_id) for execution_id in ("e1", "e2")] == [1, 0]


async def test_a_key_that_says_something_else_is_told_so(executions: Executions) -> None:
    await waiting(executions)
    await send(executions, wait_key="2026-11", idempotency_key="k", data=1)
    again = await send(executions, wait_key="2026-11", idempotency_key="k", data=2)
    assert (again["duplicate"], again["payload_mismatch"]) == (True, True)


async def test_with_strict_keys_it_is_refused() -> None:
    async with memory_app(workflow_event_strict_keys=True) as gateway:
        executions = Executions(gateway.client)
        await send(executions, wait_key="x", idempotency_key="k", data=1)
        refused = await send(executions, 422, wait_key="x", idempotency_key="k", data=2)
        assert "another content" in refused["detail"]
        assert len(await gateway.backend.events.resumes.list_values()) == 1, "the first is still kept"


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"execution_id": "nope", "node_id": "approve"}, 404, None),
        ({"execution_id": "e1", "node_id": "nope"}, 404, None),
        ({"execution_id": "e1", "node_id": "approve"}, 409, "RESUME_KEY_MISMATCH"),
        ({"execution_id": "e1", "node_id": "book"}, 409, "NODE_STATUS"),
        ({"execution_id": "e1", "wait_key": "x"}, 422, None),
        ({"execution_id": ["e1"], "node_id": "approve"}, 422, None),
        ({"wait_key": "x" * 257}, 422, None),
        ({"wait_key": "x", "data": "x" * 300_000}, 413, None),
    ],
)
async def test_what_cannot_be_resumed_is_refused_and_nothing_is_kept(
    gateway: RunningGateway, executions: Executions, fields: dict[str, Any], status: int, code: str | None
) -> None:
    await waiting(executions)
    answer = await send(executions, status, idempotency_key="k", **fields)
    assert (answer.get("code"), answer["reason_class"], answer["queued"]) == (code, "validation", False)
    assert (answer["reason_code"], answer["retry_advice"]) == (f"http_{status}", "retry_after_fix")
    (record,) = records(gateway)
    assert (record.event_id, record.status) == (answer["event_id"], "rejected")
    assert await gateway.backend.events.resumes.list_values() == []
    assert (await executions.get("e1"))["nodes"]["approve"]["status"] == "WAITING"
    right = await send(executions, wait_key="2026-11", idempotency_key="k")
    assert right["triggered"] is True, "the key was given back"


async def test_a_node_that_has_been_resumed_and_an_execution_that_has_ended_are_conflicts(
    executions: Executions,
) -> None:
    await waiting(executions)
    await send(executions, wait_key="2026-11", idempotency_key="k")
    named: dict[str, Any] = {"execution_id": "e1", "node_id": "approve", "wait_key": "2026-11"}
    assert (await send(executions, 409, **named))["code"] == "NODE_STATUS"
    await executions.post("/executions/e1/cancel")
    await executions.until_ended("e1")
    ended = await send(executions, 409, **{**named, "node_id": "report"})
    assert ended["code"] == "EXECUTION_TERMINAL"


async def test_a_kept_event_whose_execution_ends_is_given_up(executions: Executions) -> None:
    async with memory_app(workflow_event_retry_worker_poll_seconds=0.05) as gateway:
        executions = Executions(gateway.client)
        await executions.register("approval", APPROVAL)
        await executions.create(execution_id="e1", input={"ym": "x"})
        kept = await send(executions, execution_id="e1", node_id="approve", wait_key="x")
        await executions.post("/executions/e1/cancel")
        (told,) = await kept_records(gateway, 1)
        assert (told.status, told.details.kept_event_id) == ("rejected", kept["event_id"])
        assert told.details.reason == "the execution has ended"
        assert await gateway.backend.events.resumes.list_values() == []


async def test_no_more_are_kept_than_was_asked_for() -> None:
    async with memory_app(workflow_event_max_resumes=2) as gateway:
        executions = Executions(gateway.client)
        for key in ("a", "b"):
            await send(executions, wait_key="x", idempotency_key=key)
        full = await executions.http.post(URL, json={"wait_key": "x", "idempotency_key": "c"})
        assert (full.status_code, full.json()["queued"]) == (503, False)
        assert full.headers["retry-after"]
        assert (await send(executions, wait_key="x", idempotency_key="a"))["duplicate"] is True


async def test_an_event_that_names_a_template_starts_it_as_ever(
    gateway: RunningGateway, executions: Executions
) -> None:
    await define(gateway.client)
    await waiting(executions)
    started = await send(executions, template_id="close", wait_key="2026-11")
    assert started["run_id"]
    assert (await send(executions, execution_id="e1", event_name="close.month"))["run_id"]
    assert (await executions.get("e1"))["nodes"]["approve"]["status"] == "WAITING"


async def test_a_wait_key_beside_an_event_name_keeps_no_template_from_starting(
    gateway: RunningGateway, executions: Executions
) -> None:
    """D37: fields beyond the contract never change what an event of the contract does."""
    await define(gateway.client)
    await waiting(executions)
    named: list[dict[str, Any]] = [{"wait_key": "2026-11"}, {"execution_id": "e1", "node_id": "approve"}]
    for extra in named:
        started = await send(executions, event_name="close.month", **extra)
        assert (started["triggered"], started["resume_ignored"]) == (True, True)
        assert started["run_id"]
        record = records(gateway)[-1]
        assert (record.action, record.details.wait_key, record.execution_id) == ("close.month", None, None)
    assert (await executions.get("e1"))["nodes"]["approve"]["status"] == "WAITING"
    resumed = await send(executions, event_name="nobody.waits", wait_key="2026-11")
    assert (resumed["execution_id"], resumed["triggered"]) == ("e1", True), "a name that starts nothing"
    assert records(gateway)[-1].action == "resume"


async def test_a_wait_key_beside_a_name_that_two_templates_wait_for_is_a_conflict(
    gateway: RunningGateway, executions: Executions
) -> None:
    """D37"""
    await define(gateway.client)
    await define(gateway.client, "second")
    refused = await send(executions, 409, event_name="close.month", wait_key="x")
    assert refused["detail"] == "Multiple templates matched event_name. Specify template_id."


async def test_another_tenants_nodes_are_not_there() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        stored = gateway.backend.api_keys
        acme, globex = [await new_key(stored, tenant, tenant) for tenant in ("acme", "globex")]
        http = gateway.client
        http.headers.update(acme)
        ours = Executions(http)
        await ours.register("approval", APPROVAL)
        await waiting(ours)
        http.headers.update(globex)
        named: dict[str, Any] = {"execution_id": "e1", "node_id": "approve", "wait_key": "2026-11"}
        await send(ours, 404, **named)
        assert (await send(ours, wait_key="2026-11", idempotency_key="k"))["kept"] is True
        http.headers.update(acme)
        answer = await send(ours, wait_key="2026-11", idempotency_key="k")
        assert (answer["duplicate"], answer["triggered"]) == (False, True), "a key of another tenant"


async def test_an_event_is_replayed_to_the_next_node(executions: Executions) -> None:
    for execution_id in ("e1", "e2"):
        await waiting(executions, execution_id)
    first = await send(executions, wait_key="2026-11", idempotency_key="k")
    again = await executions.post(f"{URL}/{first['event_id']}/replay")
    assert (again["execution_id"], again["triggered"]) == ("e2", True)


async def test_a_failure_in_the_background_leaves_the_others_alone(
    gateway: RunningGateway, executions: Executions, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ResumeWaits._resume

    async def failing(self: ResumeWaits, stored: Any) -> Any:
        if stored.kept.request.data == "bad":
            raise ZeroDivisionError
        return await real(self, stored)

    await send(executions, wait_key="2026-11", data="bad")
    await send(executions, wait_key="2026-11", data="good")
    monkeypatch.setattr(ResumeWaits, "_resume", failing)
    await executions.create(execution_id="e1", input={"ym": "2026-11"})
    await book(executions, "e1")
    state = await executions.until_node("e1", "report", "READY")
    assert state["nodes"]["approve"]["output"] == "good"
