"""REQ-0020: the list of runs is followed live, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.runs.model import RunStatus, TaskState
from pyoco_server.usecases.runs.watch import MAX_RUNS_WAITING
from pyoco_server.wiring import new_run_id
from support.builders import NOW, OWNER, RUN_ID, a_snapshot
from support.gateway import RunningGateway, memory_app
from support.watching import Stream, stream

WATCH = "/runs/watch"


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def news(watching: Stream) -> dict[str, Any]:
    """The next event that tells of a run."""
    while True:
        event = await watching.next()
        if event.data["items"] or event.data["removed"] or event.data["is_partial"]:
            return event.data


async def test_first_the_counts_then_every_run_that_changes(gateway: RunningGateway) -> None:
    await gateway.client.post("/runs", json={"flow_name": "before"})
    async with stream(gateway.app, WATCH) as watching:
        assert watching.headers["content-type"].startswith("text/event-stream")
        first = await watching.next()
        assert first.name == "runs"
        assert (first.data["items"], first.data["counts"]["PENDING"]) == ([], 1)
        submitted = await gateway.client.post("/runs", json={"flow_name": "f"})
        seen = await news(watching)
        (item,) = seen["items"]
        assert item["run_id"] == submitted.json()["run_id"]
        listed = (await gateway.client.get("/runs?flow=f")).json()
        assert item == listed[0], "an item looks as it does in the list"
        assert seen["counts"]["PENDING"] == 2


async def test_the_counts_are_those_of_a_flow_or_tag_when_asked_for(gateway: RunningGateway) -> None:
    for flow, tag in (("f", "a"), ("f", "b"), ("g", "a")):
        await gateway.client.post("/runs", json={"flow_name": flow, "tag": tag})
    for query, pending in (("", 3), ("?flow=f", 2), ("?tag=a", 2), ("?flow=f&tag=b", 1), ("?flow=h", 0)):
        async with stream(gateway.app, WATCH + query) as watching:
            assert (await watching.next()).data["counts"]["PENDING"] == pending, query


async def test_a_run_that_is_removed_is_told(gateway: RunningGateway) -> None:
    revision = await gateway.backend.runs.create(RUN_ID, a_snapshot())
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        await gateway.backend.runs.remove(RUN_ID, revision)
        assert (await news(watching))["removed"] == [RUN_ID]


async def test_a_heartbeat_alone_is_no_news(gateway: RunningGateway) -> None:
    runs = gateway.backend.runs
    revision = await runs.create(RUN_ID, a_snapshot())
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        revision = await runs.update(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER), revision)
        assert (await news(watching))["items"][0]["status"] == "RUNNING"
        revision = await runs.update(
            RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER, heartbeat_at=NOW + 1), revision
        )
        tasks = {"t": TaskState.RUNNING}
        await asyncio.sleep(0)  # the beat is taken in by itself
        idle = await watching.next()
        assert idle.data["items"] == []
        later = {"heartbeat_at": NOW + 2, "updated_at": NOW + 2}
        await runs.update(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER, tasks=tasks, **later), revision)
        assert (await news(watching))["items"][0]["tasks_total"] == 1


async def test_a_reader_that_falls_behind_is_told_to_read_the_list_again(gateway: RunningGateway) -> None:
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        ids = [new_run_id() for _ in range(2 * MAX_RUNS_WAITING)]
        for run_id in ids:
            await gateway.backend.runs.create(run_id, a_snapshot(run_id=run_id))
        told: set[str] = set()
        seen = await news(watching)
        while not seen["is_partial"]:
            assert len(seen["items"]) <= MAX_RUNS_WAITING
            told |= {item["run_id"] for item in seen["items"]}
            seen = await news(watching)
        assert len(seen["items"]) <= MAX_RUNS_WAITING
        assert seen["counts"]["PENDING"] <= len(ids)


async def test_watchers_of_the_list_are_counted_and_sent_home(gateway: RunningGateway) -> None:
    levels = gateway.app.state.gateway.levels
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        assert levels.watchers == 1
        levels.close_watchers()
        await watching.rest()
    assert levels.watchers == 0


async def test_too_many_watchers_of_the_list_are_refused() -> None:
    async with memory_app(max_watchers=1) as gateway, stream(gateway.app, WATCH) as watching:
        await watching.next()
        refused = await gateway.client.get(WATCH)
        assert refused.status_code == 503
