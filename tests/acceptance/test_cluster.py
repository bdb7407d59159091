"""Gateway and worker on three NATS nodes with the shipped configuration; one of them dies."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyoco_server import PyocoNatsClient
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.wiring import ensure_resources, open_backend
from support.builders import NOW, RUN_ID, a_job, a_snapshot
from support.cluster import NODES, PASSWORD, Cluster, running_cluster
from support.installation import FLOWS, TERMINAL, environment
from support.nats_server import free_port, streams_of
from support.programs import Program, Programs
from support.waiting import until

BEFORE, DURING = 10, 10


@pytest.fixture
def cluster(programs: Programs, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(programs, tmp_path) as started:
        yield started


class Installation:
    def __init__(self, http: httpx2.AsyncClient, marks: Path) -> None:
        self._http = http
        self.marks = marks
        marks.mkdir()

    async def is_ready(self) -> bool:
        try:
            return (await self._http.get("/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    async def submit(self, key: str, flow: str) -> str:
        """As a client does that wants the run once: the same key until it is accepted."""

        async def accepted() -> Any:
            body = {"flow_name": flow, "params": {"marks": str(self.marks)}}
            answer = await self._http.post("/runs", json=body, headers={"Idempotency-Key": key})
            assert answer.status_code in (200, 503), answer.text
            return answer.json().get("run_id")

        run_id: str = await until(accepted)
        return run_id

    async def run(self, run_id: str) -> dict[str, Any]:
        answer = await self._http.get(f"/runs/{run_id}")
        found: dict[str, Any] = answer.json()
        return found

    async def ended(self, run_id: str) -> dict[str, Any]:
        return await until(lambda: self.run(run_id), lambda run: run.get("status") in TERMINAL)

    async def reached(self, mark: str) -> bool:
        return (self.marks / mark).exists()

    async def listed(self) -> dict[str, str]:
        answer = await self._http.get("/runs", params={"limit": 200})
        return {run["run_id"]: run["status"] for run in answer.json()} if answer.status_code == 200 else {}


async def answered(program: Program, installation: Installation) -> None:
    await until(installation.is_ready)
    assert PASSWORD not in program.output


@pytest.mark.slow
async def test_a_node_dies_and_nothing_is_lost(cluster: Cluster, programs: Programs, tmp_path: Path) -> None:
    await until(_all_healthy(cluster))
    port = free_port()
    environ = {"PYOCO_NATS_URL": cluster.url, "PYOCO_JETSTREAM_REPLICAS": "3"}
    worker = ("pyoco-worker", "--flow-resolver", FLOWS, "--worker-id", "w1", "--concurrency", "2")
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(programs.started("pyoco-server", "up", "--port", str(port), **environ))
        stack.enter_context(programs.started(*worker, **environ))
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}"))
        installation = Installation(http, tmp_path / "marks")
        await answered(server, installation)

        found = await until(_streams(cluster), lambda streams: len(streams) >= 10)
        assert {stream["config"]["num_replicas"] for stream in found.values()} == {3}

        held = await installation.submit("held", "steps")
        await until(lambda: installation.reached("in-first"))
        before = [await installation.submit(f"before-{n}", "tiny") for n in range(BEFORE)]
        victim = found["KV_pyoco_runs"]["cluster"]["leader"]
        cluster.kill(victim)
        during = await asyncio.gather(
            *(installation.submit(f"during-{n}", "tiny") for n in range(DURING))
        )  # while a new leader is elected
        (installation.marks / "go").touch()

        submitted = [held, *before, *during]
        assert len(set(submitted)) == 1 + BEFORE + DURING
        ends = [await installation.ended(run_id) for run_id in submitted]
        assert {end["status"] for end in ends} == {"COMPLETED"}
        assert ends[0]["attempt"] == 1  # the run that was in a task when the node died was not disturbed
        expected = dict.fromkeys(submitted, "COMPLETED")
        assert await until(installation.listed, lambda runs: runs == expected) == expected

        cluster.start(victim)
        await until(_all_healthy(cluster))
        last = await installation.submit("after", "tiny")
        assert (await installation.ended(last))["status"] == "COMPLETED"


@pytest.mark.slow
async def test_a_backup_of_one_node_is_restored_into_a_cluster_with_replicas(
    cluster: Cluster, programs: Programs, config: NatsBackendConfig
) -> None:
    client = await PyocoNatsClient.connect(config)
    run_id = await client.submit_run("steps", {"n": 1})
    before = await client.get_run(run_id)
    await client.close()
    one = environment(config)
    three = {**one, "PYOCO_NATS_URL": cluster.url, "PYOCO_JETSTREAM_REPLICAS": "3"}
    await until(_all_healthy(cluster))
    for command, environ in (("backup", one), ("restore", three)):
        done = await asyncio.to_thread(
            programs.run, "pyoco-server-admin", command, "--directory", "saved", **environ
        )
        assert done.returncode == 0, done.stderr
    found = await until(_streams(cluster), lambda streams: len(streams) == len(streams_of(config)))
    assert {stream["config"]["num_replicas"] for stream in found.values()} == {3}
    client = await PyocoNatsClient.connect(NatsBackendConfig.from_env(three))
    assert await client.get_run(run_id) == before
    await client.close()


async def test_f6_a_write_that_is_under_way_is_not_taken_for_one_that_is_stored(
    cluster: Cluster, config: NatsBackendConfig
) -> None:
    """F6: a leader that is cut off refuses what comes behind it, and may never store what it has."""
    await until(_all_healthy(cluster))
    three = dataclasses.replace(config, nats_url=cluster.url, jetstream_replicas=3)
    await ensure_resources(three)
    bucket = f"KV_{config.runs_kv_bucket}"
    found = await until(_streams(cluster), lambda streams: bucket in streams)
    leader = found[bucket]["cluster"]["leader"]
    followers = [node for node in NODES if node != leader]
    # Not with the patience of other tests: the leader must not have noticed yet.
    cut_off = dataclasses.replace(three, nats_url=cluster.url_of(leader), jetstream_timeout_sec=2.0)
    async with open_backend(cut_off, "test") as backend:
        submit = SubmitRun(backend.runs, backend.queue, lambda: NOW, lambda: RUN_ID)
        for node in followers:
            cluster.freeze(node)
        try:
            with pytest.raises(NatsUnavailable):  # it is under way, and nobody follows
                await backend.runs.create(RUN_ID, a_snapshot())
            assert await backend.runs.get(RUN_ID) is None
            with pytest.raises(NatsUnavailable):
                await backend.runs.create(RUN_ID, a_snapshot())
            with pytest.raises(NatsUnavailable):
                await submit.place_derived(a_job(run_id=RUN_ID))
        finally:
            for node in followers:
                cluster.thaw(node)


def _all_healthy(cluster: Cluster) -> Any:
    async def look() -> bool:
        return all([await asyncio.to_thread(cluster.is_healthy, node) for node in NODES])

    return look


def _streams(cluster: Cluster) -> Any:
    async def look() -> dict[str, Any]:
        return await asyncio.to_thread(cluster.streams)

    return look
