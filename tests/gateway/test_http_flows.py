"""`GET /flows`: what workers report, what ran, and nothing of another tenant."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.fleet import (
    MAX_FLOWS_BYTES,
    FlowList,
    WorkerRecord,
    WorkerState,
    register,
    reportable_flows,
)
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.usecases.ports.stores import Revision
from support.builders import NOW, a_snapshot, a_worker, an_activity
from support.gateway import RunningGateway, memory_app, new_key
from support.waiting import until

WORKERS = (
    a_worker(worker_id="a", tags=("default", "eu"), flows=("daily", "monthly")),
    a_worker(worker_id="b", tags=("gpu",), flows=("monthly",)),
    a_worker(worker_id="older"),
    a_worker(worker_id="gone", state=WorkerState.STOPPED_GRACEFUL, flows=("left",)),
    a_worker(worker_id="shy", hidden=True, flows=("secret",)),
)


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app(given={"clock": lambda: NOW}) as running:
        await add_workers(running, *WORKERS)
        yield running


async def add_workers(gateway: RunningGateway, *records: WorkerRecord, **headers: str) -> None:
    for record in records:
        await gateway.backend.workers.create(record.worker_id, record)

    async def seen() -> int:
        query = "/workers?scope=all&include_hidden=true"
        return len((await gateway.client.get(query, headers=headers)).json())

    await until(seen, lambda count: count == len(records))


async def add_run(gateway: RunningGateway, number: int, flow: str, status: RunStatus, **fields: Any) -> None:
    run_id = f"0190aaaa-bbbb-7ccc-8ddd-{number:012x}"
    run = a_snapshot(status, run_id=run_id, flow_name=flow, **{"updated_at": NOW + number, **fields})
    revision = await gateway.backend.runs.create(run_id, run)
    assert isinstance(revision, int | Revision)


async def flows(gateway: RunningGateway, query: str = "", **headers: str) -> dict[str, dict[str, Any]]:
    answer = await gateway.client.get(f"/flows?{query}", headers=headers)
    assert answer.status_code == 200, answer.text
    return {flow["name"]: flow for flow in answer.json()["items"]}


async def test_live_workers_report_their_flows(gateway: RunningGateway) -> None:
    found = await flows(gateway)
    assert {name: (flow["workers"], flow["tags"]) for name, flow in found.items()} == {
        "daily": (["a"], ["default", "eu"]),
        "monthly": (["a", "b"], ["default", "eu", "gpu"]),
    }
    statistics = {name: found["daily"][name] for name in ("last_runs", "success_rate", "p50_sec", "p95_sec")}
    assert statistics == {"last_runs": [], "success_rate": None, "p50_sec": None, "p95_sec": None}


async def test_a_flow_that_ran_has_statistics(gateway: RunningGateway) -> None:
    for number in range(1, 21):
        await add_run(
            gateway, number, "ran", RunStatus.COMPLETED, tag="old", start_time=NOW, end_time=NOW + number
        )
    for number in range(21, 26):
        await add_run(gateway, number, "ran", RunStatus.FAILED, start_time=NOW, end_time=NOW + 500)
    await add_run(gateway, 26, "ran", RunStatus.CANCELLED)
    await add_run(gateway, 27, "ran", RunStatus.PENDING, tag="new")
    found = await until(
        lambda: flows(gateway), lambda found: "ran" in found and len(found["ran"]["last_runs"]) == 5
    )
    ran = found["ran"]
    assert [run["status"] for run in ran["last_runs"]] == [
        "PENDING",
        "CANCELLED",
        "FAILED",
        "FAILED",
        "FAILED",
    ]
    assert (ran["success_rate"], ran["p50_sec"], ran["p95_sec"]) == (0.8, 10.0, 19.0)
    assert (ran["workers"], ran["tags"]) == ([], ["new"])


async def test_a_backlog_does_not_hide_how_the_last_runs_ended(gateway: RunningGateway) -> None:
    await add_run(gateway, 1, "busy", RunStatus.COMPLETED, start_time=NOW, end_time=NOW + 3)
    for number in range(2, 300):
        await add_run(gateway, number, "busy", RunStatus.PENDING)
    found = await until(lambda: flows(gateway), lambda found: "busy" in found)
    assert (found["busy"]["success_rate"], found["busy"]["p50_sec"]) == (1.0, 3.0)


async def test_pages_follow_each_other_by_name(gateway: RunningGateway) -> None:
    for number, name in enumerate(("c", "é", "売上", "\U0001f600", "daily")):
        await add_run(gateway, number, name, RunStatus.PENDING)
    await until(lambda: flows(gateway), lambda found: len(found) == 6)
    names: list[str] = []
    cursor = ""
    while True:
        page = (
            await gateway.client.get("/flows", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        ).json()
        names += [flow["name"] for flow in page["items"]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert names == ["c", "daily", "monthly", "é", "売上", "\U0001f600"]


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "cursor=x", "limit=many"])
async def test_a_bad_query_is_refused(gateway: RunningGateway, query: str) -> None:
    answer = await gateway.client.get(f"/flows?{query}")
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0017")


async def test_a1_runs_of_another_tenant_are_not_shown() -> None:
    async with memory_app(http_auth_mode="api_key", given={"clock": lambda: NOW}) as gateway:
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        theirs = await new_key(gateway.backend.api_keys, "other", "key-b")
        await add_workers(gateway, *WORKERS, **ours)
        await add_run(gateway, 1, "ours", RunStatus.COMPLETED, tenant_id="acme")
        await add_run(gateway, 2, "theirs", RunStatus.COMPLETED, tenant_id="other")
        await add_run(gateway, 3, "daily", RunStatus.COMPLETED, tenant_id="other")
        found = await until(lambda: flows(gateway, **theirs), lambda found: "theirs" in found)
        assert set(found) == {"daily", "monthly", "theirs"}
        assert len(found["daily"]["last_runs"]) == 1
        found = await until(lambda: flows(gateway, **ours), lambda found: "ours" in found)
        assert set(found) == {"daily", "monthly", "ours"}
        assert (found["daily"]["last_runs"], found["daily"]["success_rate"]) == ([], None)
        cursor = (await gateway.client.get("/flows?limit=1", headers=ours)).json()["next_cursor"]
        answer = await gateway.client.get("/flows", params={"cursor": cursor}, headers=theirs)
        assert answer.status_code == 422


# The worker's part


def test_a_record_holds_as_many_names_as_fit() -> None:
    names = [f"flow-{number:05d}" for number in range(5000)]
    kept = reportable_flows([*names, "", "x" * 201, "flow-00000"], ["alias"])
    assert kept.names == tuple(names[: len(kept.names)])
    assert len(kept.names) > 1000
    assert sum(map(len, kept.names)) <= MAX_FLOWS_BYTES
    assert (kept.aliases, kept.is_complete) == ((), False)
    assert reportable_flows(["b", "a"], ["c"]) == FlowList(("a", "b"), ("c",), is_complete=True)


def test_a_heartbeat_reports_the_flows_of_now() -> None:
    first = register(None, an_activity(flows=FlowList(("old",), is_complete=True)), NOW)
    assert first.flows_complete
    now = register(first, an_activity(flows=FlowList(("new",), ("other",))), NOW + 5)
    assert (now.flows, now.flow_aliases, now.flows_complete) == (("new",), ("other",), False)
    assert register(first, an_activity(), NOW + 5).flows is None
