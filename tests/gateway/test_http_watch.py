"""REQ-0019: a run is followed live, as server-sent events."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import RunStatus, TaskRecord, TaskState
from pyoco_server.usecases.api_keys import revoke_api_key
from pyoco_server.usecases.ports.stores import Revision
from pyoco_server.usecases.runs.watch import HEARTBEAT_SEC, MAX_LINES_WAITING
from support.builders import NOW, OWNER, RUN_ID, a_snapshot
from support.gateway import RunningGateway, memory_app, new_key
from support.waiting import PATIENCE_SEC
from support.watching import stream

WATCH = f"/runs/{RUN_ID}/watch"


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def create(gateway: RunningGateway, status: RunStatus = RunStatus.RUNNING, **fields: Any) -> Revision:
    return await gateway.backend.runs.create(RUN_ID, a_snapshot(status, **fields))


async def write(
    gateway: RunningGateway, revision: Revision, status: RunStatus = RunStatus.RUNNING, **fields: Any
) -> Revision:
    return await gateway.backend.runs.update(RUN_ID, a_snapshot(status, **fields), revision)


def line(n: int, text: str = "hello\n") -> LogLine:
    return LogLine(attempt=1, n=n, task="t", stream="stdout", text=text, ts=NOW)


def watchers(gateway: RunningGateway) -> int:
    count: int = gateway.app.state.gateway.levels.watchers
    return count


async def test_a_watcher_sees_what_is_and_then_every_change_until_the_end(gateway: RunningGateway) -> None:
    first, began = await create(gateway), time.time()
    async with stream(gateway.app, WATCH) as watching:
        assert (watching.status, watching.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        assert watching.headers["cache-control"] == "no-store"
        event = await watching.next()
        assert (event.name, event.id, event.data["run_id"]) == ("snapshot", str(first), RUN_ID)
        assert event.data["snapshot"]["status"] == "RUNNING"
        assert began <= event.data["ts"] <= time.time()
        second = await write(gateway, first, tasks={"t": TaskState.RUNNING})
        event = await watching.next()
        assert (event.id, event.data["snapshot"]["tasks"]) == (str(second), {"t": "RUNNING"})
        third = await write(gateway, second, RunStatus.COMPLETED, tasks={"t": TaskState.SUCCEEDED})
        (event,) = await watching.rest()
        assert (event.id, event.data["snapshot"]["status"]) == (str(third), "COMPLETED")
    assert watchers(gateway) == 0


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
async def test_the_watch_of_a_run_that_has_ended_shows_it_and_ends(
    gateway: RunningGateway, status: RunStatus
) -> None:
    await create(gateway, status)
    answer = await gateway.client.get(WATCH)
    assert answer.text.count("event: snapshot") == 1
    assert f'"status":"{status}"' in answer.text


async def test_an_update_is_on_its_way_at_once(gateway: RunningGateway) -> None:
    revision = await create(gateway)
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        await write(gateway, revision, RunStatus.COMPLETED)
        event = await watching.event()
        assert event is not None
        assert event.name == "snapshot", "it is pushed: no timer may stand in between"


@pytest.mark.parametrize(
    ("query", "shown"), [("", False), ("?include=records", True), ("?include=all", True)]
)
async def test_records_are_shown_on_request_only(gateway: RunningGateway, query: str, *, shown: bool) -> None:
    record = TaskRecord(state=TaskState.SUCCEEDED, output=1)
    await create(gateway, RunStatus.COMPLETED, task_records={"t": record})
    async with stream(gateway.app, WATCH + query) as watching:
        assert ("task_records" in (await watching.next()).data["snapshot"]) is shown


async def test_the_last_event_id_resumes(gateway: RunningGateway) -> None:
    first = await create(gateway)
    async with stream(gateway.app, WATCH, last_event_id=str(first)) as watching:
        event = await watching.event()
        assert event is not None
        assert event.name == "heartbeat", "the client has seen that snapshot"
        second = await write(gateway, first)
        assert (await watching.next()).id == str(second)
    async with stream(gateway.app, WATCH, last_event_id=str(first)) as watching:
        assert (await watching.next()).id == str(second), "what it missed"


@pytest.mark.parametrize("known", ["nonsense", "-1", "", "²", "9" * 400])
async def test_a_last_event_id_that_is_none_of_ours_does_no_harm(gateway: RunningGateway, known: str) -> None:
    await create(gateway, RunStatus.COMPLETED)
    answer = await gateway.client.get(WATCH, headers=[(b"last-event-id", known.encode())])
    assert answer.status_code == 200


@pytest.mark.parametrize(("since", "expected"), [(NOW - 1, 1), (NOW, 0), (NOW + 1, 0)])
async def test_since_leaves_out_what_is_not_newer(
    gateway: RunningGateway, since: float, expected: int
) -> None:
    await create(gateway, RunStatus.COMPLETED)
    answer = await gateway.client.get(f"{WATCH}?since={since}")
    assert answer.text.count("event: snapshot") == expected


async def test_a_watch_ends_after_its_timeout(gateway: RunningGateway) -> None:
    await create(gateway)
    began = time.perf_counter()
    answer = await gateway.client.get(f"{WATCH}?timeout_sec=1")
    assert time.perf_counter() - began > 0.9
    assert answer.text.count("event: snapshot") == 1


async def test_a_silent_run_is_heard_of_every_two_seconds(gateway: RunningGateway) -> None:
    assert HEARTBEAT_SEC < 2
    await create(gateway)
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        for _ in range(2):
            event = await watching.next("heartbeat")
            assert event.data["run_id"] == RUN_ID
            assert event.id is None


@pytest.mark.parametrize(
    "query", ["timeout_sec=0", "timeout_sec=601", "timeout_sec=x", "since=nan", "since=x", "include=x"]
)
async def test_what_a_watch_cannot_be_asked_is_refused(gateway: RunningGateway, query: str) -> None:
    """ERR-PYOCO-0002"""
    await create(gateway)
    answer = await gateway.client.get(f"{WATCH}?{query}")
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")


@pytest.mark.parametrize("run_id", [RUN_ID, "nonsense", "*", RUN_ID.upper()])
async def test_the_watch_of_a_run_that_does_not_exist_is_not_found(
    gateway: RunningGateway, run_id: str
) -> None:
    """ERR-PYOCO-0005"""
    answer = await gateway.client.get(f"/runs/{run_id}/watch")
    assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0005")


async def test_what_a_flow_prints_comes_live_and_before_the_end(gateway: RunningGateway) -> None:
    revision = await create(gateway)
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        await gateway.backend.task_logs.append(RUN_ID, [line(1, "one\n")])
        event = await watching.next()
        assert (event.name, [shown["text"] for shown in event.data["lines"]]) == ("log", ["one\n"])
        await gateway.backend.task_logs.append(RUN_ID, [line(2, "two\n")])
        await write(gateway, revision, RunStatus.COMPLETED)
        assert [event.name for event in await watching.rest()] == ["log", "snapshot"]


async def test_a10_a_slow_reader_gets_the_newest_snapshot_and_the_newest_lines(
    gateway: RunningGateway,
) -> None:
    """Nothing piles up for somebody who does not read; the end is never missed."""
    revision = await create(gateway)
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        for n in range(200):
            revision = await write(gateway, revision, params={"n": n})
            await gateway.backend.task_logs.append(RUN_ID, [line(n * 100 + m) for m in range(100)])
            await asyncio.sleep(0)
        await write(gateway, revision, RunStatus.COMPLETED, params={"n": 200})
        events = await watching.rest()
    snapshots = [event for event in events if event.name == "snapshot"]
    assert len(snapshots) <= 6
    assert snapshots[-1].data["snapshot"]["params"] == {"n": 200}
    lines = [shown["n"] for event in events if event.name == "log" for shown in event.data["lines"]]
    assert len(lines) <= 4 * MAX_LINES_WAITING
    assert lines[-1] == 19_999
    assert lines == sorted(lines)


async def test_a_reader_that_leaves_frees_its_place_even_while_it_does_not_read(
    gateway: RunningGateway,
) -> None:
    revision = await create(gateway)
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        for _ in range(5):
            revision = await write(gateway, revision)
            await asyncio.sleep(0.01)
        assert watchers(gateway) == 1
        watching.leave()
    assert watchers(gateway) == 0
    assert gateway.backend.task_logs._followers[RUN_ID] == []


async def test_a10_above_the_limit_a_watcher_is_asked_to_come_later() -> None:
    """PYOCO_MAX_WATCHERS: 503 with Retry-After, before the stream begins."""
    async with memory_app(max_watchers=2) as gateway:
        await create(gateway)
        async with stream(gateway.app, WATCH) as one, stream(gateway.app, WATCH) as two:
            await one.next()
            await two.next()
            answer = await gateway.client.get(f"{WATCH}?timeout_sec=1")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["detail"] == "too many watchers"
            assert (await gateway.client.get(f"/runs/{RUN_ID}")).status_code == 200
        answer = await gateway.client.get(f"{WATCH}?timeout_sec=1")
        assert answer.status_code == 200, "a place is free again"


async def test_a10_a_crowd_that_comes_at_once_stays_within_the_limit() -> None:
    async with memory_app(max_watchers=3) as gateway:
        await create(gateway)
        answers = await asyncio.gather(
            *(gateway.client.get(f"{WATCH}?timeout_sec=1") for _ in range(20)),
        )
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [503] * 17
        assert watchers(gateway) == 0


async def test_watchers_are_counted(gateway: RunningGateway) -> None:
    await create(gateway)
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        assert "pyoco_watchers 1.0" in (await gateway.client.get("/metrics")).text
    assert "pyoco_watchers 0.0" in (await gateway.client.get("/metrics")).text


async def test_a_gateway_that_stops_ends_its_watches_at_once(gateway: RunningGateway) -> None:
    await create(gateway)
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        gateway.app.state.gateway.begin_stop()
        assert await watching.rest() == []  # not even a heartbeat


async def test_the_watch_of_a_run_that_is_removed_ends(gateway: RunningGateway) -> None:
    await create(gateway, owner=OWNER)
    async with stream(gateway.app, WATCH) as watching:
        await watching.next()
        await gateway.backend.runs.remove(RUN_ID, None)
        assert await watching.rest() == []


async def test_a_last_event_id_of_the_future_is_no_error(gateway: RunningGateway) -> None:
    """The bucket was made anew, and its revisions begin again."""
    await create(gateway, RunStatus.COMPLETED)
    answer = await gateway.client.get(WATCH, headers={"Last-Event-ID": "999999"})
    assert (answer.status_code, answer.text) == (200, "")


@pytest.mark.parametrize("path", [f"/runs/{RUN_ID}/watch", "/runs/watch"])
async def test_the_streams_of_a_revoked_key_end(path: str) -> None:
    """D55, A17: they went on for as long as their client wanted."""
    async with memory_app(http_auth_mode="api_key") as gateway:
        keys = gateway.backend.api_keys
        ours, theirs = await new_key(keys, "acme", "key-a"), await new_key(keys, "acme", "key-b")
        await gateway.backend.runs.create(RUN_ID, a_snapshot(tenant_id="acme"))
        async with (
            stream(gateway.app, path, x_api_key=ours["X-API-Key"]) as revoked,
            stream(gateway.app, path, x_api_key=theirs["X-API-Key"]) as other,
        ):
            assert await revoked.event() is not None
            assert await other.event() is not None
            await revoke_api_key(keys, "key-a", lambda: NOW)
            async with asyncio.timeout(PATIENCE_SEC):
                await revoked.rest()
            assert await other.event() is not None, "another key of the tenant"
