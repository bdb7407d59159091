"""REQ-0002, REQ-0003: many runs in one request, each answered on its own."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.runs.jobs import Job
from pyoco_server.errors import NatsUnavailable
from pyoco_server.memory.queue import MemoryQueue
from pyoco_server.usecases.ports.stores import Revision
from support.gateway import RunningGateway, memory_app


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def post(gateway: RunningGateway, runs: Any) -> dict[str, Any]:
    answer = await gateway.client.post("/runs/batch", json={"runs": runs})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("count", [1, 1000])
async def test_every_run_of_a_batch_is_accepted_in_order(gateway: RunningGateway, count: int) -> None:
    body = await post(gateway, [{"flow_name": f"f{n}"} for n in range(count)])
    assert (body["accepted"], body["refused"], len(body["results"])) == (count, 0, count)
    first, last = body["results"][0], body["results"][-1]
    for n, result in ((0, first), (count - 1, last)):
        assert result["status"] == "PENDING"
        run = (await gateway.client.get(f"/runs/{result['run_id']}")).json()
        assert run["flow_name"] == f"f{n}"
    assert len(await gateway.backend.queue.run_ids()) == count
    assert f"pyoco_runs_submitted_total {count}.0" in (await gateway.client.get("/metrics")).text


async def test_a_run_that_is_not_well_formed_is_refused_without_its_neighbours(
    gateway: RunningGateway,
) -> None:
    """ERR-PYOCO-0002"""
    body = await post(
        gateway,
        [
            {"flow_name": "good", "tag": "gpu", "params": {"x": 1}},
            {"flow_name": ""},
            {"flow_name": "f", "tag": "a.b"},
            {"flow_name": "f", "params": {"x": "y" * (256 * 1024)}},
            {},
            {"flow_name": "good too"},
        ],
    )
    assert (body["accepted"], body["refused"]) == (2, 4)
    assert ["run_id" in result for result in body["results"]] == [True, False, False, False, False, True]
    assert [result.get("http_status") for result in body["results"]] == [None, 422, 422, 413, 422, None]
    assert {result["error"]["err_id"] for result in body["results"][1:5]} == {"ERR-PYOCO-0002"}
    assert "flow_name" in body["results"][4]["error"]["detail"]
    assert len(await gateway.backend.queue.run_ids()) == 2


async def test_a_run_that_cannot_be_queued_is_refused_by_itself(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ERR-PYOCO-0003; nothing of it is left behind."""
    real = MemoryQueue.publish

    async def publish(self: MemoryQueue, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        if job.flow_name == "unlucky":
            raise NatsUnavailable
        return await real(self, job, revision, message_id)

    monkeypatch.setattr(MemoryQueue, "publish", publish)
    body = await post(gateway, [{"flow_name": "a"}, {"flow_name": "unlucky"}, {"flow_name": "b"}])
    assert [result.get("http_status") for result in body["results"]] == [None, 503, None]
    assert body["results"][1]["error"]["err_id"] == "ERR-PYOCO-0003"
    listed = {run["flow_name"] for run in (await gateway.client.get("/runs")).json()}
    assert listed == {"a", "b"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"runs": []},
        {"runs": [{"flow_name": "f"}] * 1001},
        {"runs": {"flow_name": "f"}},
        {"runs": ["f"]},
        [],
    ],
)
async def test_what_is_no_batch_is_refused_as_a_whole(gateway: RunningGateway, body: Any) -> None:
    """ERR-PYOCO-0002"""
    answer = await gateway.client.post("/runs/batch", json=body)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert await gateway.backend.queue.run_ids() == set()


async def test_a_run_with_params_that_few_can_read_is_refused_by_itself(gateway: RunningGateway) -> None:
    """D48"""
    runs = [
        b'{"flow_name": "f", "params": {"v": 1}}',
        b'{"flow_name": "f", "params": {"v": 18446744073709551616}}',
        b'{"flow_name": "f", "params": {"v": 1, "v": 2}}',
        b'{"flow_name": "f"}',
    ]
    answer = await gateway.client.post("/runs/batch", content=b'{"runs": [%s]}' % b",".join(runs))
    assert (answer.json()["accepted"], answer.json()["refused"]) == (2, 2)
    problems = [result["error"]["detail"] for result in answer.json()["results"][1:3]]
    assert problems == [
        "params.v: the number 18446744073709551616 has more than 64 bits; write it in quotes",
        "params.v: duplicate key 'v'",
    ]
    assert [result.get("http_status") for result in answer.json()["results"]] == [None, 422, 422, None]


async def test_a_batch_with_a_key_twice_is_refused_as_a_whole(gateway: RunningGateway) -> None:
    """D48"""
    answer = await gateway.client.post("/runs/batch", content=b'{"runs": [{"flow_name": "f"}], "runs": []}')
    assert answer.status_code == 422
    assert "duplicate key 'runs'" in answer.text


async def test_a_batch_that_is_too_large_is_refused_unread(gateway: RunningGateway) -> None:
    answer = await gateway.client.post(
        "/runs/batch", content=b"{}", headers={"content-length": str(16 * 1024 * 1024 + 1)}
    )
    assert (answer.status_code, answer.json()["err_id"]) == (413, "ERR-PYOCO-0002")


async def test_messages_are_in_the_callers_language(gateway: RunningGateway) -> None:
    answer = await gateway.client.post("/runs/batch", json={"runs": [{}]}, headers={"Accept-Language": "ja"})
    assert answer.json()["results"][0]["error"]["message"] == "リクエストが不正です"
