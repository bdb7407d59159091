"""REQ-0023: a cancel that a worker of another make overwrote is asked for again, until it is seen."""

from collections.abc import AsyncIterator

import pytest

from pyoco_server.domain.runs.changes import RequestCancel
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.memory import open_memory_backend
from pyoco_server.usecases.runs import cancel
from support.builders import NOW, OWNER, RUN_ID, a_snapshot
from support.gateway import RunningGateway, memory_app
from support.waiting import until


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def overwrite(gateway: RunningGateway, status: RunStatus) -> None:
    """As a worker does that writes what it knows over whatever is there."""
    stored = await gateway.backend.runs.get(RUN_ID)
    assert stored is not None
    await gateway.backend.runs.update(RUN_ID, a_snapshot(status, OWNER), stored.revision)


async def status(gateway: RunningGateway) -> RunStatus:
    stored = await gateway.backend.runs.get(RUN_ID)
    assert stored is not None
    return stored.value.status


async def test_an_overwritten_cancel_is_asked_for_again(gateway: RunningGateway) -> None:
    await gateway.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
    answer = await gateway.client.post(f"/runs/{RUN_ID}/cancel", json={"reason": "enough"})
    assert answer.json()["status"] == "CANCELLING"
    for _ in range(3):
        await overwrite(gateway, RunStatus.RUNNING)
        await until(lambda: status(gateway), lambda found: found is RunStatus.CANCELLING)
    stored = await gateway.backend.runs.get(RUN_ID)
    assert stored is not None
    assert stored.value.cancel_reason == "enough"


async def test_a_run_that_has_ended_is_left_alone(gateway: RunningGateway) -> None:
    await gateway.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
    await gateway.client.post(f"/runs/{RUN_ID}/cancel")
    await overwrite(gateway, RunStatus.COMPLETED)
    await until(lambda: gateway.client.get("/runs?status=COMPLETED"), lambda answer: bool(answer.json()))
    assert await status(gateway) is RunStatus.COMPLETED


async def test_the_cancels_of_runs_that_had_ended_are_not_remembered_for_ever() -> None:
    async with open_memory_backend() as backend:
        keeper = cancel.ReassertCancels(backend.runs, lambda: NOW, 30.0, max_remembered=3)
        for number in range(9):
            keeper.accepted(f"run-{number}", RequestCancel(requested_by="ann"))
        assert list(keeper._accepted) == ["run-6", "run-7", "run-8"]
