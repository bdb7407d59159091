"""Bulk operations over HTTP: what they act on, what they count, what they record."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.bulk import retried_run_id
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.http_client import NotFound
from pyoco_server.testing import LocalServer
from support.builders import NOW, a_snapshot
from support.gateway import RunningGateway, another_gateway, memory_app, new_key
from support.waiting import until

RUNS = [f"0190c0de-0000-7000-8000-{number:012d}" for number in range(300)]


@pytest.fixture
async def world() -> AsyncIterator[RunningGateway]:
    async with memory_app() as opened:
        yield opened


def a_run(number: int, status: RunStatus = RunStatus.PENDING, **changed: Any) -> RunSnapshot:
    return replace(a_snapshot(status), run_id=RUNS[number], **{"tag": "cpu", "flow_name": "etl", **changed})


async def place(world: RunningGateway, *runs: RunSnapshot) -> None:
    for run in runs:
        await world.backend.runs.create(run.run_id, run)

    async def known() -> int:
        return sum((await counts(world)).values())

    await until(known, lambda count: count >= len(runs))


async def counts(world: RunningGateway) -> dict[str, int]:
    found = world.app.state.gateway.levels.runs.index.counts(None)
    return {status.value: count for status, count in found.items()}


async def start(world: RunningGateway, headers: Any = None, **body: Any) -> Any:
    return await world.client.post("/bulk", json=body, headers=headers)


async def ended(world: RunningGateway, operation: Any, headers: Any = None) -> dict[str, Any]:
    async def now() -> dict[str, Any]:
        found: dict[str, Any] = (await world.client.get(f"/bulk/{operation['id']}", headers=headers)).json()
        assert found["done"] + found["failed"] + found["left"] == found["total"]
        return found

    return await until(now, lambda found: found["status"] != "RUNNING")


async def carried_out(world: RunningGateway, **body: Any) -> dict[str, Any]:
    answer = await start(world, **body)
    assert answer.status_code == 202, answer.text
    return await ended(world, answer.json())


async def audited(world: RunningGateway) -> list[tuple[str, str]]:
    entries = (await world.client.get("/audit")).json()["items"]
    return [(entry["action"], entry["target"]["id"]) for entry in entries]


async def test_cancel_by_filter_counts_what_ended_otherwise_as_failed(world: RunningGateway) -> None:
    await place(
        world,
        *(a_run(number) for number in range(250)),
        a_run(250, RunStatus.COMPLETED),
        a_run(251, RunStatus.CANCELLED),
        a_run(252, flow_name="other"),
    )
    answer = await start(world, action="cancel", filter={"flow": "etl"})
    started = answer.json()
    assert answer.status_code == 202
    assert set(started) == {
        *("id", "action", "status", "total", "done", "failed", "left", "created_at", "ended_at", "errors")
    }
    found = await ended(world, started)
    assert {name: found[name] for name in ("status", "total", "done", "failed", "left")} == {
        "status": "COMPLETED",
        "total": 252,
        "done": 251,
        "failed": 1,
        "left": 0,
    }
    assert found["errors"] == [{"id": RUNS[250], "error": "the run is COMPLETED"}]
    assert found["ended_at"] >= found["created_at"]
    await until(lambda: counts(world), lambda now: now["CANCELLED"] == 251)
    assert (await counts(world))["PENDING"] == 1
    assert await audited(world) == [("bulk.item_failed", RUNS[250]), ("bulk.start", found["id"])]
    assert world.backend.bulk_chunks._values == {}, "what is not needed any more is removed"
    metrics = (await world.client.get("/metrics")).text
    assert 'pyoco_bulk_items_total{action="cancel",outcome="done"} 251.0' in metrics
    assert 'pyoco_bulk_items_total{action="cancel",outcome="failed"} 1.0' in metrics


async def test_retry_by_ids_starts_one_run_each(world: RunningGateway) -> None:
    await place(world, a_run(0, RunStatus.FAILED, end_time=NOW), a_run(1, RunStatus.RUNNING))
    found = await carried_out(world, action="retry", ids=[RUNS[0], RUNS[0], RUNS[1], RUNS[9], "x"])
    assert (found["total"], found["done"], found["failed"]) == (4, 1, 3)
    errors = {error["id"]: error["error"] for error in found["errors"]}
    assert errors[RUNS[9]] == errors["x"] == "run not found"
    assert "RUNNING" in errors[RUNS[1]]
    new = (await world.client.get(f"/runs/{retried_run_id(found['id'], RUNS[0])}")).json()
    assert (new["status"], new["retried_from"]) == ("PENDING", RUNS[0])


async def test_delete_by_filter(world: RunningGateway) -> None:
    await place(world, a_run(0, RunStatus.FAILED), a_run(1, RunStatus.COMPLETED), a_run(2))
    found = await carried_out(world, action="delete", filter={"tag": "cpu"})
    assert (found["done"], found["failed"]) == (2, 1)
    assert found["errors"] == [{"id": RUNS[2], "error": "the run is PENDING; cancel it, or wait for its end"}]
    await until(lambda: counts(world), lambda now: sum(now.values()) == 1)


async def test_the_audit_trail_names_what_an_operation_acted_on(world: RunningGateway) -> None:
    await place(world, *(a_run(number, RunStatus.FAILED) for number in range(120)))
    await carried_out(
        world, action="delete", filter={"flow": "none", "updated_before": "2020-01-01T00:00:00Z"}
    )
    await carried_out(world, action="redrive", filter={"reason": "invalid_job"})
    await carried_out(world, action="cancel", all=True)
    await carried_out(world, action="retry", ids=RUNS[:120])
    entries = (await world.client.get("/audit", params={"action": "bulk.start"})).json()["items"]
    recorded = [{**entry["after"]} for entry in reversed(entries)]
    assert [one.get("filter") for one in recorded] == [
        {"flow": "none", "updated_before": 1577836800.0},
        {"reason": "invalid_job"},
        {},
        None,
    ]
    assert recorded[-1]["ids"] == RUNS[:100]
    assert recorded[-1]["total"] == 120


async def test_a_filter_means_the_runs_that_match_when_it_starts(world: RunningGateway) -> None:
    await place(world, *(a_run(number) for number in range(5)))
    answer = await start(world, action="cancel", filter={"status": "PENDING"}, max_per_sec=20.0)
    await world.backend.runs.create(RUNS[9], a_run(9))
    found = await ended(world, answer.json())
    assert (found["total"], found["done"]) == (5, 5)
    assert (await world.client.get(f"/runs/{RUNS[9]}")).json()["status"] == "PENDING"


async def test_a_dry_run_makes_nothing(world: RunningGateway) -> None:
    await place(world, *(a_run(number) for number in range(30)))
    answer = await start(world, action="cancel", filter={"flow": "etl"}, dry_run=True)
    assert answer.status_code == 200
    preview = answer.json()
    assert (preview["count"], len(preview["items"]), set(preview)) == (30, 20, {"count", "items"})
    assert preview["items"][0] == (await world.client.get("/runs")).json()[0]
    some = (await start(world, action="delete", ids=[RUNS[3], RUNS[290]], dry_run=True)).json()
    assert (some["count"], [run["run_id"] for run in some["items"]]) == (2, [RUNS[3]])
    assert (await world.client.get("/bulk")).json() == {"items": [], "next_cursor": None}
    assert await audited(world) == []
    assert (await counts(world))["PENDING"] == 30


@pytest.mark.parametrize(
    "body",
    [
        {"action": "cancel"},
        {"action": "cancel", "filter": {}},
        {"action": "cancel", "filter": {"flow": None}},
        {"action": "cancel", "filter": {"flow": "x"}, "ids": [RUNS[0]]},
        {"action": "cancel", "ids": [RUNS[0]], "all": True},
        {"action": "cancel", "ids": []},
        {"action": "cancel", "filter": {"reason": "max_deliver"}},
        {"action": "redrive", "filter": {"status": "FAILED"}},
        {"action": "cancel", "filter": {"flwo": "x"}},
        {"action": "explode", "ids": [RUNS[0]]},
        {"action": "cancel", "ids": [RUNS[0]], "max_per_sec": 0},
        {"action": "cancel", "ids": [RUNS[0], RUNS[1]], "max_per_sec": 1e-7},
        {"action": "cancel", "ids": [RUNS[0]], "wrong": 1},
    ],
)
async def test_what_is_refused(world: RunningGateway, body: dict[str, Any]) -> None:
    answer = await start(world, **body)
    assert answer.status_code == 422, answer.text
    assert (await world.client.get("/bulk")).json()["items"] == []


async def test_what_is_wrong_is_named_in_words_of_ours(world: RunningGateway) -> None:
    (problem,) = (await start(world, action="cancel")).json()["detail"]
    assert problem["msg"].startswith("filter: it is empty")


async def test_all_has_to_be_asked_for(world: RunningGateway) -> None:
    await place(world, a_run(0), a_run(1))
    found = await carried_out(world, action="cancel", filter={}, all=True)
    assert (found["total"], found["done"]) == (2, 2)
    nothing = (await start(world, action="redrive", all=True)).json()
    assert (nothing["status"], nothing["total"], nothing["ended_at"]) == (
        "COMPLETED",
        0,
        nothing["created_at"],
    )


async def test_an_operation_is_cancelled_once_and_stays_so(world: RunningGateway) -> None:
    await place(world, *(a_run(number) for number in range(50)))
    operation = (await start(world, action="cancel", filter={"flow": "etl"}, max_per_sec=2.0)).json()
    cancelled = (await world.client.post(f"/bulk/{operation['id']}/cancel")).json()
    assert (cancelled["status"], cancelled["left"] > 0) == ("CANCELLED", True)
    again = await world.client.post(f"/bulk/{operation['id']}/cancel")
    assert (again.status_code, again.json()["status"], again.json()["ended_at"]) == (
        200,
        "CANCELLED",
        cancelled["ended_at"],
    )
    found = await ended(world, operation)
    assert found["left"] >= 44
    assert sorted(await audited(world)) == [("bulk.cancel", found["id"]), ("bulk.start", found["id"])]
    answer = await world.client.post(f"/bulk/{RUNS[0]}/cancel")
    assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0072")


async def test_operations_are_listed_newest_first_at_every_gateway(world: RunningGateway) -> None:
    made = [(await start(world, action="cancel", ids=[RUNS[n]])).json()["id"] for n in range(3)]
    async with another_gateway(world) as second:

        async def known() -> int:
            return len((await second.client.get("/bulk")).json()["items"])

        await until(known, lambda count: count == 3)
        first = (await world.client.get("/bulk", params={"limit": 2})).json()
        rest = await second.client.get("/bulk", params={"limit": 2, "cursor": first["next_cursor"]})
        listed = [one["id"] for one in (*first["items"], *rest.json()["items"])]
        assert listed == made[::-1]
        assert rest.json()["next_cursor"] is None
    for limit in (0, 201):
        assert (await world.client.get("/bulk", params={"limit": limit})).status_code == 422


async def test_an_operation_can_be_watched_to_its_end(world: RunningGateway) -> None:
    await place(world, *(a_run(number) for number in range(120)))
    operation = (await start(world, action="cancel", filter={"flow": "etl"}, max_per_sec=60.0)).json()
    answer = await world.client.get(f"/bulk/{operation['id']}/watch")
    assert answer.headers["content-type"].startswith("text/event-stream")
    seen = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert all(one["done"] + one["failed"] + one["left"] == one["total"] == 120 for one in seen)
    assert [one["done"] for one in seen] == sorted(one["done"] for one in seen)
    assert len({one["done"] for one in seen}) >= 2
    assert seen[-1]["status"] == "COMPLETED"
    ended_one = await world.client.get(f"/bulk/{operation['id']}/watch")
    assert ended_one.text.count("data: ") == 1
    assert (await world.client.get(f"/bulk/{RUNS[0]}/watch")).status_code == 404


async def test_tenants_see_and_change_their_own() -> None:
    async with memory_app(http_auth_mode="api_key") as world:
        ours, theirs = [await new_key(world.backend.api_keys, name, name) for name in ("acme", "evil")]
        await world.backend.runs.create(RUNS[0], a_run(0, tenant_id="acme"))
        await world.backend.runs.create(RUNS[1], a_run(1, tenant_id="evil"))

        async def both() -> int:
            index = world.app.state.gateway.levels.runs.index
            return sum(sum(index.counts(tenant).values()) for tenant in ("acme", "evil"))

        await until(both, lambda count: count == 2)
        operation = (await start(world, ours, action="cancel", ids=[RUNS[0], RUNS[1]])).json()
        found = await ended(world, operation, ours)
        assert (found["done"], found["errors"]) == (1, [{"id": RUNS[1], "error": "run not found"}])
        every = (await start(world, theirs, action="cancel", all=True, dry_run=True)).json()
        assert [run["run_id"] for run in every["items"]] == [RUNS[1]]
        assert (await world.client.get("/bulk", headers=theirs)).json()["items"] == []
        for method, path in (("GET", ""), ("GET", "/watch"), ("POST", "/cancel")):
            answer = await world.client.request(method, f"/bulk/{operation['id']}{path}", headers=theirs)
            assert answer.status_code == 404, path
        assert (await world.client.get("/bulk")).status_code == 401


async def test_two_gateways_count_every_item_once(world: RunningGateway) -> None:
    await place(world, *(a_run(number) for number in range(300)))
    async with another_gateway(world):
        operations = await asyncio.gather(
            *(start(world, action="cancel", filter={"flow": "etl"}) for _ in range(3))
        )
        for operation in operations:
            found = await ended(world, operation.json())
            assert (found["done"], found["failed"]) == (300, 0)


@pytest.fixture
def pyoco_flows() -> list[Any]:
    return []


def test_the_client_has_the_same_calls(pyoco_server: LocalServer) -> None:
    client = pyoco_server.client
    run_id = client.submit_run("etl", {}, tag="nobody")["run_id"]
    assert client.bulk.preview("cancel", filter={"flow": "etl"})["count"] == 1
    operation = client.bulk.start("cancel", filter={"flow": "etl"})
    *_, last = client.bulk.watch(operation["id"])
    assert (last["status"], last["done"]) == ("COMPLETED", 1)
    assert client.bulk.get(operation["id"]) == client.bulk.cancel(operation["id"]) == last
    assert [one["id"] for one in client.bulk.list()["items"]] == [operation["id"]]
    assert client.delete_run(run_id) == {"run_id": run_id, "deleted": True}
    assert client.dead_letters.list(since=0.0) == {"items": [], "next_cursor": None}
    for call in (client.dead_letters.get, client.dead_letters.redrive, client.dead_letters.discard):
        with pytest.raises(NotFound):
            call("1")
    for delete in (client.delete_worker, client.executions.delete):
        with pytest.raises(NotFound):
            delete("nobody")
