"""Statistics of ended runs over HTTP."""

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.wiring import new_run_id
from support.builders import a_snapshot
from support.gateway import RunningGateway, another_gateway, memory_app, memory_gateway, new_key
from support.waiting import until

NOW = time.time()
Answer = dict[str, Any]


@pytest.fixture
async def world() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def end(world: RunningGateway, status: str = "COMPLETED", **changed: Any) -> str:
    """An ended run: it waited for 2 s and ran for 10 s."""
    run_id, ended = new_run_id(), changed.pop("end_time", NOW)
    times = {"submitted_at": ended - 12, "start_time": ended - 10, "end_time": ended}
    run = a_snapshot(RunStatus(status), run_id=run_id, **{"tag": "cpu", **times, **changed})
    await world.backend.runs.create(run_id, run)
    return run_id


async def stats(http: httpx2.AsyncClient, headers: dict[str, str] | None = None, **query: Any) -> Answer:
    answer = await http.get("/stats", params={"since": NOW - 600, **query}, headers=headers)
    assert answer.status_code == 200, answer.text
    found: Answer = answer.json()
    return found


def counts(found: Answer) -> dict[str, int]:
    return {one["key"]: sum(point["count"] for point in one["points"]) for one in found["series"]}


async def counted(http: httpx2.AsyncClient, number: int, **query: Any) -> Answer:
    """The statistics once they have so many runs."""

    def has_all(found: Answer) -> bool:
        return sum(counts(found).values()) == number

    return await until(lambda: stats(http, **query), has_all)


async def test_ended_runs_are_counted_with_quantiles(world: RunningGateway) -> None:
    for _ in range(3):
        await end(world)
    await end(world, "FAILED", start_time=NOW - 1)
    found = await counted(world.client, 4)
    assert (found["by"], found["bucket"]) == ("status", "minute")
    assert counts(found) == {"COMPLETED": 3, "FAILED": 1}
    completed, failed = found["series"]
    (point,) = completed["points"]
    assert point["at"] == NOW // 60 * 60
    assert point["wait"] == pytest.approx({"p50": 2, "p95": 2, "p99": 2}, rel=0.04)
    assert point["duration"] == pytest.approx({"p50": 10, "p95": 10, "p99": 10}, rel=0.04)
    assert failed["points"][0]["wait"] == pytest.approx({"p50": 11, "p95": 11, "p99": 11}, rel=0.04)


async def test_a_run_that_never_started_has_no_times(world: RunningGateway) -> None:
    await end(world, "CANCELLED", start_time=None)
    (series,) = (await counted(world.client, 1))["series"]
    nothing = {"p50": None, "p95": None, "p99": None}
    assert (series["points"][0]["wait"], series["points"][0]["duration"]) == (nothing, nothing)


async def test_filters_combine(world: RunningGateway) -> None:
    await end(world, flow_name="a", tag="cpu")
    await end(world, "FAILED", flow_name="a", tag="gpu")
    await end(world, flow_name="b", tag="gpu")
    assert counts(await counted(world.client, 3, by="flow")) == {"a": 2, "b": 1}
    assert counts(await stats(world.client, by="tag")) == {"cpu": 1, "gpu": 2}
    assert counts(await stats(world.client, by="tag", flow="a")) == {"cpu": 1, "gpu": 1}
    assert counts(await stats(world.client, by="flow", tag="gpu", status="FAILED")) == {"a": 1}
    assert counts(await stats(world.client, by="flow", tag="gpu", flow="c")) == {}


async def test_only_runs_that_ended_in_the_time_are_counted(world: RunningGateway) -> None:
    await end(world)
    await end(world, end_time=NOW - 3 * 3600)
    assert counts(await counted(world.client, 1)) == {"COMPLETED": 1}
    hours = await counted(world.client, 2, bucket="hour", since=NOW - 5 * 3600)
    assert [point["at"] for point in hours["series"][0]["points"]] == [
        (NOW - 3 * 3600) // 3600 * 3600,
        NOW // 3600 * 3600,
    ]
    early = await stats(world.client, bucket="hour", since=NOW - 5 * 3600, until=NOW - 2 * 3600)
    assert counts(early) == {"COMPLETED": 1}


async def test_a_time_before_the_first_kept_bucket_is_shown_as_that(world: RunningGateway) -> None:
    for bucket, days in (("minute", 1), ("hour", 90)):
        found = await stats(world.client, bucket=bucket, since=0)
        assert found["since"] == pytest.approx(time.time() - days * 86_400, abs=3700)


async def test_deleted_runs_still_count(world: RunningGateway) -> None:
    """Also one that is deleted before the statistics had time to count it."""
    await end(world)
    await counted(world.client, 1)
    for _ in range(3):
        run_id = await end(world)
        answer = await world.client.delete(f"/runs/{run_id}")
        assert answer.status_code == 200, answer.text
    assert counts(await counted(world.client, 4)) == {"COMPLETED": 4}


async def test_a_run_that_is_retried_counts_once(world: RunningGateway) -> None:
    await end(world)
    await counted(world.client, 1)
    run_id = await end(world, "FAILED")
    answer = await world.client.post(f"/runs/{run_id}/retry")
    assert answer.status_code == 200, answer.text
    linked = await until(
        lambda: world.client.get(f"/runs/{run_id}"), lambda found: found.json()["retried_as"] is not None
    )
    assert linked.json()["retried_as"] == answer.json()["run_id"]
    await end(world)
    assert counts(await counted(world.client, 3)) == {"COMPLETED": 2, "FAILED": 1}


async def test_every_gateway_answers_the_same(world: RunningGateway) -> None:
    async with another_gateway(world) as second:
        await end(world)
        first = await counted(world.client, 1, until=NOW + 60)
        assert await stats(second.client, until=NOW + 60) == first


async def test_a_tenant_sees_its_own_runs() -> None:
    async with memory_app(http_auth_mode="api_key") as world:
        acme = await new_key(world.backend.api_keys, "acme", "a1", "read")
        other = await new_key(world.backend.api_keys, "other", "o1", "read")
        await end(world, tenant_id="acme")
        await end(world, tenant_id="other")
        await end(world, tenant_id="other")
        await counted(world.client, 1, headers=acme)
        await counted(world.client, 2, headers=other)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"by": "worker"}, "by"),
        ({"bucket": "day"}, "bucket"),
        ({"status": "RUNNING"}, "status"),
        ({"since": "yesterday"}, "since"),
        ({"since": NOW, "until": NOW - 1}, "since"),
        ({"flows": "a"}, "flows"),
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(
    world: RunningGateway, query: dict[str, Any], named: str
) -> None:
    answer = await world.client.get("/stats", params=query)
    assert answer.status_code == 422, answer.text
    assert named in answer.json()["detail"]


async def test_metrics_show_what_was_counted(world: RunningGateway) -> None:
    await end(world)
    await counted(world.client, 1)
    metrics = (await world.client.get("/metrics")).text
    assert "pyoco_stats_runs_counted_total 1.0" in metrics


async def test_another_gateway_goes_on_with_counting(world: RunningGateway) -> None:
    await end(world)
    await counted(world.client, 1)
    async with memory_gateway(world.backend) as second:
        await end(world)
        await counted(second, 2)
