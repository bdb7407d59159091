"""Dead letters over HTTP: list, redrive, discard; tenants."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.codec import decode_job
from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from support.builders import NOW, RUN_ID, a_snapshot
from support.gateway import RunningGateway, another_gateway, memory_app, new_key
from support.waiting import until

RUNS = [f"0190c0de-0000-7000-8000-{number:012d}" for number in range(10)]


@pytest.fixture
async def world() -> AsyncIterator[RunningGateway]:
    async with memory_app() as opened:
        yield opened


def a_letter(**changed: Any) -> DeadLetter:
    fields: dict[str, Any] = {
        "timestamp": NOW,
        "reason": DlqReason.EXECUTION_ERROR,
        "error": "no",
        "run_id": RUN_ID,
        "flow_name": "etl",
        "tag": "cpu",
        "tags": ("eu",),
        "worker_id": "w1",
        "num_delivered": 1,
        "subject": "pyoco.work.cpu",
    }
    return DeadLetter(**{**fields, **changed})


def a_failed_run(**changed: Any) -> RunSnapshot:
    return replace(a_snapshot(), status=RunStatus.FAILED, end_time=NOW, **{"tag": "cpu", **changed})


async def stored(world: RunningGateway, run: RunSnapshot, **letter: Any) -> None:
    await world.backend.runs.create(run.run_id, run)
    await world.backend.dead_letters.publish(a_letter(run_id=run.run_id, **letter), "cpu", run.tenant_id)


async def listed(world: RunningGateway, **query: Any) -> list[str]:
    answer = await world.client.get("/dead-letters", params=query)
    assert answer.status_code == 200, answer.text
    return [letter["id"] for letter in answer.json()["items"]]


async def test_letters_are_listed_newest_first_with_all_their_fields(world: RunningGateway) -> None:
    await stored(world, a_failed_run())
    (letter,) = (await world.client.get("/dead-letters")).json()["items"]
    assert letter == {
        "id": "1",
        "redriven_as": None,
        "timestamp": NOW,
        "reason": "execution_error",
        "error": "no",
        "run_id": RUN_ID,
        "flow_name": "etl",
        "tag": "cpu",
        "tags": ["eu"],
        "worker_id": "w1",
        "num_delivered": 1,
        "subject": "pyoco.work.cpu",
        "payload": None,
    }
    assert (await world.client.get("/dead-letters/1")).json() == letter
    for wrong in ("2", "0", "01", "-1", "x", "9" * 40):
        answer = await world.client.get(f"/dead-letters/{wrong}")
        assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0070"), wrong


async def test_filters_and_pages(world: RunningGateway) -> None:
    publish = world.backend.dead_letters.publish
    await publish(a_letter(timestamp=NOW - 10), "cpu")
    await publish(a_letter(reason=DlqReason.MAX_DELIVER), "cpu")
    await publish(a_letter(flow_name="report", tag="gpu", tags=None), "gpu")
    await publish(
        a_letter(reason=DlqReason.INVALID_JOB, run_id=None, tag=None, tags=None, flow_name=None), "gpu"
    )
    assert await listed(world) == ["4", "3", "2", "1"]
    assert await listed(world, reason="max_deliver") == ["2"]
    assert await listed(world, tag="gpu") == ["4", "3"]
    assert await listed(world, tag="eu") == ["2", "1"]
    assert await listed(world, flow="report") == ["3"]
    assert await listed(world, since=NOW) == ["4", "3", "2"], "inclusive"
    assert await listed(world, since="2100-01-01T00:00:00Z") == []
    found: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        query: Any = {"limit": 1, "tag": "cpu", **({} if cursor is None else {"cursor": cursor})}
        page = (await world.client.get("/dead-letters", params=query)).json()
        found += [letter["id"] for letter in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == ["2", "1"]
    for query in (
        {"limit": 0},
        {"limit": 201},
        {"since": "soon"},
        {"cursor": "x"},
        {"reason": "bad"},
        {"x": "1"},
    ):
        assert (await world.client.get("/dead-letters", params=query)).status_code == 422, query


async def test_a_redrive_is_one_new_run_however_often_it_is_asked_for(world: RunningGateway) -> None:
    await stored(world, a_failed_run(params={"n": 3}))
    answers = await asyncio.gather(*(world.client.post("/dead-letters/1/redrive") for _ in range(3)))
    assert {answer.status_code for answer in answers} == {200}
    (run_id,) = {answer.json()["run_id"] for answer in answers}
    async with another_gateway(world) as second:
        assert (await second.client.post("/dead-letters/1/redrive")).json() == {"run_id": run_id}
    new = (await world.client.get(f"/runs/{run_id}")).json()
    assert (new["status"], new["params"], new["retried_from"]) == ("PENDING", {"n": 3}, RUN_ID)
    assert (await world.client.get(f"/runs/{RUN_ID}")).json()["retried_as"] == run_id
    assert (await world.client.get("/dead-letters/1")).json()["redriven_as"] == run_id
    assert await world.backend.queue.count() == 1
    entries = (await world.client.get("/audit")).json()["items"]
    assert [(entry["action"], entry["target"]["id"]) for entry in entries] == [("dead_letter.redrive", "1")]


async def test_a_flow_yaml_is_redriven_with_its_text(world: RunningGateway) -> None:
    yaml = 'flow: {graph: "d"}\ntasks: {d: {callable: "os:getpid"}}\n'
    sent = await world.client.post(
        "/runs/yaml", files={"workflow": ("flow.yaml", yaml)}, data={"flow_name": "y", "tag": "cpu"}
    )
    old = sent.json()["run_id"]
    await world.client.post(f"/runs/{old}/cancel")
    await world.backend.dead_letters.publish(a_letter(run_id=old), "cpu")
    new = (await world.client.post("/dead-letters/1/redrive")).json()["run_id"]
    found = [world.backend.queue.at(job.sequence) for job in await world.backend.queue.jobs()]
    jobs = [decode_job(message.payload) for message in found if message is not None]
    assert {job.run_id: job.workflow_yaml for job in jobs}[new] == yaml


@pytest.mark.parametrize(
    ("run", "letter", "reason"),
    [
        (None, {"run_id": None}, "unreadable"),
        (None, {"run_id": RUN_ID}, "not stored"),
        ({"execution_id": "e1", "node_id": "n1"}, {}, "node of execution e1"),
        ({"workflow_yaml_sha256": "ab"}, {}, "flow.yaml"),
    ],
)
async def test_why_a_letter_cannot_be_redriven(
    world: RunningGateway, run: dict[str, Any] | None, letter: dict[str, Any], reason: str
) -> None:
    if run is not None:
        await world.backend.runs.create(RUN_ID, a_failed_run(**run))
    await world.backend.dead_letters.publish(a_letter(**letter), "cpu")
    answer = await world.client.post("/dead-letters/1/redrive")
    assert (answer.status_code, answer.json()["err_id"]) == (409, "ERR-PYOCO-0071")
    assert reason in answer.json()["detail"]
    assert (await world.client.get("/audit")).json()["items"] == []


async def test_a_discarded_letter_is_gone(world: RunningGateway) -> None:
    await stored(world, a_failed_run())
    answer = await world.client.post("/dead-letters/1/discard")
    assert (answer.status_code, answer.json()) == (200, {"id": "1", "discarded": True})
    for path in ("/dead-letters/1/discard", "/dead-letters/1/redrive"):
        assert (await world.client.post(path)).status_code == 404
    assert await listed(world) == []
    assert (await world.client.get(f"/runs/{RUN_ID}")).status_code == 200, "its run stays"
    (entry,) = (await world.client.get("/audit")).json()["items"]
    assert (entry["action"], entry["before"]["run_id"], entry["after"]) == (
        "dead_letter.discard",
        RUN_ID,
        None,
    )


async def test_another_tenants_letter_is_not_there() -> None:
    async with memory_app(http_auth_mode="api_key") as world:
        ours, theirs = [await new_key(world.backend.api_keys, name, name) for name in ("acme", "evil")]
        await stored(world, replace(a_failed_run(tenant_id="acme"), run_id=RUNS[1]))
        # Of an older worker, which stores no tenant beside the letter; and of no tenant at all.
        await world.backend.runs.create(RUNS[2], replace(a_failed_run(tenant_id="acme"), run_id=RUNS[2]))
        await world.backend.dead_letters.publish(a_letter(run_id=RUNS[2]), "cpu")
        await world.backend.dead_letters.publish(a_letter(run_id=None), "cpu")

        async def seen(key: dict[str, str]) -> list[str]:
            page = (await world.client.get("/dead-letters", headers=key)).json()
            return [letter["id"] for letter in page["items"]]

        await until(lambda: seen(ours), lambda ids: ids == ["2", "1"])
        assert await seen(theirs) == []
        assert (await world.client.get("/dead-letters")).status_code == 401
        for letter_id, key in (("1", theirs), ("2", theirs), ("3", theirs), ("3", ours)):
            for method, path in (("GET", ""), ("POST", "/redrive"), ("POST", "/discard")):
                answer = await world.client.request(method, f"/dead-letters/{letter_id}{path}", headers=key)
                assert answer.status_code == 404, (letter_id, path)
        assert (await world.client.post("/dead-letters/1/redrive", headers=ours)).status_code == 200
