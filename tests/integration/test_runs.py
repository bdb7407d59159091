"""The way of a run through the real parts: HTTP, JetStream, worker, engine, and back."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx2
import msgspec
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.runs.changes import Claim, RequestCancel
from pyoco_server.domain.runs.model import Owner, RunStatus
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.stores import Versioned
from pyoco_server.wiring import new_run_id, open_backend
from support import flows
from support.builders import NOW, a_job, a_snapshot
from support.captured_logs import capture_logs
from support.gateway import gateway
from support.nats_server import dead_letters, jobs_waiting, put_message, raw_nats, stored_run
from support.waiting import PATIENCE_SEC, until
from support.workers import entered, worker

FLOWS = {"chain": flows.chain, "failing": flows.failing}


async def submit(client: httpx2.AsyncClient, flow_name: str, **body: Any) -> str:
    answer = await client.post("/runs", json={"flow_name": flow_name, **body})
    assert answer.status_code == 200, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


async def test_a_submitted_run_is_run_and_its_result_is_read(config: NatsBackendConfig) -> None:
    """REQ-0002, REQ-0004, REQ-0008, REQ-0009"""
    async with gateway(config) as client, worker(config, FLOWS) as instance:
        run_id = await submit(client, "chain", params={"n": 4})
        assert await instance.run_once(PATIENCE_SEC) == run_id
        run = (await client.get(f"/runs/{run_id}?include=records")).json()
    assert (run["status"], run["result"], run["error"]) == ("COMPLETED", {"total": 30}, None)
    assert run["tasks"] == dict.fromkeys(["numbers", "squares", "total"], "SUCCEEDED")
    assert run["task_records"]["squares"]["output"] == [1, 4, 9, 16]
    assert (run["worker_id"], run["attempt"]) == ("worker-a", 1)
    assert run["submitted_at"] <= run["start_time"] <= run["end_time"] <= run["updated_at"]
    assert await jobs_waiting(config) == 0
    assert await dead_letters(config) == []


async def test_many_runs_follow_each_other_without_a_pause(config: NatsBackendConfig) -> None:
    async with gateway(config) as client, worker(config, FLOWS) as instance:
        wanted = [await submit(client, "chain") for _ in range(20)]
        async with asyncio.timeout(PATIENCE_SEC):
            assert [await instance.run_once(PATIENCE_SEC) for _ in wanted] == wanted


async def test_a_flow_that_no_worker_knows_fails_its_run(config: NatsBackendConfig) -> None:
    """REQ-0012: FAILED, acknowledged, and a dead letter."""
    async with gateway(config) as client, worker(config, FLOWS) as instance:
        run_id = await submit(client, "unknown", params={"password": "s3cret"})
        await instance.run_once(PATIENCE_SEC)
        run = (await client.get(f"/runs/{run_id}")).json()
    assert (run["status"], run["error"]) == ("FAILED", "flow not found: unknown")
    assert await jobs_waiting(config) == 0
    ((subject, letter),) = await dead_letters(config)
    assert subject == f"{config.dlq_subject_prefix}.default"
    assert (letter["reason"], letter["run_id"], letter["flow_name"]) == ("flow_not_found", run_id, "unknown")
    assert (letter["worker_id"], letter["num_delivered"], letter["tag"]) == ("worker-a", 1, "default")


async def test_a_flow_that_raises_fails_its_run_and_its_params_stay_out_of_the_dead_letter(
    config: NatsBackendConfig,
) -> None:
    """REQ-0012, REQ-0013"""
    async with gateway(config) as client, worker(config, FLOWS) as instance:
        run_id = await submit(client, "failing", params={"password": "s3cret"})
        await instance.run_once(PATIENCE_SEC)
        run = (await client.get(f"/runs/{run_id}?include=records")).json()
    assert (run["status"], run["error"]) == ("FAILED", "ValueError: broken on purpose")
    assert run["tasks"] == {"fine": "SUCCEEDED", "breaks": "FAILED", "never": "PENDING"}
    assert "raise ValueError" in run["task_records"]["breaks"]["traceback"]
    assert await jobs_waiting(config) == 0
    ((_, letter),) = await dead_letters(config)
    assert (letter["reason"], letter["error"]) == ("execution_error", "ValueError: broken on purpose")
    assert "s3cret" not in msgspec.json.encode(letter).decode()


async def test_dead_letters_of_failed_flows_can_be_switched_off(config: NatsBackendConfig) -> None:
    quiet = replace(config, dlq_publish_execution_error=False)
    async with gateway(quiet) as client, worker(quiet, FLOWS) as instance:
        await submit(client, "failing")
        await submit(client, "unknown")
        await instance.run_once(PATIENCE_SEC)
        await instance.run_once(PATIENCE_SEC)
    assert [letter["reason"] for _, letter in await dead_letters(config)] == ["flow_not_found"]


async def test_a_message_that_is_no_job_is_removed_and_kept_as_a_dead_letter(
    config: NatsBackendConfig,
) -> None:
    """REQ-0012: TERM, and the payload for whoever looks for the cause."""
    async with worker(config, FLOWS) as instance:
        await put_message(config, b'{"flow_name": 3}')
        assert await instance.run_once(PATIENCE_SEC) is None
        assert await jobs_waiting(config) == 0
    ((_, letter),) = await dead_letters(config)
    assert (letter["reason"], letter["payload"]) == ("invalid_job", '{"flow_name": 3}')
    assert letter["subject"] == f"{config.work_subject_prefix}.default"


async def test_an_invalid_job_is_logged_with_its_run_the_worker_and_the_reason(
    config: NatsBackendConfig,
) -> None:
    """D31"""
    run_id = new_run_id()
    async with worker(config, FLOWS, "w1") as instance:
        await put_message(config, msgspec.json.encode({"run_id": run_id, "flow_name": 3}))
        with capture_logs() as logged:
            await instance.run_once(PATIENCE_SEC)
    (line,) = [line for line in logged if line.get("action") == "job.invalid"]
    assert (line["run_id"], line["worker_id"], line["reason"]) == (run_id, "w1", "invalid_job")


@pytest.mark.parametrize("depth", [1, 50_000])
async def test_an_unreadable_job_that_names_its_run_fails_it(config: NatsBackendConfig, depth: int) -> None:
    """Nested so deeply that a reader runs out of stack, the worker survives it and says what is wrong."""
    job = a_job()
    async with open_backend(config, "test") as backend, worker(config, FLOWS) as instance:
        await backend.runs.create(job.run_id, a_snapshot(run_id=job.run_id))
        payload = f'{{"run_id": "{job.run_id}", "params": {{"x": {"[" * depth}{"]" * depth}}}}}'.encode()
        await put_message(config, payload)
        await instance.run_once(PATIENCE_SEC)
    ((_, letter),) = await dead_letters(config)
    assert letter["reason"] == "invalid_job"
    assert await jobs_waiting(config) == 0
    if depth == 1:
        run = await stored_run(config, job.run_id)
        assert run is not None
        assert run["status"] == "FAILED"
        assert run["error"].startswith("invalid job: ")


async def test_a_job_without_headers_and_without_a_snapshot_runs(config: NatsBackendConfig) -> None:
    """A producer of another make put it there."""
    run_id = new_run_id()
    job = {"run_id": run_id, "flow_name": "chain", "tag": "default", "submitted_at": NOW}
    async with worker(config, FLOWS) as instance:
        await put_message(config, msgspec.json.encode(job))
        assert await instance.run_once(PATIENCE_SEC) == run_id
    run = await stored_run(config, run_id)
    assert run is not None
    assert (run["status"], run["result"], run["submitted_at"]) == ("COMPLETED", {"total": 14}, NOW)


async def test_a_job_that_was_withdrawn_by_its_sender_is_dropped(config: NatsBackendConfig) -> None:
    """The sender heard nothing of its publish and took the snapshot back; the job had arrived after all."""
    gate = flows.Gate()
    async with open_backend(config, "test") as backend, worker(config, {"sample": gate.flow}) as instance:
        job = a_job()
        revision = await backend.runs.create(job.run_id, a_snapshot(run_id=job.run_id))
        await backend.queue.publish(job, revision)
        await backend.runs.remove(job.run_id, revision)
        assert await instance.run_once(PATIENCE_SEC) == job.run_id
        assert await backend.runs.get(job.run_id) is None
    assert not gate.entered.is_set()
    assert await jobs_waiting(config) == 0
    assert await dead_letters(config) == []


async def test_a_run_that_has_ended_is_not_run_again(config: NatsBackendConfig) -> None:
    gate = flows.Gate()
    async with open_backend(config, "test") as backend, worker(config, {"sample": gate.flow}) as instance:
        job = a_job()
        revision = await backend.runs.create(job.run_id, a_snapshot(run_id=job.run_id))
        await backend.runs.update(job.run_id, a_snapshot(RunStatus.CANCELLED, run_id=job.run_id), revision)
        await backend.queue.publish(job, revision)
        await instance.run_once(PATIENCE_SEC)
    assert not gate.entered.is_set()
    assert await jobs_waiting(config) == 0


async def test_a_redelivered_job_whose_first_owner_is_gone_is_taken_over(config: NatsBackendConfig) -> None:
    """REQ-0009: at least once."""
    impatient = replace(config, consumer_ack_wait_sec=1.0, ack_progress_interval_sec=0.5)
    async with gateway(impatient) as client, open_backend(impatient, "test") as backend:
        run_id = await submit(client, "chain")
        crashed = await backend.sources.open(["default"])
        delivery = await crashed.next(PATIENCE_SEC)
        assert delivery is not None
        gone = Owner("crashed", "instance-0", delivery.num_delivered)
        await change_run(backend.runs, run_id, Claim(gone), lambda: NOW)
        async with worker(impatient, FLOWS) as instance:
            assert await instance.run_once(PATIENCE_SEC) == run_id
        run = (await client.get(f"/runs/{run_id}")).json()
    assert (run["status"], run["worker_id"], run["attempt"]) == ("COMPLETED", "worker-a", 2)
    assert await jobs_waiting(config) == 0


async def test_an_owner_that_was_frozen_is_fenced(config: NatsBackendConfig) -> None:
    """Another delivery took the run over while this worker stood still: it stops and writes nothing more."""
    gate = flows.Gate()
    async with gateway(config) as client, open_backend(config, "test") as backend:
        run_id = await submit(client, "gated")
        async with worker(config, {"gated": gate.flow}, "frozen") as instance:
            handling = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
            await entered(gate.entered)
            later = Owner("another", "instance-9", 2)
            await change_run(backend.runs, run_id, Claim(later), lambda: NOW)
            gate.open()
            assert await handling == run_id
        stored = await backend.runs.get(run_id)
    assert stored is not None
    assert (stored.value.status, stored.value.owner) == (RunStatus.RUNNING, later)
    assert stored.value.result is None
    assert await jobs_waiting(config) == 1, "the job belongs to its new owner"


async def test_a_cancel_wins_over_a_flow_that_succeeds(config: NatsBackendConfig) -> None:
    """REQ-0024"""
    gate = flows.Gate()
    async with gateway(config) as client, open_backend(config, "test") as backend:
        run_id = await submit(client, "gated")
        async with worker(config, {"gated": gate.flow}) as instance:
            handling = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
            await entered(gate.entered)
            wanted = RequestCancel(requested_by="anonymous", reason="no more needed")
            await change_run(backend.runs, run_id, wanted, lambda: NOW)
            gate.open()
            await handling
        run = (await client.get(f"/runs/{run_id}")).json()
    assert (run["status"], run["cancel_reason"], run["result"]) == ("CANCELLED", "no more needed", None)
    assert await jobs_waiting(config) == 0


async def test_a_cancel_reaches_the_flow(config: NatsBackendConfig) -> None:
    """REQ-0024: the worker learns of it by its own heartbeat, and no further task starts."""
    gate = flows.Gate()
    async with gateway(config) as client, open_backend(config, "test") as backend:
        run_id = await submit(client, "gated")
        async with worker(config, {"gated": gate.flow}) as instance:
            handling = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
            await entered(gate.entered)
            asked = await change_run(
                backend.runs, run_id, RequestCancel(requested_by="anonymous"), lambda: NOW
            )
            assert isinstance(asked, Versioned)
            # Its second write after the cancel: the first has told it.
            await until(
                lambda: backend.runs.get(run_id),
                lambda stored: stored is not None and stored.revision >= asked.revision + 2,
            )
            gate.open()
            await handling
        run = (await client.get(f"/runs/{run_id}")).json()
    assert (run["status"], run["tasks"]) == ("CANCELLED", {"wait": "SUCCEEDED", "after": "CANCELLED"})


async def test_a_run_that_was_cancelled_before_it_was_taken_never_starts(config: NatsBackendConfig) -> None:
    """REQ-0023, REQ-0024"""
    gate = flows.Gate()
    async with gateway(config) as client, open_backend(config, "test") as backend:
        run_id = await submit(client, "gated")
        await change_run(backend.runs, run_id, RequestCancel(requested_by="anonymous"), lambda: NOW)
        async with worker(config, {"gated": gate.flow}) as instance:
            await instance.run_once(PATIENCE_SEC)
        run = (await client.get(f"/runs/{run_id}")).json()
    assert run["status"] == "CANCELLED"
    assert not gate.entered.is_set()
    assert await jobs_waiting(config) == 0


async def test_a_long_run_is_delivered_once(config: NatsBackendConfig) -> None:
    """REQ-0010: signs of progress keep the job from coming back. PYOCO_ACK_PROGRESS_INTERVAL_SEC"""
    short = replace(config, consumer_ack_wait_sec=2.0, ack_progress_interval_sec=0.1)
    gate = flows.Gate()
    async with gateway(short) as client, worker(short, {"gated": gate.flow}) as instance:
        run_id = await submit(client, "gated")
        async with worker(short, {"gated": gate.flow}, "worker-b") as other:
            handling = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
            await entered(gate.entered)
            assert await other.run_once(4.5) is None, "more than twice the AckWait"
            gate.open()
            await handling
        run = (await client.get(f"/runs/{run_id}")).json()
    assert (run["status"], run["attempt"], gate.entries) == ("COMPLETED", 1, 1)


async def test_a_running_run_shows_its_tasks_its_heartbeat_and_its_worker(config: NatsBackendConfig) -> None:
    """REQ-0005, REQ-0008"""
    gate = flows.Gate()
    async with gateway(config) as client, worker(config, {"gated": gate.flow}) as instance:
        run_id = await submit(client, "gated")

        async def look() -> dict[str, Any]:
            run: dict[str, Any] = (await client.get(f"/runs/{run_id}")).json()
            return run

        handling = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
        first = await until(look, lambda run: run["tasks"] == {"wait": "RUNNING", "after": "PENDING"})
        assert (first["status"], first["worker_alive"]) == ("RUNNING", True)
        later = await until(look, lambda run: run["heartbeat_at"] > first["heartbeat_at"])
        assert later["tasks"] == {"wait": "RUNNING", "after": "PENDING"}
        gate.open()
        await handling


async def test_two_workers_share_the_work(config: NatsBackendConfig) -> None:
    """Both must hold a run at the same moment, or neither gets on."""
    gates = {"one": flows.Gate(), "two": flows.Gate()}
    resolver = {name: gate.flow for name, gate in gates.items()}
    async with (
        gateway(config) as client,
        worker(config, resolver, "worker-a") as first,
        worker(config, resolver, "worker-b") as second,
    ):
        ids = [await submit(client, name) for name in gates]
        handling = asyncio.gather(first.run_once(PATIENCE_SEC), second.run_once(PATIENCE_SEC))
        for gate in gates.values():
            await entered(gate.entered)
        for gate in gates.values():
            gate.open()
        assert sorted(map(str, await handling)) == sorted(ids)
        runs = [(await client.get(f"/runs/{run_id}")).json() for run_id in ids]
    assert {run["worker_id"] for run in runs} == {"worker-a", "worker-b"}
    assert {run["status"] for run in runs} == {"COMPLETED"}


async def test_a_worker_takes_only_jobs_of_its_tags(config: NatsBackendConfig) -> None:
    async with gateway(config) as client, worker(config, FLOWS, tags=("cpu", "gpu")) as instance:
        await submit(client, "chain", tag="other")
        wanted = {await submit(client, "chain", tag=tag) for tag in ("gpu", "cpu")}
        assert {await instance.run_once(PATIENCE_SEC) for _ in wanted} == wanted
        assert await instance.run_once(0.3) is None
    assert await jobs_waiting(config) == 1


async def test_the_tags_of_a_worker_take_turns(config: NatsBackendConfig) -> None:
    async with gateway(config) as client, open_backend(config, "test") as backend:
        for tag in ("cpu", "cpu", "cpu", "gpu", "gpu", "gpu"):
            await submit(client, "chain", tag=tag)
        source = await backend.sources.open(["cpu", "gpu"])
        received = [await source.next(PATIENCE_SEC) for _ in range(6)]
        await source.close()
    tags = [delivery.job().tag for delivery in received if delivery is not None]
    assert tags == ["cpu", "gpu"] * 3


async def test_a_job_that_arrives_at_a_busy_worker_goes_on_to_another(config: NatsBackendConfig) -> None:
    """It asked for both tags at once; what it cannot start soon it gives back."""
    brief = replace(config, consumer_ack_wait_sec=1.5, ack_progress_interval_sec=0.2)
    gate = flows.Gate()
    async with gateway(brief) as client:
        async with worker(brief, {"gated": gate.flow}, "busy", tags=("cpu", "gpu")) as busy:
            handling = asyncio.ensure_future(busy.run_once(PATIENCE_SEC))
            await submit(client, "gated", tag="cpu")
            await entered(gate.entered)
            run_id = await submit(client, "chain", tag="gpu")
            async with worker(brief, FLOWS, "free", tags=("gpu",)) as free:
                assert await free.run_once(PATIENCE_SEC) == run_id
            assert not handling.done()
            gate.open()
            await handling
        run = (await client.get(f"/runs/{run_id}")).json()
    assert (run["status"], run["worker_id"]) == ("COMPLETED", "free")


async def test_a_result_larger_than_a_message_may_be_does_not_stop_the_worker(
    config: NatsBackendConfig,
) -> None:
    """The limit of our settings is above the server's: the smaller one holds. REQ-0011"""
    generous = replace(config, max_run_snapshot_bytes=8_000_000)
    big = {"big": lambda: flows.passing_on("x" * 2_000_000), **FLOWS}
    async with gateway(generous) as client, worker(generous, big) as instance:
        run_id = await submit(client, "big")
        await instance.run_once(PATIENCE_SEC)
        run = (await client.get(f"/runs/{run_id}")).json()
        assert (run["status"], run["tasks"]) == (
            "COMPLETED",
            dict.fromkeys(["give", "take", "done"], "SUCCEEDED"),
        )
        assert (run["task_records_truncated"], run["result"]) == (True, {"done": "done"})
        await submit(client, "chain")
        assert await instance.run_once(PATIENCE_SEC) is not None


async def test_a_snapshot_that_somebody_damaged_does_not_stop_the_worker(config: NatsBackendConfig) -> None:
    job = a_job(flow_name="chain")
    async with gateway(config) as client, worker(config, FLOWS) as instance:
        async with raw_nats(config.nats_url) as raw:
            bucket = await raw.jetstream().key_value(config.runs_kv_bucket)
            await bucket.put(job.run_id, b"\xff damaged")
        await put_message(config, codec.encode(job))
        await instance.run_once(PATIENCE_SEC)
        run_id = await submit(client, "chain")
        assert await instance.run_once(PATIENCE_SEC) == run_id
        answer = await client.get(f"/runs/{job.run_id}")
    assert (answer.status_code, answer.json()["err_id"]) == (503, "ERR-PYOCO-0003")


async def test_a_run_whose_worker_has_an_impossible_name_can_be_read(config: NatsBackendConfig) -> None:
    """A worker of another make; its name never becomes part of a subject."""
    snapshot = a_snapshot(RunStatus.RUNNING, run_id=new_run_id(), worker_id="my worker > *")
    async with gateway(config) as client, open_backend(config, "test") as backend:
        await backend.runs.create(snapshot.run_id, snapshot)
        answer = await client.get(f"/runs/{snapshot.run_id}")
    assert answer.status_code == 200
    assert answer.json()["worker_alive"] is None
