"""Deletes of runs, executions and records of workers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.fleet import WorkerState
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.usecases.ports.stores import Revision
from support.builders import NOW, RUN_ID, a_snapshot, a_worker
from support.gateway import RunningGateway, another_gateway, memory_app, new_key
from support.http_executions import APPROVAL, Executions
from support.waiting import until

AT_NOW = {"clock": lambda: NOW}


@pytest.fixture
async def world() -> AsyncIterator[RunningGateway]:
    async with memory_app(given=AT_NOW, cancel_grace_period_sec=0.2) as running:
        yield running


async def listed(world: RunningGateway, path: str = "/runs") -> list[Any]:
    found = (await world.client.get(path)).json()
    return list(found if isinstance(found, list) else found["items"])


async def audited(world: RunningGateway) -> list[tuple[str, str]]:
    """What was deleted."""
    entries = [(entry["action"], entry["target"]["id"]) for entry in await listed(world, "/audit")]
    return [entry for entry in entries if entry[0].endswith(".delete")]


def ended_run(**changed: Any) -> RunSnapshot:
    return replace(a_snapshot(RunStatus.COMPLETED), tag="cpu", end_time=NOW, **changed)


async def test_a_deleted_run_is_gone_at_every_gateway_with_its_log(world: RunningGateway) -> None:
    await world.backend.runs.create(RUN_ID, ended_run())
    line = LogLine(task="t", ts=NOW, n=1, text="secret", stream="stdout", attempt=1)
    await world.backend.task_logs.append(RUN_ID, [line], "1")
    async with another_gateway(world) as second:
        await until(lambda: listed(second), lambda runs: len(runs) == 1)
        answer = await world.client.delete(f"/runs/{RUN_ID}")
        assert (answer.status_code, answer.json()) == (200, {"run_id": RUN_ID, "deleted": True})
        assert await listed(world) == []
        await until(lambda: listed(second), lambda runs: runs == [])
    assert [record async for record in world.backend.task_logs.read(RUN_ID)] == []
    assert (await world.client.delete(f"/runs/{RUN_ID}")).status_code == 404
    assert (await world.client.delete("/runs/x")).status_code == 404
    assert await audited(world) == [("run.delete", RUN_ID)]


@pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.RUNNING, RunStatus.CANCELLING])
async def test_a_run_that_has_not_ended_is_not_deleted(world: RunningGateway, status: RunStatus) -> None:
    await world.backend.runs.create(RUN_ID, a_snapshot(status))
    answer = await world.client.delete(f"/runs/{RUN_ID}")
    assert (answer.status_code, answer.json()["err_id"]) == (409, "ERR-PYOCO-0073")
    assert status.value in answer.json()["detail"]
    assert await audited(world) == []


async def test_a_deleted_run_does_not_run_again_after_a_lost_ack(world: RunningGateway) -> None:
    """Its worker ended it, but the queue did not get the ack and is going to send the job again."""
    job = Job(run_id=RUN_ID, flow_name="f", params={}, tag="cpu", submitted_at=NOW)
    await world.backend.queue.publish(job, Revision(1))
    (queued,) = await world.backend.queue.jobs()
    await world.backend.runs.create(RUN_ID, ended_run(job_seq=queued.sequence))
    assert (await world.client.delete(f"/runs/{RUN_ID}")).status_code == 200
    assert await world.backend.queue.jobs() == []


async def test_a_run_of_an_active_execution_is_not_deleted(world: RunningGateway) -> None:
    executions = Executions(world.client)
    await executions.register("approval", APPROVAL)
    await executions.create(input={"ym": "1"}, execution_id="e1")
    await world.backend.runs.create(RUN_ID, ended_run(execution_id="e1", node_id="book"))
    answer = await world.client.delete(f"/runs/{RUN_ID}")
    assert (answer.status_code, "execution e1" in answer.json()["detail"]) == (409, True)


async def test_tenants_delete_their_own() -> None:
    async with memory_app(http_auth_mode="api_key") as world:
        theirs = await new_key(world.backend.api_keys, "evil", "k")
        await world.backend.runs.create(RUN_ID, ended_run(tenant_id="acme"))
        assert (await world.client.delete(f"/runs/{RUN_ID}", headers=theirs)).status_code == 404
        assert (await world.client.delete(f"/runs/{RUN_ID}")).status_code == 401


async def canceled(executions: Executions, execution_id: str) -> None:
    await executions.create(input={"ym": "1"}, execution_id=execution_id)
    await executions.post(f"/executions/{execution_id}/cancel")
    await executions.until_ended(execution_id)


async def test_an_execution_is_archived_deleted_and_its_id_stays_taken(world: RunningGateway) -> None:
    executions = Executions(world.client)
    await executions.register("approval", APPROVAL)
    await executions.create(input={"ym": "1"}, execution_id="active")
    answer = await world.client.delete("/executions/active")
    assert (answer.status_code, "not ended" in answer.json()["detail"]) == (409, True)
    await canceled(executions, "e1")
    answer = await world.client.delete("/executions/e1")
    assert (answer.status_code, answer.json()["detail"]) == (409, "archive it first")
    await executions.post("/executions/e1/archive")
    async with another_gateway(world) as second:
        path = "/executions?archived=true"
        await until(lambda: listed(second, path), lambda found: len(found) == 1)
        answer = await world.client.delete("/executions/e1")
        assert (answer.status_code, answer.json()) == (200, {"execution_id": "e1", "deleted": True})
        assert await listed(world, path) == []
        await until(lambda: listed(second, path), lambda found: found == [])
        for gateway in (world, second):
            for method, rest in (("GET", ""), ("GET", "/events"), ("DELETE", ""), ("POST", "/archive")):
                answer = await gateway.client.request(method, f"/executions/e1{rest}")
                assert answer.status_code == 404, (method, rest, answer.text)
            taken = await gateway.client.post(
                "/executions", json={"graph_id": "approval", "execution_id": "e1", "input": {"ym": "1"}}
            )
            assert taken.status_code == 409, taken.text
    async with another_gateway(world) as third:  # from what is stored
        await until(lambda: listed(third, "/executions"), lambda found: len(found) == 1)
        assert (await third.client.get("/executions/e1")).status_code == 404
    commits = [logged async for logged, _ in world.backend.execution_log.read("e1")]
    assert [logged.commit.payloads for logged in commits if logged is not None] == [()], (
        "nothing is left of it"
    )
    assert await world.backend.execution_cache.get("e1") is None
    assert await audited(world) == [("execution.delete", "e1")]


async def test_the_record_of_a_worker_that_is_gone_is_deleted(world: RunningGateway) -> None:
    for worker in (
        a_worker(worker_id="alive"),
        a_worker(worker_id="gone", last_seen_at=NOW - 60),
        a_worker(worker_id="stopped", state=WorkerState.STOPPED_GRACEFUL),
    ):
        await world.backend.workers.create(worker.worker_id, worker)
    await until(lambda: listed(world, "/workers?scope=all"), lambda found: len(found) == 3)
    answer = await world.client.delete("/workers/alive")
    assert (answer.status_code, answer.json()["err_id"]) == (409, "ERR-PYOCO-0073")
    for worker_id in ("gone", "stopped"):
        answer = await world.client.delete(f"/workers/{worker_id}")
        assert (answer.status_code, answer.json()) == (200, {"worker_id": worker_id, "deleted": True})
        assert (await world.client.delete(f"/workers/{worker_id}")).status_code == 404
    await until(lambda: listed(world, "/workers?scope=all"), lambda found: len(found) == 1)
    assert await audited(world) == [("worker.delete", "stopped"), ("worker.delete", "gone")]


async def test_executions_expire_some_time_after_their_end(world: RunningGateway) -> None:
    executions = Executions(world.client)
    await executions.register("approval", APPROVAL)
    await executions.create(input={"ym": "1"}, execution_id="active")
    await canceled(executions, "e1")
    level = world.app.state.gateway.levels.operations.retain_executions
    assert await level.turn() == 0, "not over yet"
    for execution_id in world.backend.execution_index.ended_before(NOW * 2, 10):
        await world.app.state.gateway.levels.executions.delete.expire(execution_id)
    assert (await world.client.get("/executions/e1")).status_code == 404
    assert [one["execution_id"] for one in await listed(world, "/executions")] == ["active"]
    assert await audited(world) == [], "nobody deleted it"
