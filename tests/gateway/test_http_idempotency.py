"""REQ-0002, REQ-0003: with an `Idempotency-Key` a repeat is the same run, whatever happened in between."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.claims import IdempotencyClaim, claim_key, request_digest
from pyoco_server.domain.runs.jobs import Job, accept, pending
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.memory.queue import MemoryDelivery, MemoryQueue
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.ports.stores import Revision, Versioned
from support.builders import NOW, OWNER, RUN_ID, a_snapshot, a_submission
from support.gateway import RunningGateway, another_gateway, memory_app, new_key
from support.waiting import until

BODY = {"flow_name": "sample", "params": {"x": 1}}
SUBMISSION = a_submission()
"""What the gateway makes of BODY."""


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def post(
    gateway: RunningGateway, body: Any = BODY, key: str = "key", **headers: str
) -> httpx2.Response:
    return await gateway.client.post("/runs", json=body, headers={"Idempotency-Key": key, **headers})


async def jobs(gateway: RunningGateway) -> set[str]:
    return await gateway.backend.queue.run_ids()


async def claim_without_a_run(gateway: RunningGateway) -> Job:
    """A gateway was killed after it had claimed the key."""
    claim = IdempotencyClaim(run_id=RUN_ID, request=request_digest(SUBMISSION), claimed_at=NOW)
    await gateway.backend.claims.create(claim_key(None, "key"), claim)
    return accept(SUBMISSION, RUN_ID, NOW)


async def test_a_repeat_gets_the_first_answer_again(gateway: RunningGateway) -> None:
    first, second = await post(gateway), await post(gateway)
    assert "idempotent-replayed" not in first.headers
    assert (second.status_code, second.headers["idempotent-replayed"]) == (200, "true")
    assert first.json() == second.json()
    assert await jobs(gateway) == {first.json()["run_id"]}
    assert len((await gateway.client.get("/runs")).json()) == 1
    assert "pyoco_runs_submitted_total 1.0" in (await gateway.client.get("/metrics")).text


async def test_equal_requests_are_equal_however_they_are_written(gateway: RunningGateway) -> None:
    first = await post(gateway, {"flow_name": "f", "params": {"a": 1, "b": [2]}})
    again = await gateway.client.post(
        "/runs",
        content=b'{ "params": {"b": [2], "a": 1}, "tag": "default", "flow_name": "f" }',
        headers={"Idempotency-Key": "key"},
    )
    assert first.json() == again.json()


@pytest.mark.parametrize(
    "other", [{"flow_name": "other"}, {**BODY, "params": {"x": 2}}, {**BODY, "tag": "gpu"}]
)
async def test_the_same_key_with_another_request_is_refused(
    gateway: RunningGateway, other: dict[str, Any]
) -> None:
    """ERR-PYOCO-0002"""
    first = await post(gateway)
    answer = await post(gateway, other)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert await jobs(gateway) == {first.json()["run_id"]}


async def test_other_keys_are_other_runs(gateway: RunningGateway) -> None:
    ids = {(await post(gateway, key=key)).json()["run_id"] for key in ("a", "b", "A")}
    assert len(ids) == 3


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\tinside"])
async def test_a_key_has_limits(gateway: RunningGateway, key: str) -> None:
    """ERR-PYOCO-0002"""
    answer = await post(gateway, key=key)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")


async def test_twenty_posts_at_once_on_two_gateways_are_one_run(gateway: RunningGateway) -> None:
    async with another_gateway(gateway) as second:
        answers = await asyncio.gather(*(post((gateway, second)[n % 2]) for n in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    (run_id,) = {answer.json()["run_id"] for answer in answers}
    assert await jobs(gateway) == {run_id}
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert len((await gateway.client.get("/runs")).json()) == 1


async def test_a_claim_without_a_run_is_completed_by_the_repeat(gateway: RunningGateway) -> None:
    await claim_without_a_run(gateway)
    answer = await post(gateway)
    assert (answer.json()["run_id"], answer.json()["status"]) == (RUN_ID, "PENDING")
    assert await jobs(gateway) == {RUN_ID}
    run = (await gateway.client.get(f"/runs/{RUN_ID}")).json()
    assert (run["status"], run["submitted_at"]) == ("PENDING", NOW)


async def test_a_snapshot_without_a_job_is_completed_by_the_repeat(gateway: RunningGateway) -> None:
    job = await claim_without_a_run(gateway)
    revision = await gateway.backend.runs.create(RUN_ID, pending(job))
    answer = await post(gateway)
    assert answer.json()["run_id"] == RUN_ID
    delivery = gateway.backend.queue.take(["pyoco.work.default"])
    assert delivery is not None
    assert delivery.revision == revision


def take(gateway: RunningGateway) -> MemoryDelivery | None:
    return gateway.backend.queue.take(["pyoco.work.default"])


async def test_a_job_that_is_there_is_not_placed_twice(gateway: RunningGateway) -> None:
    """Two jobs of a run that takes long would take it from each other, again and again."""
    job = await claim_without_a_run(gateway)
    revision = await gateway.backend.runs.create(RUN_ID, pending(job))
    await gateway.backend.queue.publish(job, revision)  # and here its gateway died
    await post(gateway)
    assert take(gateway) is not None
    assert take(gateway) is None


@pytest.mark.parametrize("status", [RunStatus.RUNNING, RunStatus.COMPLETED, RunStatus.CANCELLED])
async def test_a_run_that_got_further_is_left_alone(gateway: RunningGateway, status: RunStatus) -> None:
    await claim_without_a_run(gateway)
    snapshot = a_snapshot(status, OWNER)
    await gateway.backend.runs.create(RUN_ID, snapshot)
    assert (await post(gateway)).json()["run_id"] == RUN_ID
    stored = await gateway.backend.runs.get(RUN_ID)
    assert stored is not None
    assert stored.value == snapshot
    assert await jobs(gateway) == set()


async def test_a_repeat_that_fails_takes_nothing_back(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try may have been answered long ago: its run must not be lost with a repeat."""
    job = await claim_without_a_run(gateway)
    await gateway.backend.runs.create(RUN_ID, pending(job))

    async def refuse(self: MemoryQueue, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        raise NatsUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(MemoryQueue, "publish", refuse)
        assert (await post(gateway)).status_code == 503
    assert await gateway.backend.runs.get(RUN_ID) is not None
    assert (await post(gateway)).json()["run_id"] == RUN_ID
    assert await jobs(gateway) == {RUN_ID}


async def test_a_repeat_that_cannot_see_the_run_does_not_remove_it(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claim_without_a_run(gateway)
    await gateway.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
    real = MemoryStore[RunSnapshot].get

    async def get(self: MemoryStore[RunSnapshot], key: str) -> Versioned[RunSnapshot] | None:
        if self is gateway.backend.runs:
            raise NatsUnavailable
        return await real(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "get", get)
        assert (await post(gateway)).status_code == 503
    stored = await gateway.backend.runs.get(RUN_ID)
    assert stored is not None
    assert stored.value.status is RunStatus.RUNNING


async def test_a_refused_request_does_not_use_up_its_key(gateway: RunningGateway) -> None:
    assert (await post(gateway, {"flow_name": ""})).status_code == 422
    assert (await post(gateway)).status_code == 200


async def test_a_key_belongs_to_its_tenant_and_to_all_its_api_keys() -> None:
    """REQ-0017"""
    config = NatsBackendConfig(http_auth_mode="api_key")
    async with memory_app(http_auth_mode="api_key") as gateway, another_gateway(gateway, config) as second:
        keys = gateway.backend.api_keys
        ours, rotated = await new_key(keys, "acme", "key-a"), await new_key(keys, "acme", "key-b")
        theirs = await new_key(keys, "other", "key-c")
        first = await post(gateway, **ours)
        other = await post(gateway, {"flow_name": "another"}, **theirs)
        assert (other.status_code, "idempotent-replayed" in other.headers) == (200, False)
        assert other.json()["run_id"] != first.json()["run_id"]
        repeated = await post(second, **rotated)
        assert (repeated.status_code, repeated.json()) == (200, first.json())


async def test_d07_a_repeat_does_not_read_the_queue(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D07: with 20,000 jobs on the queue twenty equal posts took 28 s: each read all of them."""
    reads = AsyncMock(side_effect=AssertionError("the queue was read"))
    for name in ("jobs", "run_ids"):
        monkeypatch.setattr(gateway.backend.queue, name, reads, raising=False)
    job = await claim_without_a_run(gateway)
    await gateway.backend.queue.publish(job, await gateway.backend.runs.create(RUN_ID, pending(job)))
    for _ in range(3):
        assert (await post(gateway)).json()["run_id"] == RUN_ID
    assert reads.await_count == 0
    assert len(gateway.backend.queue._messages) == 1


async def test_d07_one_of_several_gateways_sweeps(gateway: RunningGateway) -> None:
    """D07: every gateway read the whole queue."""
    async with another_gateway(gateway) as second:
        leases = [one.app.state.gateway.levels.runs.sweep_lease for one in (gateway, second)]

        async def held() -> list[bool]:
            return [lease.is_held for lease in leases]

        assert sorted(await until(held, any)) == [False, True]


async def carried_out(gateway: RunningGateway) -> int:
    """Jobs that are there are done, and their runs forgotten, as a short retention does."""
    count = 0
    while (delivery := take(gateway)) is not None:
        await gateway.backend.runs.remove(delivery.job().run_id, None)
        await delivery.ack()
        count += 1
    return count


async def test_d13_a_key_starts_one_run_though_its_snapshot_has_expired(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D13: the mark of the claim was lost, the run ended and expired, and a repeat started it again."""
    lost = AsyncMock(side_effect=NatsUnavailable("nats unavailable: request timed out"))
    with monkeypatch.context() as patch:
        patch.setattr(gateway.backend.claims, "update", lost)
        await post(gateway)
    carried = await carried_out(gateway)
    answers = []
    for _ in range(3):
        monkeypatch.setattr(gateway.backend.queue, "_seen", {})  # the duplicate window is over
        answers.append(await post(gateway))
        carried += await carried_out(gateway)
    assert carried == 1
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["idempotent-replayed"] for answer in answers} == {"true"}
