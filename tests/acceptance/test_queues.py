"""Priorities, pauses and fair shares, with real workers."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.fleet import FEATURES
from pyoco_server.wiring import open_backend
from support.builders import a_worker
from support.gateway import gateway, new_key
from support.installation import Lab
from support.nats_server import raw_nats
from support.waiting import until

Labs = Callable[..., Awaitable[Lab]]

WEIGHED = {"low": 60, "normal": 180, "high": 640}
"""So many that each still waits when the last high run starts."""


async def submit_many(lab: Lab, count: int, pause: float = 0.0, **fields: Any) -> list[str]:
    body = {"flow_name": "tiny", "params": {"pause": pause}, **fields}
    found: list[str] = []
    while len(found) < count:
        answer = await lab.http.post("/runs/batch", json={"runs": [body] * min(1_000, count - len(found))})
        assert answer.status_code == 200, answer.text
        found += [item["run_id"] for item in answer.json()["results"]]
    return found


async def queue(lab: Lab, tag: str = "default") -> dict[str, Any]:
    answer = await lab.http.get("/queues")
    assert answer.status_code == 200, answer.text
    return next((one for one in answer.json()["items"] if one["tag"] == tag), {})


async def started(lab: Lab, run_ids: list[str]) -> list[dict[str, Any]]:
    """Those that have started, in the order of their starts."""
    runs = [await lab.run(run_id) for run_id in run_ids]
    return sorted((run for run in runs if run["start_time"]), key=lambda run: run["start_time"])


@pytest.mark.parametrize("flooded", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
async def test_a_high_run_behind_a_flood_of_low_ones_starts_next(labs: Labs, flooded: int) -> None:
    lab = await labs()
    async with lab.worker(concurrency=2):
        holding = [await lab.submit("steps", {"priority": "low"}) for _ in range(2)]
        await lab.reached("in-first")
        flood = await submit_many(lab, flooded, priority="low")
        high = await lab.submit("tiny", {"priority": "high"})
        normal = await lab.submit("tiny")
        lab.let("go")
        run = await lab.ended(high)
        await lab.ended(normal)
        await lab.all_ended(holding)
        before = [one for one in await started(lab, flood[:50]) if one["start_time"] < run["start_time"]]
    assert (run["status"], run["priority"]) == ("COMPLETED", "high")
    assert len(before) <= 3 * 2, "at most what a worker holds: three times its slots"


async def test_runs_that_wait_for_the_first_worker_start_by_priority(labs: Labs) -> None:
    lab = await labs()
    low = await submit_many(lab, 5, priority="low")
    normal = await submit_many(lab, 5)
    high = await submit_many(lab, 5, priority="high")
    async with lab.worker():
        runs = await lab.all_ended([*low, *normal, *high])
    assert {run["status"] for run in runs} == {"COMPLETED"}
    assert {run["attempt"] for run in runs} == {1}, "nothing was taken and given back"
    order = [run["priority"] for run in sorted(runs, key=lambda run: run["start_time"])]
    before = Counter(order[: len(order) - order[::-1].index("high")])
    # What the worker takes first is a race of the queues, up to three times its slots. Then weights decide.
    assert before["normal"] + before["low"] <= 3 + 2, order


@pytest.mark.slow
async def test_priorities_share_a_busy_worker_by_weight(labs: Labs) -> None:
    """16:4:1, counted while all three wait."""
    lab = await labs()
    ids = {name: await submit_many(lab, count, priority=name) for name, count in WEIGHED.items()}
    async with lab.worker(concurrency=2):
        await lab.all_ended(ids["high"])
    runs = {name: await started(lab, of) for name, of in ids.items()}
    last = runs["high"][-1]["start_time"]
    share = {name: sum(run["start_time"] < last for run in of) for name, of in runs.items()}
    assert share["high"] / share["normal"] == pytest.approx(4, rel=0.2), share
    assert share["normal"] / share["low"] == pytest.approx(4, rel=0.2), share


async def test_an_idle_worker_gets_a_high_run_as_fast_as_any(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker():
        first = await lab.ended(await lab.submit("tiny", {"priority": "high"}))
        waits = {"normal": [], "high": []}  # type: ignore[var-annotated]
        for _ in range(10):
            for priority, found in waits.items():
                run = await lab.ended(await lab.submit("tiny", {"priority": priority}))
                found.append(run["start_time"] - run["submitted_at"])
    assert first["status"] == "COMPLETED", "also the first of all, whose lane has to be made"
    assert sorted(waits["high"])[5] <= 3 * sorted(waits["normal"])[5] + 0.02


async def test_the_next_try_of_a_high_run_is_high(labs: Labs) -> None:
    lab = await labs()
    retry = {"max_attempts": 3, "backoff_sec": 0.05, "jitter": 0}
    async with lab.worker():
        run = await lab.ended(
            await lab.submit("flaky", {"priority": "high", "retry": retry, "delay_sec": 0.2}, failures=2)
        )
    assert (run["status"], len(run["tries"]), run["priority"]) == ("COMPLETED", 2, "high")


async def test_an_older_worker_gets_high_and_low_runs(labs: Labs) -> None:
    """It takes jobs of the plain subject only."""
    lab = await labs()
    async with open_backend(lab.config, "older") as backend, raw_nats(lab.config.nats_url) as client:
        stranded = await lab.submit("tiny", {"priority": "high"})
        older = replace(a_worker(worker_id="older"), features=FEATURES, slots=None)
        await backend.workers.create("older", older)
        jobs = await client.jetstream().pull_subscribe(
            f"{lab.config.work_subject_prefix}.default", "pyoco_workers_default", lab.config.work_stream
        )
        messages = await jobs.fetch(1, timeout=30)
        assert stranded in messages[0].data.decode(), "submitted before it came"
        await messages[0].ack()
        for priority in ("high", "low"):
            run_id = await lab.submit("tiny", {"priority": priority})
            messages = await jobs.fetch(1, timeout=30)
            assert run_id in messages[0].data.decode()
            await messages[0].ack()


# Pauses


async def test_a_paused_queue_holds_what_waits_and_lets_go_on_what_runs(labs: Labs) -> None:
    lab = await labs()
    async with lab.worker():
        running = await lab.submit("steps")
        await lab.reached("in-first")
        queued = await lab.submit("tiny")
        answer = await lab.http.post("/queues/default/pause", json={"reason": "deployment"})
        assert (answer.status_code, answer.json()["paused"]["reason"]) == (200, "deployment")
        later = [await lab.submit("tiny", {"priority": priority}) for priority in ("high", "normal", "low")]
        lab.let("go")
        assert (await lab.ended(running))["status"] == "COMPLETED"
        for run_id in (queued, *later):
            run = await lab.run(run_id)
            assert run["status"] == "PENDING"
            paused = run["waiting_for"]["paused"]
            assert (paused["tag"], paused["reason"], paused["until"]) == ("default", "deployment", None)
        found = await queue(lab)
        assert (found["waiting"], found["running"], found["workers"]) == (4, 0, 1)
        assert found["oldest_wait_sec"] > 0
        async with lab.worker("w2") as second:
            await until(lambda: queue(lab), lambda one: one["workers"] == 2)
            await asyncio.sleep(0.5)  # time in which it could take something
            assert {(await lab.run(run_id))["status"] for run_id in (queued, *later)} == {"PENDING"}
            assert await deliveries(lab) == 1
            # Killed, it could still be sent a job in the moment before NATS notices.
            await asyncio.to_thread(second.ends_after, signal.SIGTERM)
        answer = await lab.http.post("/queues/default/resume")
        assert (answer.status_code, answer.json()["paused"]) == (200, None)
        runs = await lab.all_ended([queued, *later])
    assert {(run["status"], run["waiting_for"]) for run in runs} == {("COMPLETED", None)}


async def deliveries(lab: Lab) -> int:
    async with raw_nats(lab.config.nats_url) as client:
        lanes = await client.jetstream().consumers_info(lab.config.work_stream)
        return sum(lane.delivered.consumer_seq for lane in lanes)


async def test_a_pause_survives_its_gateway_and_ends_by_itself(labs: Labs) -> None:
    lab = await labs()
    await lab.http.post("/queues/default/pause", json={"reason": "night"})
    run_id = await lab.submit("tiny")
    async with gateway(lab.config) as http:
        answer = await until(lambda: http.get("/queues"), lambda answer: answer.status_code == 200)
        assert [one["paused"]["reason"] for one in answer.json()["items"]] == ["night"]
        async with lab.worker() as worker:
            await asyncio.sleep(0.5)  # time in which it could take something
            assert (await lab.run(run_id))["status"] == "PENDING"
            until_at = datetime.fromtimestamp(datetime.now(UTC).timestamp() + 1.5, UTC)
            answer = await http.post("/queues/default/pause", json={"until": until_at.isoformat()})
            assert answer.json()["paused"]["until"] == pytest.approx(until_at.timestamp(), abs=0.01)
            run = await lab.ended(run_id)
            worker.send(signal.SIGTERM)
        assert run["start_time"] >= until_at.timestamp() - 0.1
        await until(lambda: queue(lab), lambda one: one.get("paused") is None)


# Fairness


@pytest.mark.parametrize("flooded", [300, pytest.param(10_000, marks=pytest.mark.long)])
async def test_tenants_share_a_tag(labs: Labs, flooded: int) -> None:
    lab = await labs(http_auth_mode="api_key")
    async with open_backend(lab.config, "admin") as backend:
        one, other = [await new_key(backend.api_keys, name, f"k{name}") for name in ("one", "other")]
    async with lab.worker():
        lab.http.headers.update(one)
        flood = await submit_many(lab, flooded, pause=0.03)
        await until(lambda: lab.run(flood[0]), lambda run: run["status"] != "PENDING")
        lab.http.headers.update(other)
        run = await lab.ended(await lab.submit("tiny", pause=0.03))
        shared = await lab.all_ended(await submit_many(lab, 20, pause=0.03))
        lab.http.headers.update(one)
        first = await started(lab, flood[:2_000])
    before = [ran for ran in first if run["submitted_at"] < ran["start_time"] < run["start_time"]]
    assert len(before) <= 3, "at most what a worker holds"
    starts = sorted(ran["start_time"] for ran in shared)
    between = [sum(a < ran["start_time"] < b for ran in first) for a, b in pairwise(starts)]
    assert sum(between) / len(between) == pytest.approx(1.0, abs=0.5), "they take turns"
