"""REQ-0015, REQ-0022: the fleet over HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.fleet import WorkerFigures, WorkerRecord, WorkerState, register
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.ports.stores import Versioned
from support.builders import NOW, a_worker, an_activity
from support.gateway import RunningGateway, memory_app, new_key
from support.waiting import until

AT_NOW = {"clock": lambda: NOW}


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app(given=AT_NOW) as running:
        yield running


async def put(gateway: RunningGateway, *records: WorkerRecord) -> None:
    for record in records:
        await gateway.backend.workers.create(record.worker_id, record)

    async def look() -> int:
        return len(await shown(gateway, "scope=all&include_hidden=true&limit=500"))

    await until(look, lambda count: count >= min(len(records), 500))


async def shown(gateway: RunningGateway, query: str = "") -> list[str]:
    answer = await gateway.client.get(f"/workers?{query}")
    assert answer.status_code == 200, answer.text
    return [worker["worker_id"] for worker in answer.json()]


FLEET = (
    a_worker(worker_id="idle"),
    a_worker(worker_id="busy", state=WorkerState.RUNNING, current_run_id="r"),
    a_worker(worker_id="gone", last_seen_at=NOW - 21),
    a_worker(worker_id="late", last_seen_at=NOW - 19),
    a_worker(worker_id="stopped", state=WorkerState.STOPPED_GRACEFUL, last_seen_at=NOW - 99),
    a_worker(worker_id="shy", hidden=True),
)


async def test_where_nobody_is_yet_the_list_is_empty(gateway: RunningGateway) -> None:
    assert await shown(gateway) == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["busy", "idle", "late"]),
        ("scope=active", ["busy", "idle", "late"]),
        ("scope=all", ["busy", "gone", "idle", "late", "stopped"]),
        ("scope=all&include_hidden=true", ["busy", "gone", "idle", "late", "shy", "stopped"]),
        ("include_hidden=true", ["busy", "idle", "late", "shy"]),
        ("state=RUNNING", ["busy"]),
        ("state=DISCONNECTED", ["gone"]),
        ("state=STOPPED_GRACEFUL&scope=all", ["stopped"]),
        ("scope=all&limit=2", ["busy", "gone"]),
    ],
)
async def test_the_fleet_is_shown_as_it_was_asked_for(
    gateway: RunningGateway, query: str, expected: list[str]
) -> None:
    await put(gateway, *FLEET)
    assert await shown(gateway, query) == expected


async def test_a_worker_is_shown_with_the_fields_of_the_contract(gateway: RunningGateway) -> None:
    await put(gateway, a_worker(tags=("gpu", "default"), last_seen_at=NOW - 30, last_run_id="r"))
    (worker,) = (await gateway.client.get("/workers?scope=all")).json()
    assert (worker["state"], worker["hidden"], worker["tags"]) == ("DISCONNECTED", False, ["gpu", "default"])
    assert {"instance_id", "last_seen_at", "last_heartbeat_at", "current_run_id", "last_run_id"} <= set(
        worker
    )
    assert {"last_run_status", "stopped_at", "stop_reason"} <= set(worker)
    assert worker["figures"] is None  # an older one


async def test_a_worker_is_shown_with_where_and_as_what_it_runs(gateway: RunningGateway) -> None:
    figures = WorkerFigures(host="node-7", version="1.0", python="3.12.1", started_at=NOW, active=3)
    await put(gateway, a_worker(figures=figures))
    (worker,) = (await gateway.client.get("/workers")).json()
    expected = {"host": "node-7", "version": "1.0", "python": "3.12.1", "started_at": NOW}
    assert worker["figures"] == expected


@pytest.mark.parametrize(
    "query",
    ["scope=some", "state=SLEEPING", "state=idle", "include_hidden=maybe", "limit=0", "limit=501", "limit=x"],
)
async def test_what_the_fleet_cannot_be_asked_is_refused(gateway: RunningGateway, query: str) -> None:
    """ERR-PYOCO-0019"""
    answer = await gateway.client.get(f"/workers?{query}")
    assert answer.status_code == 422
    assert (answer.json()["err_id"], answer.json()["msg_id"]) == ("ERR-PYOCO-0019", "MSG-PYOCO-0019")
    assert answer.json()["detail"].startswith("invalid workers request")


async def test_the_list_shows_100_workers_and_at_most_500(gateway: RunningGateway) -> None:
    await put(gateway, *(a_worker(worker_id=f"w{n:03}") for n in range(501)))
    assert (len(await shown(gateway)), len(await shown(gateway, "limit=500"))) == (100, 500)


async def test_a_worker_is_hidden_and_shown_again(gateway: RunningGateway) -> None:
    await put(gateway, a_worker(worker_id="host.example-1"))
    answer = await gateway.client.patch("/workers/host.example-1", json={"hidden": True})
    assert (answer.status_code, answer.json()) == (
        200,
        {"worker_id": "host.example-1", "hidden": True, "updated_at": NOW},
    )
    assert await shown(gateway) == [], "at once, at the gateway that was asked"
    await gateway.client.patch("/workers/host.example-1", json={"hidden": False})
    assert await shown(gateway) == ["host.example-1"]


async def test_hiding_does_not_undo_a_heartbeat_that_came_in_between(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(gateway, a_worker())
    real = MemoryStore[WorkerRecord].get
    reads: list[str] = []

    async def get(self: MemoryStore[WorkerRecord], key: str) -> Versioned[WorkerRecord] | None:
        found = await real(self, key)
        reads.append(key)
        if len(reads) == 1 and found is not None:
            await self.update(key, a_worker(current_run_id="news"), found.revision)
        return found

    monkeypatch.setattr(MemoryStore, "get", get)
    assert (await gateway.client.patch("/workers/worker-a", json={"hidden": True})).status_code == 200
    stored = await real(gateway.backend.workers, "worker-a")
    assert stored is not None
    assert (stored.value.hidden, stored.value.current_run_id) == (True, "news")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"hidden": 1}', b'{"hidden": "true"}', b'{"hidden": null}']
)
async def test_a_body_that_makes_no_sense_changes_nothing(gateway: RunningGateway, body: bytes) -> None:
    """ERR-PYOCO-0019"""
    await put(gateway, a_worker())
    answer = await gateway.client.patch("/workers/worker-a", content=body)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0019")
    assert await shown(gateway) == ["worker-a"]


@pytest.mark.parametrize("worker_id", ["nobody", "*", "a..b", "%3E", "x" * 129, "a b", "%E3%81%82"])
async def test_a_worker_that_does_not_exist_is_not_found(gateway: RunningGateway, worker_id: str) -> None:
    """ERR-PYOCO-0020"""
    answer = await gateway.client.patch(f"/workers/{worker_id}", json={"hidden": True})
    assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0020")
    assert answer.json()["detail"] == "worker not found"


async def test_hiding_a_worker_hides_it_from_ones_own_tenant_alone() -> None:
    """D57: any key hid a worker from all tenants."""
    async with memory_app(given=AT_NOW, http_auth_mode="api_key") as gateway:
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        theirs = await new_key(gateway.backend.api_keys, "other", "key-b")
        await gateway.backend.workers.create("w", a_worker(worker_id="w"))

        async def seen(who: dict[str, str], query: str = "") -> list[Any]:
            return (await gateway.client.get(f"/workers?{query}", headers=who)).json()  # type: ignore[no-any-return]

        await until(lambda: seen(theirs), lambda found: len(found) == 1)
        answer = await gateway.client.patch("/workers/w", json={"hidden": True}, headers=ours)
        assert (answer.status_code, answer.json()["hidden"]) == (200, True)
        assert (await seen(ours), len(await seen(theirs))) == ([], 1)
        (mine,), (other,) = await seen(ours, "include_hidden=true"), await seen(theirs)
        assert (mine["hidden"], other["hidden"]) == (True, False)
        assert "acme" not in str(other)
        stored = await gateway.backend.workers.get("w")
        assert stored is not None
        assert register(stored.value, an_activity(worker_id="w"), NOW).hidden_for == ("acme",)
        await gateway.client.patch("/workers/w", json={"hidden": False}, headers=ours)
        assert len(await seen(ours)) == 1


async def test_a_worker_that_was_hidden_for_everybody_can_be_shown_again_by_a_tenant() -> None:
    """D57: say, before there were keys."""
    async with memory_app(given=AT_NOW, http_auth_mode="api_key") as gateway:
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        await gateway.backend.workers.create("w", a_worker(worker_id="w", hidden=True))
        answer = await gateway.client.patch("/workers/w", json={"hidden": False}, headers=ours)
        assert answer.json()["hidden"] is False
        assert len((await gateway.client.get("/workers", headers=ours)).json()) == 1
