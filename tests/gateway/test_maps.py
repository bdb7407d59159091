"""Maps over HTTP, with a worker: items as runs and as executions, cancels and reruns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from pyoco import Flow, task

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.executions.records import run_id_of
from pyoco_server.wiring import new_thread_executors
from pyoco_server.wiring.worker import WorkerName, new_worker
from support.gateway import RunningGateway, memory_app
from support.http_executions import Executions, graph
from support.waiting import until

N = 250
CONFIG = NatsBackendConfig(cancel_grace_period_sec=0.3)


def double() -> Flow:
    @task
    def doubled(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return 2 * n

    return Flow(name="double") >> doubled


@asynccontextmanager
async def working(gateway: RunningGateway) -> AsyncIterator[None]:
    executors = new_thread_executors(lambda _: double(), CONFIG)
    worker = new_worker(CONFIG, gateway.backend, executors, WorkerName("w", ("default",)))
    await worker.open()
    running = asyncio.ensure_future(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running
        await worker.close()
        await executors.close()


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app(cancel_grace_period_sec=0.3) as running:
        yield running


@pytest.fixture
def executions(gateway: RunningGateway) -> Executions:
    return Executions(gateway.client)


def over_input(**more: Any) -> dict[str, Any]:
    node = {"flow": "double", "params": {"n": "${item}"}}
    return graph({"n": {"type": "map", "over": "${input}", "node": node, **more}})


async def items(executions: Executions, execution_id: str, **params: Any) -> list[dict[str, Any]]:
    found, cursor = [], None
    while True:
        given = params | ({} if cursor is None else {"cursor": cursor})
        answer = await executions.http.get(f"/executions/{execution_id}/nodes/n/items", params=given)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["items"]
        if (cursor := page["next_cursor"]) is None:
            return found


async def test_each_item_is_a_run_and_the_log_is_short(
    gateway: RunningGateway, executions: Executions
) -> None:
    async with working(gateway):
        await executions.register("g", over_input(max_parallel=20))
        await executions.create("g", execution_id="e", input=list(range(N)))
        ended = await executions.until_ended("e")
    assert ended["status"] == "COMPLETED"
    assert ended["result"]["n"] == [{"doubled": 2 * n} for n in range(N)]
    assert ended["nodes"]["n"]["items"] == {
        "elements": N,
        "total": N,
        "succeeded": N,
        "failed": 0,
        "carried": 0,
    }
    types = await executions.types("e")
    assert types.count("MAP_OPENED") == 1
    assert types.count("MAP_ITEMS_ENDED") < N / 5
    shown = await items(executions, "e", limit=200)
    assert [item["run_id"] for item in shown] == [run_id_of("e", "n", 1, index) for index in range(N)]
    assert {item["status"] for item in shown} == {"SUCCEEDED"}
    run = (await executions.http.get(f"/runs/{shown[7]['run_id']}")).json()
    assert (run["params"], run["execution_id"], run["node_id"]) == ({"n": 7}, "e", "n")


async def test_a_rerun_from_the_failure_runs_only_the_failed_items(
    gateway: RunningGateway, executions: Executions
) -> None:
    async with working(gateway):
        await executions.register("g", over_input(tolerate=1, max_parallel=1))
        await executions.create("g", execution_id="e", input=[1, -2, 3, -4])
        ended = await executions.until_ended("e")
        assert (ended["status"], ended["error"]["code"]) == ("FAILED", "ITEMS_FAILED")
        assert [item["status"] for item in await items(executions, "e", status="FAILED")] == ["FAILED"] * 2
        fields: dict[str, Any] = {"from": "failed"}
        again = (await executions.post("/executions/e/rerun", 201, **fields))["execution_id"]
        await executions.until_ended(again)
    shown = await items(executions, again)
    carried = [item["index"] for item in shown if item["carried_from"] == "e"]
    assert carried == [0, 2]
    assert [item["run_id"] for item in shown if item["index"] in carried] == [None, None]
    assert sum(run["execution_id"] == again for run in await _runs(executions)) == 2


async def test_a_cancel_reaches_every_item(executions: Executions) -> None:
    await executions.register("g", over_input(max_parallel=5))
    await executions.create("g", execution_id="e", input=list(range(50)))
    await until(lambda: _runs(executions), lambda runs: len(runs) == 5)
    statuses = [item["status"] for item in await items(executions, "e", limit=7)]
    assert statuses == ["RUNNING"] * 5 + ["IDLE"] * 45
    await executions.post("/executions/e/cancel")
    assert (await executions.until_ended("e"))["status"] == "CANCELED"
    runs = await until(lambda: _runs(executions), lambda runs: all(run["end_time"] for run in runs))
    assert [run["status"] for run in runs] == ["CANCELLED"] * 5
    assert {item["status"] for item in await items(executions, "e")} == {"CANCELED"}


async def _runs(executions: Executions) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = (await executions.http.get("/runs")).json()
    return runs


async def test_items_may_be_executions_of_a_graph(gateway: RunningGateway, executions: Executions) -> None:
    async with working(gateway):
        only = {"type": "task", "flow": "double", "params": {"n": "${input}"}}
        await executions.register("below", graph({"only": only}))
        node = {"type": "map", "over": "${input}", "graph": "below", "input": "${item}", "max_parallel": 2}
        await executions.register("g", graph({"n": node}))
        await executions.create("g", execution_id="e", input=[1, 2, 3])
        ended = await executions.until_ended("e")
    assert ended["result"] == {"n": [{"only": {"doubled": 2 * n}} for n in (1, 2, 3)]}
    for item in await items(executions, "e"):
        child = await executions.get(item["execution_id"])
        assert (child["parent_execution_id"], child["parent_node_id"]) == ("e", "n")


async def test_a_cancel_reaches_the_executions_of_items(executions: Executions) -> None:
    await executions.register("below", graph({"only": {"type": "task", "external": True}}))
    node = {"type": "map", "over": [1, 2, 3], "graph": "below", "max_parallel": 2}
    await executions.register("g", graph({"n": node}))
    await executions.create("g", execution_id="e")
    shown = await until(
        lambda: items(executions, "e"), lambda found: any(item["execution_id"] for item in found)
    )
    for item in shown[:2]:
        path = f"/executions/{item['execution_id']}"
        await until(partial(executions.http.get, path), lambda answer: answer.status_code == 200)
    await executions.post("/executions/e/cancel")
    for execution_id in ("e", shown[0]["execution_id"], shown[1]["execution_id"]):
        assert (await executions.until_ended(execution_id))["status"] == "CANCELED"
    assert len((await executions.http.get("/executions")).json()["items"]) == 3


async def test_what_is_no_map_has_no_items(executions: Executions) -> None:
    await executions.register("g", graph({"n": {"type": "wait"}}))
    await executions.create("g", execution_id="e")
    for path, status in (
        ("e/nodes/n/items", 422),
        ("e/nodes/x/items", 404),
        ("x/nodes/n/items", 404),
        ("e/nodes/n/items?cursor=x", 422),
    ):
        answer = await executions.http.get(f"/executions/{path}")
        assert answer.status_code == status, answer.text
