"""REQ-0023: a cancel over HTTP is recorded, answered CANCELLING, and wins."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.runs.changes import Conclude
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.stores import Revision, Versioned
from support.builders import NOW, OWNER, RUN_ID, a_snapshot
from support.gateway import RunningGateway, memory_app
from support.waiting import until

CANCEL = f"/runs/{RUN_ID}/cancel"


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def stored(gateway: RunningGateway) -> RunSnapshot:
    found = await gateway.backend.runs.get(RUN_ID)
    assert found is not None
    return found.value


async def test_a_run_that_no_worker_has_is_answered_cancelling_and_ends_cancelled(
    gateway: RunningGateway,
) -> None:
    run_id = (await gateway.client.post("/runs", json={"flow_name": "f"})).json()["run_id"]
    answer = await gateway.client.post(f"/runs/{run_id}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLING")
    run = (await gateway.client.get(f"/runs/{run_id}")).json()
    assert (run["status"], run["cancel_requested_by"]) == ("CANCELLED", "anonymous")
    (listed,) = (await gateway.client.get("/runs")).json()
    assert (listed["run_id"], listed["status"]) == (run_id, "CANCELLED"), "a list shows it at once"


async def test_a_running_run_is_cancelling_until_its_worker_has_stopped(gateway: RunningGateway) -> None:
    await gateway.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
    answer = await gateway.client.post(CANCEL, json={"reason": "too slow"})
    run = answer.json()
    assert (run["status"], run["cancel_reason"]) == ("CANCELLING", "too slow")
    assert run["cancel_requested_at"] > NOW
    assert "task_records" not in run
    assert (await stored(gateway)).status is RunStatus.CANCELLING
    late = Conclude(owner=OWNER, status=RunStatus.COMPLETED, result={"x": 1})
    await change_run(gateway.backend.runs, RUN_ID, late, lambda: NOW)
    ended = await stored(gateway)
    assert (ended.status, ended.result, ended.cancel_reason) == (RunStatus.CANCELLED, None, "too slow")


async def test_the_first_reason_stays(gateway: RunningGateway) -> None:
    await gateway.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
    first = (await gateway.client.post(CANCEL, json={"reason": "first"})).json()
    second = (await gateway.client.post(CANCEL, json={"reason": "second"})).json()
    assert first == second


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
async def test_a_run_that_has_ended_is_answered_as_it_is(gateway: RunningGateway, status: RunStatus) -> None:
    revision = await gateway.backend.runs.create(RUN_ID, a_snapshot(status, OWNER, result={"x": 1}))
    answer = await gateway.client.post(CANCEL, json={"reason": "late"})
    run = answer.json()
    assert (answer.status_code, run["status"], run["cancel_requested_at"]) == (200, status, None)
    assert run["result"] == {"x": 1}
    found = await gateway.backend.runs.get(RUN_ID)
    assert found is not None
    assert found.revision == revision, "nothing was written"


@pytest.mark.parametrize("body", [b"", b"  ", b"{}", b'{"reason": null}'])
async def test_the_body_is_optional(gateway: RunningGateway, body: bytes) -> None:
    await gateway.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
    answer = await gateway.client.post(CANCEL, content=body)
    assert (answer.status_code, answer.json()["cancel_reason"]) == (200, None)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"reason": 3}', b'{"reason": "%s"}' % (b"x" * 2001), b'{"reson": "r"}']
)
async def test_a_body_that_makes_no_sense_cancels_nothing(gateway: RunningGateway, body: bytes) -> None:
    """ERR-PYOCO-0002"""
    await gateway.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
    answer = await gateway.client.post(CANCEL, content=body)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert (await stored(gateway)).status is RunStatus.RUNNING


@pytest.mark.parametrize("run_id", [RUN_ID, "nonsense", "*", RUN_ID.upper()])
async def test_a_run_that_does_not_exist_is_not_found(gateway: RunningGateway, run_id: str) -> None:
    """ERR-PYOCO-0005"""
    answer = await gateway.client.post(f"/runs/{run_id}/cancel")
    assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0005")


async def test_a_cancel_that_meets_another_write_is_decided_again(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker claimed the run between the gateway's read and its write."""
    first = await gateway.backend.runs.create(RUN_ID, a_snapshot())
    real = MemoryStore[RunSnapshot].get
    reads: list[str] = []

    async def get(self: MemoryStore[RunSnapshot], key: str) -> Versioned[RunSnapshot] | None:
        found = await real(self, key)
        reads.append(key)
        if len(reads) == 1:
            await self.update(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER), Revision(first))
        return found

    monkeypatch.setattr(MemoryStore, "get", get)
    answer = await gateway.client.post(CANCEL)
    assert (answer.json()["status"], answer.json()["worker_id"]) == ("CANCELLING", OWNER.worker_id)


async def test_cancel_requests_are_counted(gateway: RunningGateway) -> None:
    await gateway.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))

    async def figures() -> Any:
        return (await gateway.client.get("/metrics")).text

    for _ in range(3):
        await gateway.client.post(CANCEL)
    assert "pyoco_run_cancels_requested_total 3.0" in await figures()
    await until(figures, lambda text: 'pyoco_runs_total{status="CANCELLING"} 1.0' in text)
