"""Priorities, pauses and the list of queues over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.fleet import FEATURES, LANES, SHARES
from pyoco_server.domain.queues import Lane, Turns
from pyoco_server.domain.runs.model import Priority
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.usecases.ports.stores import FeedBatch, FeedPosition
from support.builders import a_worker
from support.gateway import memory_gateway, new_key, new_memory_gateway
from support.waiting import until

FLOW_YAML = b"""version: 1
flow:
  graph: a
tasks:
  a:
    callable: os:getcwd
"""
FAR_AHEAD = 2e9
Gateway = tuple[httpx2.AsyncClient, MemoryGatewayBackend]


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with new_memory_gateway() as opened:
        yield opened


async def submit(http: httpx2.AsyncClient, **fields: Any) -> str:
    answer = await http.post("/runs", json={"flow_name": "f", **fields})
    assert answer.status_code == 200, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


async def queues(http: httpx2.AsyncClient, **headers: str) -> dict[str, dict[str, Any]]:
    answer = await http.get("/queues", headers=headers)
    assert answer.status_code == 200, answer.text
    return {queue["tag"]: queue for queue in answer.json()["items"]}


def lane_of_next(backend: MemoryGatewayBackend, tag: str = "default") -> str:
    taken = backend.queue.take_in_turn([tag], Turns())
    assert taken is not None
    return taken.job().lane


@pytest.mark.parametrize("priority", list(Priority))
async def test_a_run_has_the_priority_it_was_submitted_with(gateway: Gateway, priority: Priority) -> None:
    http, backend = gateway
    run_id = await submit(http, priority=priority)
    assert (await http.get(f"/runs/{run_id}")).json()["priority"] == priority
    assert lane_of_next(backend) == Lane("default", priority=priority).name


async def test_without_one_it_is_normal_and_on_the_subject_that_every_worker_knows(gateway: Gateway) -> None:
    http, backend = gateway
    run_id = await submit(http)
    assert (await http.get(f"/runs/{run_id}")).json()["priority"] == "normal"
    taken = backend.queue.take(["pyoco.work.default"])
    assert taken is not None
    assert (taken.job().run_id, taken.job().lane) == (run_id, "")
    assert await backend.queues.get("default") is None, "nothing was recorded for it"


@pytest.mark.parametrize("wrong", ["urgent", 3, ""])
async def test_an_unknown_priority_is_refused(gateway: Gateway, wrong: object) -> None:
    http, _ = gateway
    answer = await http.post("/runs", json={"flow_name": "f", "priority": wrong})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "priority"]


async def test_forms_batches_and_schedules_have_it_too(gateway: Gateway) -> None:
    http, _ = gateway
    form = {"flow_name": "f", "priority": "low"}
    answer = await http.post("/runs/yaml", files={"workflow": ("flow.yaml", FLOW_YAML)}, data=form)
    run = (await http.get(f"/runs/{answer.json()['run_id']}")).json()
    assert run["priority"] == "low"
    batch = await http.post("/runs/batch", json={"runs": [{"flow_name": "f", "priority": "high"}]})
    run = (await http.get(f"/runs/{batch.json()['results'][0]['run_id']}")).json()
    assert run["priority"] == "high"
    body = {"target": {"flow": "f", "priority": "low"}, "every_sec": 3600, "timezone": "UTC"}
    assert (await http.put("/schedules/s", json=body)).status_code == 201
    run_id = (await http.post("/schedules/s/trigger")).json()["run_id"]
    assert (await http.get(f"/runs/{run_id}")).json()["priority"] == "low"


@pytest.mark.parametrize(
    ("features", "lane"), [(FEATURES, ""), ((*FEATURES, LANES), "high"), ((*FEATURES, SHARES), "")]
)
async def test_an_older_worker_of_the_tag_can_take_every_job(
    gateway: Gateway, features: tuple[str, ...], lane: str
) -> None:
    http, backend = gateway
    await backend.workers.create("w", a_worker(worker_id="w", last_seen_at=FAR_AHEAD, features=features))
    await until(lambda: queues(http), lambda found: found.get("default", {}).get("workers") == 1)
    await submit(http, priority="high")
    assert lane_of_next(backend) == lane


async def test_jobs_that_no_worker_of_the_tag_could_take_are_moved(gateway: Gateway) -> None:
    http, backend = gateway
    run_id = await submit(http, priority="high")
    await backend.workers.create("w", a_worker(worker_id="w", last_seen_at=FAR_AHEAD, features=FEATURES))

    async def taken() -> Any:
        return backend.queue.take(["pyoco.work.default"])

    delivery = await until(taken, lambda delivery: delivery is not None)
    assert delivery.job().run_id == run_id


# Pauses


async def test_a_pause_is_shown_with_the_queue_and_with_its_runs(gateway: Gateway) -> None:
    http, backend = gateway
    before = await submit(http)
    answer = await http.post("/queues/default/pause", json={"reason": "upgrade"})
    assert answer.status_code == 200
    paused = answer.json()["paused"]
    assert (paused["reason"], paused["until"]) == ("upgrade", None)
    assert set(answer.json()) == {
        *("tag", "waiting", "running", "paused", "oldest_wait_sec", "workers", "throughput_per_min"),
    }
    after = await submit(http, priority="high")
    for run_id in (before, after):
        run = (await http.get(f"/runs/{run_id}")).json()
        assert run["waiting_for"] == {"paused": {"tag": "default", **paused}}
    assert backend.queue.take_in_turn(["default"], Turns()) is None
    assert (await http.post("/queues/default/resume")).json()["paused"] is None
    assert (await http.get(f"/runs/{before}")).json()["waiting_for"] is None
    assert lane_of_next(backend) == "high"


async def test_a_pause_without_a_body_and_again_keeps_its_beginning(gateway: Gateway) -> None:
    http, _ = gateway
    first = (await http.post("/queues/gpu/pause")).json()["paused"]
    again = (await http.post("/queues/gpu/pause", json={"reason": "later", "until": 4e9})).json()["paused"]
    assert again == {"since": first["since"], "reason": "later", "until": 4e9}
    assert (await queues(http))["gpu"]["paused"] == again, "a tag without runs and workers is listed, too"


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/queues/default/pause", {"until": 1.0}, "until: must be in the future"),
        ("/queues/default/pause", {"until": "tomorrow"}, "RFC 3339"),
        ("/queues/default/pause", {"untill": 4e9}, "untill"),
        ("/queues/default/pause", {"reason": "x" * 1_001}, "1000"),
        ("/queues/a.b/pause", {}, "a.b"),
        ("/queues/a.b/resume", None, "a.b"),
    ],
)
async def test_nonsense_is_refused(gateway: Gateway, path: str, body: object, text: str) -> None:
    http, backend = gateway
    answer = await http.post(path, json=body) if body is not None else await http.post(path)
    assert answer.status_code == 422
    assert text in answer.text
    assert await backend.queues.get("default") is None


async def test_pauses_are_in_the_audit_trail(gateway: Gateway) -> None:
    http, _ = gateway
    await http.post("/queues/default/pause", json={"reason": "upgrade"})
    await http.post("/queues/default/resume")
    entries = (await http.get("/audit")).json()["items"]
    assert [(entry["action"], entry["target"]) for entry in entries] == [
        ("queue.resume", {"kind": "queue", "id": "default"}),
        ("queue.pause", {"kind": "queue", "id": "default"}),
    ]
    assert entries[1]["after"]["reason"] == entries[0]["before"]["reason"] == "upgrade"


# The list


async def test_a_new_server_has_no_queues(gateway: Gateway) -> None:
    http, _ = gateway
    assert (await http.get("/queues")).json() == {"items": []}


async def test_runs_are_counted_by_tag(gateway: Gateway) -> None:
    http, _ = gateway
    for tag in ("cpu", "cpu", "gpu"):
        await submit(http, tag=tag)
    await submit(http, tag="cpu", delay_sec=600)
    found = await queues(http)
    assert {tag: (queue["waiting"], queue["running"]) for tag, queue in found.items()} == {
        "cpu": (2, 0),
        "gpu": (1, 0),
    }
    assert found["cpu"]["oldest_wait_sec"] >= found["gpu"]["oldest_wait_sec"] >= 0


async def test_what_ended_is_the_throughput_of_the_last_minute(gateway: Gateway) -> None:
    http, _ = gateway
    for _ in range(3):
        run_id = await submit(http)
        await http.post(f"/runs/{run_id}/cancel")
    found = await until(lambda: queues(http), lambda found: found["default"]["waiting"] == 0)
    assert (found["default"]["throughput_per_min"], found["default"]["oldest_wait_sec"]) == (3, 0)


async def test_metrics_have_the_queues(gateway: Gateway) -> None:
    """Also those without workers: a scaler starts the first one."""
    http, _ = gateway
    await submit(http, tag="gpu")
    await submit(http)
    await http.post("/queues/default/pause")
    text = (await http.get("/metrics")).text
    assert 'pyoco_queue_waiting{tag="default"} 1.0' in text
    assert 'pyoco_queue_waiting{tag="gpu"} 1.0' in text
    assert 'pyoco_queue_running{tag="gpu"} 0.0' in text
    assert 'pyoco_queue_paused{tag="default"} 1.0' in text


# Tenants


async def test_tenants_count_their_own_runs_and_have_lanes_in_order() -> None:
    config = NatsBackendConfig(http_auth_mode="api_key")
    async with open_memory_gateway_backend(config) as backend, memory_gateway(backend, config) as http:
        one, other = [await new_key(backend.api_keys, name, name) for name in ("one", "other")]
        for key, priority in ((one, "normal"), (one, "high"), (other, "normal"), (other, "low")):
            answer = await http.post("/runs", json={"flow_name": "f", "priority": priority}, headers=key)
            assert answer.status_code == 200
        found = {(await queues(http, **key))["default"]["waiting"] for key in (one, other)}
        assert found == {2}
        record = await backend.queues.get("default")
        assert record is not None
        assert (record.value.tenants, set(record.value.lanes)) == (("one", "other"), {"high", "t1", "t1low"})
        assert (await http.get("/queues")).status_code == 401
        assert (await http.post("/queues/default/pause")).status_code == 401


class Behind:
    """A backend with a feed that shows nothing before it is let go."""

    stale_sec = 0.0
    missed_sec = 0.0

    def __init__(self, backend: MemoryGatewayBackend, feed: str) -> None:
        self._backend = backend
        self._feed = feed
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return self if name == self._feed else getattr(self._backend, name)

    async def follow(self, position: FeedPosition | None) -> AsyncIterator[FeedBatch[Any]]:
        await self.go.wait()
        async for batch in getattr(self._backend, self._feed).follow(position):
            yield batch


FEEDS = ["run_feed", "worker_feed", "flow_feed", "queue_feed", "limit_feed", "limit_holder_feed"]


@pytest.mark.parametrize("feed", FEEDS)
async def test_no_queue_is_listed_before_everything_about_queues_was_read(feed: str) -> None:
    async with new_memory_gateway() as (http, backend):
        await http.post("/queues/night/pause", json={"reason": "maintenance"})
        behind: Any = Behind(backend, feed)
        async with memory_gateway(behind) as second:
            answer = await second.get("/queues")
            assert (answer.status_code, (await second.get("/ready")).status_code) == (503, 503)
            behind.go.set()
            answer = await until(lambda: second.get("/queues"), lambda answer: answer.status_code == 200)
            assert [queue["paused"]["reason"] for queue in answer.json()["items"]] == ["maintenance"]


async def test_the_audit_of_a_resume_names_the_pause_that_the_gateway_has_not_read_yet() -> None:
    async with new_memory_gateway() as (http, backend):
        await http.post("/queues/night/pause", json={"reason": "maintenance"})
        behind: Any = Behind(backend, "queue_feed")
        async with memory_gateway(behind) as second:
            assert (await second.post("/queues/night/resume")).status_code == 200
        answer = await http.get("/audit", params={"action": "queue.resume"})
        assert [record["before"]["reason"] for record in answer.json()["items"]] == ["maintenance"]
