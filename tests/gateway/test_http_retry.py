"""`POST /runs/{run_id}/retry`: an ended run again, as a new run."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace
from pyoco import Flow, task

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.codec import decode_job
from pyoco_server.domain.fleet import FEATURES
from pyoco_server.domain.runs.model import Reusable, RunSnapshot, RunStatus, TaskRecord, TaskState
from pyoco_server.errors import NatsUnavailable
from pyoco_server.http_client import Conflict
from pyoco_server.memory import MemoryGatewayBackend
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.testing import LocalServer
from pyoco_server.usecases.ports.stores import Revision
from support.builders import NOW, a_snapshot, a_worker
from support.gateway import RunningGateway, another_gateway, memory_app, new_key, on_backend, own_picture
from support.waiting import until

YAML = 'flow: {graph: "d"}\ntasks: {d: {callable: "os:getpid"}}\n'


class Shop:
    """A flow that fails in its second task until it is repaired."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.is_repaired = False

    def flow(self) -> Flow:
        @task
        def load(n: int) -> dict[str, int]:
            self.ran.append("load")
            return {"rows": n}

        @task
        def send(load: dict[str, int]) -> int:
            self.ran.append("send")
            if not self.is_repaired:
                raise ValueError("no")
            return load["rows"] * 2

        return Flow(name="shop") >> load >> send


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def pyoco_flows(shop: Shop) -> list[Flow]:
    return [shop.flow()]


def ended(server: LocalServer, run_id: str) -> dict[str, Any]:
    server.settle()
    run: Any = server.client.get_run(run_id, include=["records"])
    assert run["status"] in ("COMPLETED", "FAILED"), run
    return dict(run)


def test_a_failed_run_is_run_again_with_the_same_input(pyoco_server: LocalServer, shop: Shop) -> None:
    client = pyoco_server.client
    first = client.submit_run("shop", {"n": 3}, tags=["eu"], retry={"max_attempts": 1}, timeout_sec=9)
    old = ended(pyoco_server, first["run_id"])
    assert (old["status"], old["retried_as"], old["retried_from"]) == ("FAILED", None, None)
    shop.is_repaired = True
    answer = client.retry_run(old["run_id"])
    new = ended(pyoco_server, answer["run_id"])
    assert (new["status"], new["result"], shop.ran) == ("COMPLETED", {"send": 6}, ["load", "send"] * 2)
    assert new["retried_from"] == old["run_id"]
    for name in ("params", "tag", "tags", "timeout_sec", "retry", "flow_name", "tenant_id"):
        assert new[name] == old[name], name
    again = client.retry_run(old["run_id"])["run_id"]
    assert client.get_run(old["run_id"])["retried_as"] == again, "the newest"
    changed = ended(pyoco_server, client.retry_run(new["run_id"], params={"n": 5})["run_id"])
    assert (changed["params"], changed["result"]) == ({"n": 5}, {"send": 10})


def test_a_retry_from_where_it_failed_keeps_what_succeeded(pyoco_server: LocalServer, shop: Shop) -> None:
    client = pyoco_server.client
    old = ended(pyoco_server, client.submit_run("shop", {"n": 3})["run_id"])
    shop.is_repaired, shop.ran = True, []
    new = ended(pyoco_server, client.retry_run(old["run_id"], from_="failed")["run_id"])
    assert (new["result"], shop.ran, new["kept_tasks"]) == ({"send": 6}, ["send"], ["load"])
    assert new["task_records"]["load"] == old["task_records"]["load"]
    with pytest.raises(Conflict, match="all tasks of the run succeeded"):
        client.retry_run(new["run_id"], from_="failed")


def test_params_of_tasks_that_are_kept_cannot_be_changed(pyoco_server: LocalServer) -> None:
    client = pyoco_server.client
    old = ended(pyoco_server, client.submit_run("shop", {"n": 3})["run_id"])
    with pytest.raises(Exception, match="params: the tasks that succeeded used the params of the run"):
        client.retry_run(old["run_id"], from_="failed", params={"n": 4})


def test_a_flow_yaml_is_kept_for_its_retries(pyoco_server: LocalServer) -> None:
    client = pyoco_server.client
    old = ended(pyoco_server, client.submit_run_yaml(YAML, flow_name="y")["run_id"])
    new = ended(pyoco_server, client.retry_run(old["run_id"])["run_id"])
    assert (new["status"], new["workflow_yaml_sha256"]) == ("COMPLETED", old["workflow_yaml_sha256"])
    with pytest.raises(Exception, match=r"the params of the run are in its flow\.yaml"):
        client.retry_run(old["run_id"], params={"x": 1})


# On the parts


@pytest.fixture
async def world() -> AsyncIterator[RunningGateway]:
    async with memory_app() as opened:
        yield opened


async def placed(backend: MemoryGatewayBackend, **changes: Any) -> str:
    run = a_snapshot(**{"status": RunStatus.FAILED, "tag": "default", **changes})
    await backend.runs.create(run.run_id, run)
    return run.run_id


async def retry(world: RunningGateway, run_id: str, **body: Any) -> httpx2.Response:
    return await world.client.post(f"/runs/{run_id}/retry", json=body)


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "CANCELLING"])
async def test_a_run_that_has_not_ended_is_not_retried(world: RunningGateway, status: str) -> None:
    answer = await retry(world, await placed(world.backend, status=RunStatus(status)))
    assert (answer.status_code, answer.json()["err_id"]) == (409, "ERR-PYOCO-0051")
    assert answer.json()["detail"] == f"the run is {status}; it can be retried when it has ended"


async def test_a_run_that_does_not_exist_is_not_found(world: RunningGateway) -> None:
    for run_id in ("nonsense", "0190aaaa-bbbb-7ccc-8ddd-eeeeffff9999"):
        assert (await retry(world, run_id)).status_code == 404


@pytest.mark.parametrize("body", [{"from": "middle"}, {"form": "failed"}, {"params": 1}])
async def test_a_body_that_cannot_be_used_is_refused(world: RunningGateway, body: dict[str, Any]) -> None:
    run_id = await placed(world.backend)
    answer = await world.client.post(f"/runs/{run_id}/retry", json=body)
    assert answer.status_code == 422, answer.text
    assert await world.backend.queue.count() == 0


async def test_no_body_means_from_the_start(world: RunningGateway) -> None:
    answer = await world.client.post(f"/runs/{await placed(world.backend)}/retry")
    assert (answer.status_code, answer.json()["status"]) == (200, "PENDING")


async def test_a_flow_yaml_that_is_not_stored_is_asked_for(world: RunningGateway) -> None:
    answer = await retry(world, await placed(world.backend, workflow_yaml_sha256="00"))
    assert answer.status_code == 409
    assert answer.json()["detail"] == "the flow.yaml of the run is not stored any more; submit the file again"


async def test_a_repeat_with_a_key_is_the_same_run(world: RunningGateway) -> None:
    run_id = await placed(world.backend)
    first, again = [
        await world.client.post(f"/runs/{run_id}/retry", headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert first.json()["run_id"] == again.json()["run_id"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert await world.backend.queue.count() == 1


async def test_another_tenants_run_is_not_found() -> None:
    async with memory_app(http_auth_mode="api_key") as world:
        own = await new_key(world.backend.api_keys, "acme", "k1")
        other = await new_key(world.backend.api_keys, "other", "k2")
        path = f"/runs/{await placed(world.backend, tenant_id='acme')}/retry"
        assert (await world.client.post(path, headers=other)).status_code == 404
        answer = await world.client.post(path, headers=own)
        assert answer.status_code == 200
        shown = await world.client.get(f"/runs/{answer.json()['run_id']}", headers=own)
        assert (shown.json()["tenant_id"], shown.json()["api_key_id"]) == ("acme", "k1")


PARTLY_DONE: dict[str, Any] = {
    "tasks": {"a": TaskState.SUCCEEDED, "b": TaskState.FAILED},
    "task_records": {
        "a": TaskRecord(state=TaskState.SUCCEEDED, output=1, reusable=Reusable.YES),
        "b": TaskRecord(state=TaskState.FAILED, error="no"),
    },
    "task_dependencies": {"a": (), "b": ("a",)},
}
"""A run whose first task succeeded."""
FAR_AHEAD = 2e9


async def test_workers_that_are_too_old_for_it_are_named(world: RunningGateway) -> None:
    run_id = await placed(world.backend, **PARTLY_DONE)
    workers = world.backend.workers
    await workers.create("old", a_worker(worker_id="old", last_seen_at=FAR_AHEAD))
    await workers.create("gpu", a_worker(worker_id="gpu", tags=("gpu",), last_seen_at=FAR_AHEAD))

    async def refused() -> httpx2.Response:
        return await retry(world, run_id, **{"from": "failed"})

    answer = await until(refused, lambda found: found.status_code == 409)
    assert answer.json()["detail"].startswith(
        "workers that are too old to keep outputs have the tag 'default': old; update them"
    )
    assert (await retry(world, run_id)).status_code == 200, "from the start they can"
    stored = await workers.get("old")
    assert stored is not None
    await workers.update("old", replace(stored.value, features=FEATURES), stored.revision)
    await until(refused, lambda found: found.status_code == 200)


async def test_the_job_has_the_kept_outputs(world: RunningGateway) -> None:
    run_id = await placed(world.backend, **PARTLY_DONE)
    answer = await retry(world, run_id, **{"from": "failed"})
    assert answer.status_code == 200, answer.text
    source = await world.backend.sources.open(["default"])
    delivery = await source.next(1.0)
    assert delivery is not None
    job = decode_job(delivery.payload)
    assert (job.run_id, job.retried_from) == (answer.json()["run_id"], run_id)
    assert job.kept is not None
    assert {name: record.output for name, record in job.kept.records.items()} == {"a": 1}
    shown = (await world.client.get(f"/runs/{job.run_id}")).json()
    assert (shown["tasks"], shown["kept_tasks"]) == ({"a": "SUCCEEDED"}, ["a"])


class Unlinkable(MemoryStore[RunSnapshot]):
    """The gateway dies between the new run and the link."""

    def __init__(self, store: MemoryStore[RunSnapshot]) -> None:
        self.__dict__ = store.__dict__

    async def update(self, key: str, value: RunSnapshot, expected: Revision) -> Revision:
        if value.retried_as is not None:
            raise NatsUnavailable
        return await super().update(key, value, expected)


async def test_a_link_that_a_gateway_could_not_write_is_written_by_another(world: RunningGateway) -> None:
    run_id = await placed(world.backend)
    async with own_picture(world.backend) as picture:
        dying = dataclasses.replace(picture, runs=Unlinkable(world.backend.runs))
        async with on_backend(dying, NatsBackendConfig()) as other:
            answer = await other.client.post(f"/runs/{run_id}/retry")
    assert answer.status_code == 200, answer.text

    async def linked() -> Any:
        return (await world.client.get(f"/runs/{run_id}")).json()["retried_as"]

    assert await until(linked) == answer.json()["run_id"]


async def test_a_link_is_written_even_if_only_the_end_of_the_retry_is_seen(world: RunningGateway) -> None:
    run_id = await placed(world.backend)
    new = "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0002"
    over = a_snapshot(RunStatus.COMPLETED, run_id=new, retried_from=run_id)
    await world.backend.runs.create(new, over)

    async def linked() -> Any:
        return (await world.client.get(f"/runs/{run_id}")).json()["retried_as"]

    assert await until(linked) == new


async def test_two_retries_at_once_are_two_runs_and_the_newest_is_linked(world: RunningGateway) -> None:
    run_id = await placed(world.backend)
    async with another_gateway(world) as other:
        answers = await asyncio.gather(*(retry(one, run_id) for one in (world, other) * 5))
        ids = {answer.json()["run_id"] for answer in answers}
    assert len(ids) == 10
    shown = (await world.client.get(f"/runs/{run_id}")).json()
    assert (shown["retried_as"], shown["status"]) == (max(ids), "FAILED")


async def test_a_link_does_not_count_as_another_end(world: RunningGateway) -> None:
    run = a_snapshot(RunStatus.RUNNING, tag="default", start_time=NOW)
    revision = await world.backend.runs.create(run.run_id, run)
    over = replace(run, status=RunStatus.FAILED, end_time=NOW + 1)
    await world.backend.runs.update(run.run_id, over, revision)
    assert (await retry(world, run.run_id)).status_code == 200

    async def counted() -> float:
        text = (await world.client.get("/metrics")).text
        found = [line for line in text.splitlines() if line.startswith("pyoco_run_duration_seconds_count")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    assert await until(counted, lambda count: count >= 1) == 1
