"""Executions over HTTP: commands, states, logs, the inbox, and what is refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.gateway import RunningGateway, memory_app
from support.http_executions import APPROVAL, Executions
from support.waiting import until


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app(cancel_grace_period_sec=0.2) as running:
        yield running


@pytest.fixture
async def executions(gateway: RunningGateway) -> Executions:
    found = Executions(gateway.client)
    await found.register("approval", APPROVAL)
    return found


async def test_a_graph_is_carried_out_by_people_and_outside_workers(executions: Executions) -> None:
    created = await executions.create(input={"ym": "2026-11"}, execution_id="close-1")
    assert (created["execution_id"], created["status"]) == ("close-1", "ACTIVE")
    await executions.until_node("close-1", "book", "READY")
    await executions.node("close-1", "book", "start", worker_id="outside")
    state = await executions.node("close-1", "book", "progress", progress=40, message="half")
    assert state["nodes"]["book"]["progress"] == 40
    await executions.node("close-1", "book", "succeed", output={"rows": 3})
    state = await executions.until_node("close-1", "approve", "WAITING")
    assert state["nodes"]["approve"]["prompt"] == "Close 2026-11?"

    inbox = (await executions.http.get("/waits")).json()
    assert [(wait["execution_id"], wait["node_id"]) for wait in inbox["items"]] == [("close-1", "approve")]
    await executions.node("close-1", "approve", "resume", resume_key="2026-11", data={"ok": True})
    assert (await executions.http.get("/waits")).json() == {"items": [], "next_cursor": None}

    await executions.until_node("close-1", "report", "READY")
    await executions.node("close-1", "report", "start")
    await executions.node("close-1", "report", "succeed", output="done")
    ended = await executions.until_ended("close-1")
    assert (ended["status"], ended["result"]) == ("COMPLETED", {"report": "done"})


HANDLED: dict[str, Any] = {
    "nodes": {"work": {"type": "task", "external": True}, "alert": {"type": "task", "external": True}},
    "edges": [{"from": "work", "to": "alert", "on": "failure"}],
}


async def test_a_handled_failure_is_in_the_answer_and_in_the_row_of_the_list(executions: Executions) -> None:
    """D25: COMPLETED was all that anybody saw."""
    await executions.register("handled", HANDLED)
    await executions.create("handled", execution_id="e1")
    await executions.until_node("e1", "work", "READY")
    await executions.node("e1", "work", "start")
    await executions.node("e1", "work", "fail", error="disk full")
    await executions.until_node("e1", "alert", "READY")
    await executions.node("e1", "alert", "start")
    await executions.node("e1", "alert", "succeed")
    ended = await executions.until_ended("e1")
    assert (ended["status"], ended["handled_failures"]) == ("COMPLETED", ["work"])

    async def row() -> dict[str, Any]:
        (found,) = (await executions.http.get("/executions")).json()["items"]
        return dict(found)

    shown = await until(row, lambda found: found["status"] == "COMPLETED")
    assert shown["handled_failures"] == ["work"]


async def test_the_log_has_every_event_once_and_without_gaps(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.until_node("e1", "book", "READY")
    page = (await executions.http.get("/executions/e1/events", params={"limit": 2})).json()
    assert [event["sequence"] for event in page["items"]] == [1, 2]
    rest = (await executions.http.get("/executions/e1/events", params={"after": page["next_cursor"]})).json()
    assert [event["sequence"] for event in rest["items"]] == [3, 4, 5, 6]
    assert [event["type"] for event in rest["items"]][-2:] == ["EXECUTION_STARTED", "NODE_READY"]
    first = page["items"][0]
    assert first["payload"] == {"graph_id": "approval", "graph_version": 1, "input": {"ym": "x"}}
    assert {"event_id", "actor", "occurred_at", "causation_id", "schema_version"} <= set(first)


async def test_an_earlier_state_is_exactly_as_it_was(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    before = await executions.until_node("e1", "book", "READY")
    await executions.node("e1", "book", "start", worker_id="w")
    assert await executions.get("e1", at_sequence=before["version"]) == before
    within = await executions.get("e1", at_sequence=2)  # in the middle of the first commit
    assert (list(within["nodes"]), within["started_at"]) == (["book"], None)
    answer = await executions.http.get("/executions/e1", params={"at_sequence": 99})
    assert answer.status_code == 422


async def test_an_id_in_use_is_never_used_again_not_even_after_a_cancel(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.post("/executions/e1/cancel")
    await executions.until_ended("e1")
    refused = await executions.post("/executions", 409, graph_id="approval", execution_id="e1")
    assert refused["code"] == "EXECUTION_EXISTS"
    assert (await executions.get("e1"))["status"] == "CANCELED"


async def test_a_cancel_ends_what_waits(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.until_node("e1", "book", "READY")
    await executions.node("e1", "book", "start")
    await executions.node("e1", "book", "succeed")
    await executions.until_node("e1", "approve", "WAITING")
    state = await executions.post("/executions/e1/cancel", reason="wrong month")
    assert (state["status"], state["cancel_reason"]) == ("CANCELED", "wrong month")
    assert {node["status"] for node in state["nodes"].values()} == {"SUCCEEDED", "CANCELED"}
    assert state["nodes"]["approve"]["canceled_by_execution"]
    again = await executions.post("/executions/e1/cancel")
    assert again["version"] == state["version"]


async def test_an_outside_worker_that_is_cancelled_hears_409_and_is_not_waited_for_for_ever(
    executions: Executions,
) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.until_node("e1", "book", "READY")
    await executions.node("e1", "book", "start")
    state = await executions.post("/executions/e1/cancel")
    assert (state["status"], state["phase"]) == ("ACTIVE", "CANCELLING")
    refused = await executions.node("e1", "book", "succeed", 409)
    assert refused["code"] == "EXECUTION_CANCEL_REQUESTED"
    assert (await executions.until_ended("e1"))["status"] == "CANCELED"


async def test_a_failed_attempt_is_tried_again_and_the_last_one_fails_the_execution(
    executions: Executions,
) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.until_node("e1", "book", "READY")
    for attempt in (1, 2):
        await executions.node("e1", "book", "start", attempt=attempt, worker_id=f"w{attempt}")
        await executions.node("e1", "book", "fail", error={"code": "NO_INK", "message": "the printer"})
    ended = await executions.until_ended("e1")
    assert (ended["status"], ended["failed_node_id"], ended["error"]["code"]) == ("FAILED", "book", "NO_INK")
    refused = await executions.node("e1", "book", "start", 409)
    assert refused["code"] == "EXECUTION_TERMINAL"


async def test_a_rerun_from_failed_does_not_repeat_what_had_succeeded(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.until_node("e1", "book", "READY")
    await executions.node("e1", "book", "start")
    await executions.node("e1", "book", "succeed", output=7)
    await executions.until_node("e1", "approve", "WAITING")
    await executions.node("e1", "approve", "fail", error="no")
    await executions.until_ended("e1")
    again = await executions.post("/executions/e1/rerun", 201, None, **{"from": "failed"})
    assert (again["rerun_of"], again["nodes"]["book"]["output"]) == ("e1", 7)
    assert again["nodes"]["book"]["carried_from"] == "e1"
    of_book = [
        event["type"]
        for event in await executions.events(again["execution_id"])
        if event["payload"].get("node_id") == "book"
    ]
    assert of_book == ["NODE_CREATED", "NODE_SUCCEEDED"]
    await executions.until_node(again["execution_id"], "approve", "WAITING")
    anew = await executions.post("/executions/e1/rerun", 201)
    await executions.until_node(anew["execution_id"], "book", "READY")


async def test_a_repeated_command_with_a_key_is_the_first_one(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.until_node("e1", "book", "READY")
    key = {"Idempotency-Key": "k-1"}
    first = await executions.node("e1", "book", "start", headers=key, worker_id="w")
    await executions.node("e1", "book", "succeed")
    again = await executions.node("e1", "book", "start", headers=key, worker_id="w")
    assert again == first
    other = await executions.node("e1", "book", "start", 409, headers=key, worker_id="another")
    assert other["code"] == "IDEMPOTENCY_KEY_REUSED"


async def test_a_key_of_one_execution_means_nothing_to_another(executions: Executions) -> None:
    key = {"Idempotency-Key": "k-1"}
    for execution_id in ("e1", "e2"):
        await executions.create(execution_id=execution_id, input={"ym": "x"})
        await executions.until_node(execution_id, "book", "READY")
        state = await executions.node(execution_id, "book", "start", headers=key)
        assert (state["execution_id"], state["nodes"]["book"]["status"]) == (execution_id, "RUNNING")


async def test_a_repeated_create_with_a_key_is_one_execution(executions: Executions) -> None:
    key = {"Idempotency-Key": "k-1"}
    body: dict[str, Any] = {"graph_id": "approval", "input": {"ym": "x"}}
    answers = await asyncio.gather(
        *(executions.post("/executions", 201, headers=key, **body) for _ in range(20))
    )
    assert len({answer["execution_id"] for answer in answers}) == 1
    assert len((await executions.http.get("/executions")).json()["items"]) == 1
    refused = await executions.post("/executions", 409, headers=key, graph_id="approval", input={})
    assert refused["code"] == "IDEMPOTENCY_KEY_REUSED"


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/executions", {"graph_id": "nothing"}, 404, "graph"),
        ("/executions", {"graph_id": "approval", "execution_id": "a.b"}, 422, "execution_id"),
        ("/executions", {"graph_id": "approval", "surprise": 1}, 422, "surprise"),
        ("/executions/none/cancel", {}, 404, "execution"),
        ("/executions/a.b/cancel", {}, 404, "execution"),
        ("/executions/e1/commands", {"command": "Explode"}, 422, "command"),
        ("/executions/e1/commands", {"command": "StartNode"}, 422, "node_id"),
        ("/executions/e1/nodes/nobody/start", {}, 404, "nobody"),
        ("/executions/e1/nodes/book/progress", {"progress": 101}, 422, "progress"),
        ("/executions/e1/nodes/book/start", {"surprise": 1}, 422, "surprise"),
    ],
)
async def test_what_is_wrong_is_named(
    executions: Executions, path: str, body: dict[str, Any], status: int, word: str
) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    answer = await executions.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert word in str(answer.json()["detail"])
    assert answer.json()["err_id"].startswith("ERR-PYOCO-")


async def test_commands_are_read_in_camel_case_too(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.until_node("e1", "book", "READY")
    state = await executions.post(
        "/executions/e1/commands",
        command="StartNode",
        executionId="e1",
        nodeId="book",
        workerId="w",
        correlationId="c-1",
        actor={"kind": "external", "id": "robot"},
    )
    assert state["nodes"]["book"]["worker_id"] == "w"
    events = (await executions.http.get("/executions/e1/events")).json()["items"]
    assert (events[-1]["actor"], events[-1]["correlation_id"]) == (
        {"kind": "external", "id": "robot"},
        "c-1",
    )


async def test_lists_are_pages_newest_first(executions: Executions) -> None:
    for number in range(5):
        await executions.create(execution_id=f"e{number}", input={"ym": "x"})
    await executions.post("/executions/e0/cancel")
    await executions.post("/executions/e0/archive")
    first = (await executions.http.get("/executions", params={"limit": 3})).json()
    rest = (await executions.http.get("/executions", params={"cursor": first["next_cursor"]})).json()
    assert [item["execution_id"] for item in first["items"] + rest["items"]] == ["e4", "e3", "e2", "e1"]
    archived = (await executions.http.get("/executions", params={"archived": True})).json()
    assert [item["execution_id"] for item in archived["items"]] == ["e0"]
    active = (await executions.http.get("/executions", params={"status": "CANCELED"})).json()
    assert active["items"] == []


async def test_a_dropped_cache_is_made_again_from_the_log(
    executions: Executions, gateway: RunningGateway
) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    before = await executions.until_node("e1", "book", "READY")
    await gateway.backend.execution_cache.remove("e1", None)
    assert await executions.get("e1") == before
    assert await gateway.backend.execution_cache.get("e1") is not None


async def test_metrics_tell_of_executions(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.post("/executions/e1/archive", 409)
    text = (await executions.http.get("/metrics")).text
    assert 'pyoco_executions{status="ACTIVE"} 1.0' in text
    assert 'pyoco_execution_commands_rejected_total{code="EXECUTION_NOT_TERMINAL"} 1.0' in text


async def test_a_state_tells_which_ways_it_went_when_asked(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.until_node("e1", "book", "READY")
    await executions.node("e1", "book", "start")
    await executions.node("e1", "book", "succeed")
    now = await executions.get("e1", include="edges")
    assert now["edges"] == [
        {"from": "book", "to": "approve", "on": "success", "fate": "taken"},
        {"from": "approve", "to": "report", "on": "success", "fate": "open"},
    ]
    then = await executions.get("e1", include="edges", at_sequence=1)
    assert {edge["fate"] for edge in then["edges"]} == {"open"}
    assert "edges" not in await executions.get("e1")


async def test_a_list_tells_how_many_there_are_in_each_status_when_asked(executions: Executions) -> None:
    await executions.register("other", APPROVAL)
    for execution_id, graph_id in (("e1", "approval"), ("e2", "approval"), ("e3", "other")):
        await executions.create(graph_id, execution_id=execution_id, input={"ym": "x"})
    await executions.post("/executions/e1/cancel")
    await executions.post("/executions/e3/cancel")
    await executions.post("/executions/e3/archive")

    async def counts(**params: Any) -> dict[str, int]:
        answer = await executions.http.get("/executions", params={"include": "counts", **params})
        found: dict[str, int] = answer.json()["counts"]
        return found

    nothing = {"ACTIVE": 0, "COMPLETED": 0, "FAILED": 0, "CANCELED": 0}
    await until(counts, lambda found: found == {**nothing, "ACTIVE": 1, "CANCELED": 1})
    assert await counts(status="ACTIVE") == {**nothing, "ACTIVE": 1, "CANCELED": 1}
    assert await counts(graph_id="other") == nothing
    assert await counts(archived=True) == {**nothing, "CANCELED": 1}
    assert "counts" not in (await executions.http.get("/executions")).json()


async def test_every_end_is_counted_once_whoever_brought_it_about(executions: Executions) -> None:
    await executions.create(execution_id="e1", start=False)
    await executions.post("/executions/e1/cancel")
    await executions.post("/executions/e1/cancel")
    text = (await executions.http.get("/metrics")).text
    assert 'pyoco_executions_ended_total{status="CANCELED"} 1.0' in text


async def test_a_create_that_is_refused_is_counted(executions: Executions) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.post("/executions", 409, graph_id="approval", execution_id="e1")
    text = (await executions.http.get("/metrics")).text
    assert 'pyoco_execution_commands_rejected_total{code="EXECUTION_EXISTS"} 1.0' in text


async def test_any_of_the_twelve_commands_goes_through_one_path(executions: Executions) -> None:
    path = "/executions/e1/commands"
    created = await executions.post(
        path, 201, command="CreateExecution", graphId="approval", input={"ym": "x"}
    )
    assert (created["execution_id"], created["started_at"]) == ("e1", None)
    refused = await executions.post(path, 409, command="MarkNodeReady", node_id="book")
    assert refused["code"] == "EXECUTION_NOT_STARTED"
    await executions.post(path, command="StartExecution")
    await executions.until_node("e1", "book", "READY")
    steps: list[dict[str, Any]] = [
        {"command": "MarkNodeReady", "node_id": "book"},
        {"command": "StartNode", "node_id": "book", "worker_id": "w"},
        {"command": "ReportNodeProgress", "node_id": "book", "progress": 1},
        {"command": "PutNodeWaiting", "node_id": "book", "wait_key": "k"},
        {"command": "RequestResumeNode", "node_id": "book", "resume_key": "k", "requested_by": "eve"},
        {"command": "ResumeNode", "node_id": "book", "resume_key": "k"},
        {"command": "SucceedNode", "node_id": "book", "output": 1},
    ]
    for step in steps:
        await executions.post(path, **step)
    await executions.until_node("e1", "approve", "WAITING")
    await executions.post(path, command="FailNode", node_id="approve", error="no")
    await executions.until_ended("e1")
    await executions.post(path, command="CancelExecution")
    assert (await executions.post(path, command="ArchiveExecution"))["archived_at"] is not None
    assert (await executions.get("e1"))["status"] == "FAILED"


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/executions/e1/nodes/book/start", {"nodeId": "approve"}, "node_id"),
        ("/executions/e1/cancel", {"execution_id": "e2"}, "execution_id"),
        ("/executions/e2/commands", {"command": "CreateExecution", "execution_id": "e1"}, "execution_id"),
        ("/executions/e1/cancel", {"command": "StartExecution"}, "command"),
    ],
)
async def test_a_body_that_contradicts_its_path_is_refused(
    executions: Executions, path: str, body: dict[str, Any], word: str
) -> None:
    await executions.create(execution_id="e1", input={"ym": "x"})
    assert word in str((await executions.post(path, 422, **body))["detail"])


@pytest.mark.parametrize("key", ["", "k" * 256, "a\tb"])
async def test_a_key_that_is_none_is_refused(executions: Executions, key: str) -> None:
    headers = {"Idempotency-Key": key}
    await executions.create(execution_id="e1", input={"ym": "x"})
    for path, body in (("/executions", {"graph_id": "approval"}), ("/executions/e1/cancel", {})):
        answer = await executions.http.post(path, json=body, headers=headers)
        assert (answer.status_code, "Idempotency-Key" in answer.text) == (422, True)


async def test_keys_of_runs_and_of_executions_never_meet(executions: Executions) -> None:
    for key in ("k", "creates:k", "create:", "create:k"):
        headers = {"Idempotency-Key": key}
        answer = await executions.http.post("/runs", json={"flow_name": "f"}, headers=headers)
        assert answer.status_code == 200
        created = await executions.post("/executions", 201, headers, graph_id="approval", input={"ym": "x"})
        assert created["execution_id"] != answer.json()["run_id"]


async def test_a_correlation_id_is_kept_with_the_events(executions: Executions) -> None:
    headers = {"X-Correlation-Id": "c-7"}
    await executions.post(
        "/executions", 201, headers, graph_id="approval", execution_id="e1", correlationId="other"
    )
    await executions.post("/executions/e1/cancel", 200, headers)
    events = await executions.events("e1")
    assert {event["correlation_id"] for event in events if event["actor"]["kind"] == "user"} == {"c-7"}
    refused = await executions.post("/executions/e1/cancel", 422, {"X-Correlation-Id": "x" * 257})
    assert "X-Correlation-Id" in refused["detail"]


async def test_a_deadline_may_be_very_far_away(executions: Executions) -> None:
    """Farther than the timers of an event loop reach."""
    await executions.create(execution_id="e1", input={"ym": "x"})
    await executions.until_node("e1", "book", "READY")
    await executions.node("e1", "book", "start")
    await executions.node("e1", "book", "wait", deadline=1e300)
    await executions.node("e1", "book", "resume")
    await executions.node("e1", "book", "succeed")
    await executions.until_node("e1", "approve", "WAITING")


async def test_a_message_is_kept_until_its_node_waits(executions: Executions) -> None:
    nodes = {"first": {"type": "task", "external": True}, "paid": {"type": "wait", "message": "paid"}}
    await executions.register("shop", {"nodes": nodes, "edges": [{"from": "first", "to": "paid"}]})
    await executions.create("shop", execution_id="e1")
    path, key = "/executions/e1/messages", {"Idempotency-Key": "k"}
    sent = await executions.post(path, 202, key, name="paid", data={"sum": 5})
    assert sent["node_ids"] == ["paid"]
    assert await executions.post(path, 202, key, name="paid", data={"sum": 5}) == sent
    [received] = [event for event in await executions.events("e1") if event["type"] == "MESSAGE_RECEIVED"]
    assert (received["sequence"], received["payload"]["data"]) == (sent["sequence"], {"sum": 5})
    await executions.until_node("e1", "first", "READY")
    await executions.node("e1", "first", "start")
    await executions.node("e1", "first", "succeed")
    ended = await executions.until_ended("e1")
    assert (ended["status"], ended["result"], ended["messages"]) == ("COMPLETED", {"paid": {"sum": 5}}, [])
    refused = await executions.post(path, 409, name="paid")
    assert refused["code"] == "EXECUTION_TERMINAL"
    await executions.post(path, 422, name="")
    await executions.post("/executions/no/messages", 404, name="paid")
