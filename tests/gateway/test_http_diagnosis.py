"""Why a run waits or failed, over HTTP: the situations are staged on stores in memory."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.fleet import WorkerState
from pyoco_server.domain.runs.changes import Claim, Conclude, GiveUp, RunChange
from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import (
    CodeWheel,
    FailureKind,
    Owner,
    RunSnapshot,
    RunStatus,
    TaskRecord,
    TaskState,
)
from pyoco_server.memory import open_memory_gateway_backend
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.stores import Versioned
from support.builders import a_worker
from support.gateway import RunningGateway, memory_app, memory_gateway, new_key
from support.waiting import until

FAR_AHEAD = 2e9
OWNER = Owner("w", "instance-1", 1)
WHEEL = CodeWheel("sales", "1.1", None)


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def submit(gateway: RunningGateway, **fields: Any) -> str:
    answer = await gateway.client.post("/runs", json={"flow_name": "report", **fields})
    assert answer.status_code == 200, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


async def diagnosis(gateway: RunningGateway, run_id: str, language: str = "en") -> dict[str, Any]:
    answer = await gateway.client.get(f"/runs/{run_id}/diagnosis", headers={"Accept-Language": language})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def has_cause(gateway: RunningGateway, run_id: str, cause: str) -> dict[str, Any]:
    """Once the gateway has read what was staged."""
    return await until(lambda: diagnosis(gateway, run_id), lambda found: found["cause"] == cause)


async def add_worker(gateway: RunningGateway, **changes: Any) -> None:
    record = a_worker(**{"worker_id": "w", "last_seen_at": FAR_AHEAD, "slots": 1, **changes})
    await gateway.backend.workers.create(record.worker_id, record)


async def change(gateway: RunningGateway, run_id: str, wanted: RunChange) -> RunSnapshot:
    """What a worker or another gateway would do."""
    changed = await change_run(gateway.backend.runs, run_id, wanted, time.time)
    assert isinstance(changed, Versioned)
    return changed.value


async def claim(gateway: RunningGateway, run_id: str) -> None:
    await change(gateway, run_id, Claim(OWNER))


async def fail(gateway: RunningGateway, error: str, **fields: Any) -> str:
    run_id = await submit(gateway)
    await claim(gateway, run_id)
    await change(gateway, run_id, failed(error, **fields))
    return run_id


def failed(error: str, kind: FailureKind = FailureKind.ERROR, **fields: Any) -> Conclude:
    return Conclude(owner=OWNER, status=RunStatus.FAILED, error=error, kind=kind, **fields)


# Why it waits


async def test_no_worker_has_its_tag(gateway: RunningGateway) -> None:
    run_id = await submit(gateway, tag="gpu")
    await add_worker(gateway, worker_id="old", tags=("gpu",), state=WorkerState.STOPPED_GRACEFUL)
    await add_worker(gateway, tags=("gpus",))
    found = await until(lambda: diagnosis(gateway, run_id), lambda found: "flow" in found["evidence"])
    assert (found["cause"], found["run_id"]) == ("no_worker", run_id)
    assert found["evidence"]["gone_workers"][0]["worker_id"] == "old"
    assert found["evidence"]["flow"]["similar_tags"] == ["gpus"]
    assert found["evidence"]["queue"]["workers"] == 0
    assert any("pyoco-worker --tags gpu" in advice for advice in found["advice"])


async def test_its_workers_are_busy_and_it_has_a_position(gateway: RunningGateway) -> None:
    await add_worker(gateway)
    first, _, third = [await submit(gateway) for _ in range(3)]
    await submit(gateway, tag="other")
    await claim(gateway, first)
    found = await until(
        lambda: diagnosis(gateway, third),
        lambda found: found["cause"] == "busy" and found["evidence"]["queue"]["running"] == 1,
    )
    queue = found["evidence"]["queue"]
    assert (queue["position"], queue["waiting"], queue["workers"], queue["slots"]) == (2, 2, 1, 1)
    assert "number 2 of 2" in found["summary"]


async def test_its_queue_is_paused(gateway: RunningGateway) -> None:
    await add_worker(gateway)
    run_id = await submit(gateway)
    await gateway.client.post("/queues/default/pause", json={"reason": "disk full"})
    found = await has_cause(gateway, run_id, "paused")
    assert "(disk full)" in found["summary"]
    assert found["evidence"]["waiting_for"]["paused"]["tag"] == "default"


async def test_its_flow_is_paused(gateway: RunningGateway) -> None:
    await add_worker(gateway)
    await gateway.client.post("/flows/report/pause", json={})
    run_id = await submit(gateway)
    found = await has_cause(gateway, run_id, "paused")
    assert "pyoco-client flows resume report" in found["advice"][0]


async def test_it_is_delayed(gateway: RunningGateway) -> None:
    run_id = await submit(gateway, delay_sec=600)
    found = await has_cause(gateway, run_id, "delayed")
    assert found["evidence"]["not_before"] > time.time()
    assert "either" in found["advice"][-1], "and nobody would run it"


async def test_it_waits_for_a_limit(gateway: RunningGateway) -> None:
    await add_worker(gateway)
    limit = {"match": {"flow": "report"}, "max_running": 1}
    assert (await gateway.client.put("/limits/one", json=limit)).status_code == 201
    _, second = [await submit(gateway) for _ in range(2)]
    next_one = {"limit": "one", "key": "", "position": 1}
    found = await until(
        lambda: diagnosis(gateway, second), lambda found: found["evidence"].get("waiting_for") == next_one
    )
    assert found["cause"] == "limit"


async def test_it_waits_for_its_next_try(gateway: RunningGateway) -> None:
    run_id = await submit(gateway, retry={"max_attempts": 3})
    await claim(gateway, run_id)
    await change(gateway, run_id, failed("ValueError: no rows", retry_at=time.time() + 600))
    found = await has_cause(gateway, run_id, "next_try")
    assert "Try 1 of 3 failed: ValueError: no rows." in found["summary"]
    assert found["evidence"]["try_number"] == 2


# What it does


async def test_it_runs(gateway: RunningGateway) -> None:
    await add_worker(gateway)
    run_id = await submit(gateway)
    await claim(gateway, run_id)
    line = LogLine(attempt=1, n=1, task=None, stream="stdout", text="halfway\n", ts=0.0)
    await gateway.backend.task_logs.append(run_id, [line])
    found = await until(
        lambda: diagnosis(gateway, run_id),
        lambda found: found["cause"] == "running" and found["evidence"]["worker"]["state"] == "IDLE",
    )
    assert found["evidence"]["log"] == ["halfway"]


@pytest.mark.parametrize(
    "worker", [None, {"last_seen_at": 1.0}, {"state": WorkerState.STOPPED_GRACEFUL}, {"instance_id": "new"}]
)
async def test_its_worker_is_lost(gateway: RunningGateway, worker: dict[str, Any] | None) -> None:
    run_id = await submit(gateway)
    if worker is not None:
        await add_worker(gateway, **worker)
    await claim(gateway, run_id)
    found = await has_cause(gateway, run_id, "worker_lost")
    assert found["evidence"]["worker"]["worker_id"] == "w"


# Why it ended so


async def test_a_task_failed_like_others_before(gateway: RunningGateway) -> None:
    completed = await submit(gateway)
    await claim(gateway, completed)
    before = (CodeWheel("sales", "1.0", None),)
    await change(
        gateway, completed, Conclude(owner=OWNER, status=RunStatus.COMPLETED, result={}, wheels=before)
    )
    for error in ("ValueError: row 1", "ValueError: row 22", "OSError: disk full"):
        await fail(gateway, error)
    run_id = await fail(
        gateway,
        "ValueError: row 3",
        tasks={"load": TaskState.FAILED},
        task_records={"load": TaskRecord(state=TaskState.FAILED, error="ValueError: row 3")},
        wheels=(WHEEL,),
    )
    lines = [
        LogLine(attempt=1, n=n, task=task, stream="stdout", text=f"{task} {n}\n", ts=0.0)
        for n, task in enumerate(["load", "other"], 1)
    ]
    await gateway.backend.task_logs.append(run_id, lines)
    found = await until(
        lambda: diagnosis(gateway, run_id),
        lambda found: found["evidence"].get("same_error", {}).get("failed") == 4,
    )
    assert found["cause"] == "error"
    evidence = found["evidence"]
    assert (evidence["same_error"]["count"], evidence["same_error"]["is_partial"]) == (3, False)
    assert evidence["log"] == ["load 1"], "of the task that failed"
    assert (evidence["failure"]["task"], evidence["attempt"]) == ("load", 1)
    assert evidence["wheels"][0]["version"] == "1.1"
    assert evidence["last_completed"]["run_id"] == completed
    assert "before sales 1.0, now sales 1.1" in " ".join(found["advice"])


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (FailureKind.CRASH, "crash"),
        (FailureKind.TIMEOUT, "timeout"),
        (FailureKind.FLOW_NOT_FOUND, "flow_not_found"),
    ],
)
async def test_the_kind_of_a_failure_is_its_cause(
    gateway: RunningGateway, kind: FailureKind, cause: str
) -> None:
    run_id = await fail(gateway, "it went wrong", kind=kind)
    assert (await diagnosis(gateway, run_id))["cause"] == cause


async def test_a_run_that_was_given_up_has_lost_its_workers(gateway: RunningGateway) -> None:
    run_id = await submit(gateway)
    await claim(gateway, run_id)
    await change(gateway, run_id, GiveUp(error="max_deliver", kind=FailureKind.MAX_DELIVER, last_attempt=5))
    assert (await diagnosis(gateway, run_id))["cause"] == "worker_lost"


async def test_nobody_started_it_in_time(gateway: RunningGateway) -> None:
    run_id = await submit(gateway, start_within_sec=0.05)
    found = await has_cause(gateway, run_id, "expired")
    assert any("pyoco-worker" in advice for advice in found["advice"])


async def test_it_was_cancelled(gateway: RunningGateway) -> None:
    run_id = await submit(gateway)
    await gateway.client.post(f"/runs/{run_id}/cancel", json={"reason": "a typo"})
    found = await has_cause(gateway, run_id, "cancelled")
    assert "a typo" in found["summary"]


async def test_it_completed(gateway: RunningGateway) -> None:
    run_id = await submit(gateway)
    await claim(gateway, run_id)
    await change(gateway, run_id, Conclude(owner=OWNER, status=RunStatus.COMPLETED, result={}))
    found = await diagnosis(gateway, run_id)
    assert (found["cause"], found["advice"]) == ("completed", [])


# The answer


async def test_its_texts_are_in_the_language_of_the_client(gateway: RunningGateway) -> None:
    run_id = await submit(gateway, tag="gpu")
    japanese = await diagnosis(gateway, run_id, "ja-JP,ja;q=0.9,en;q=0.8")
    assert japanese["summary"].startswith("tag「gpu」のworker")
    assert "起動してください" in japanese["advice"][0]
    assert (await diagnosis(gateway, run_id, "fr"))["summary"].startswith("No live worker")


async def test_an_unknown_run_is_not_found(gateway: RunningGateway) -> None:
    """ERR-PYOCO-0005"""
    for run_id in ("nonsense", "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0009"):
        answer = await gateway.client.get(f"/runs/{run_id}/diagnosis")
        assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0005")


async def test_tenants_learn_nothing_of_each_other() -> None:
    config = NatsBackendConfig(http_auth_mode="api_key")
    async with open_memory_gateway_backend(config) as backend, memory_gateway(backend, config) as client:
        ours, theirs = [await new_key(backend.api_keys, name, name) for name in ("acme", "rival")]
        run_ids = {}
        for name, key in (("ours", ours), ("theirs", theirs), ("second", ours)):
            answer = await client.post("/runs", json={"flow_name": "report"}, headers=key)
            run_ids[name] = answer.json()["run_id"]
        path = f"/runs/{run_ids['second']}/diagnosis"
        assert (await client.get(path, headers=theirs)).status_code == 404
        found = (await client.get(path, headers=ours)).json()
    assert (found["evidence"]["queue"]["position"], found["evidence"]["queue"]["waiting"]) == (2, 2)
