"""REQ-0006, REQ-0014, REQ-0017, REQ-0019: lists, figures and the watch of a gateway, in memory."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from pyoco_server.config import NatsBackendConfig
from pyoco_server.testing import open_memory_gateway_backend
from pyoco_server.usecases.manage_api_keys import IssueApiKey
from pyoco_server.wiring import new_api_key, new_salt
from support.gateway import memory_gateway, new_memory_gateway
from support.waiting import until

AUTH_ON = NatsBackendConfig(http_auth_mode="api_key")


async def submit(client: httpx2.AsyncClient, flow: str = "f", **headers: str) -> str:
    answer = await client.post("/runs", json={"flow_name": flow}, headers=headers)
    run_id: str = answer.json()["run_id"]
    return run_id


def snapshots(text: str) -> list[dict[str, Any]]:
    """The snapshots of an event stream, in order."""
    events = [dict(line.split(": ", 1) for line in part.splitlines()) for part in text.split("\n\n") if part]
    return [json.loads(event["data"])["snapshot"] for event in events if event["event"] == "snapshot"]


@asynccontextmanager
async def gateway_with_two_tenants() -> AsyncIterator[tuple[httpx2.AsyncClient, dict[str, str]]]:
    """A client, and a key for each of `ours` and `theirs`."""
    async with open_memory_gateway_backend(AUTH_ON) as backend:
        issue = IssueApiKey(backend.api_keys, lambda: 1.0, "")
        keys = {name: (await issue(name, new_api_key(), new_salt())).api_key for name in ("ours", "theirs")}
        async with memory_gateway(backend, AUTH_ON) as client:
            yield client, keys


async def test_a_list_is_an_array_with_the_newest_first() -> None:
    """REQ-0006"""
    async with new_memory_gateway() as (client, _):
        first, second = await submit(client), await submit(client, "g")
        assert [run["run_id"] for run in (await client.get("/runs")).json()] == [second, first]
        assert [run["run_id"] for run in (await client.get("/runs?flow=f")).json()] == [first]


async def test_pages_follow_each_other_without_a_gap_or_a_repeat() -> None:
    """REQ-0006"""
    async with new_memory_gateway() as (client, _):
        wanted = {await submit(client) for _ in range(5)}
        seen: list[str] = []
        page = (await client.get("/runs?updated_after=0&limit=2")).json()
        while True:
            seen += [run["run_id"] for run in page["items"]]
            if page["next_cursor"] is None:
                break
            query = {"updated_after": 0, "limit": 2, "cursor": page["next_cursor"]}
            page = (await client.get("/runs", params=query)).json()
        assert len(seen) == 5
        assert set(seen) == wanted


async def test_a_cursor_that_is_none_is_refused() -> None:
    """REQ-0006"""
    async with new_memory_gateway() as (client, _):
        answer = await client.get("/runs?cursor=nonsense")
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0017")


async def test_metrics_count_runs_by_status() -> None:
    """REQ-0014"""
    async with new_memory_gateway() as (client, _):
        await submit(client)
        await client.post(f"/runs/{await submit(client)}/cancel")

        async def lines() -> list[str]:
            return (await client.get("/metrics")).text.splitlines()

        found = await until(lines, lambda lines: 'pyoco_runs_total{status="CANCELLED"} 1.0' in lines)
    assert 'pyoco_runs_total{status="PENDING"} 1.0' in found
    assert "pyoco_workers_alive_total 0.0" in found
    assert "pyoco_dlq_messages_total 0.0" in found


async def test_a_watch_tells_what_is_and_what_changes_and_ends_with_the_run() -> None:
    """REQ-0019"""
    async with new_memory_gateway() as (client, _):
        run_id = await submit(client)
        watching = asyncio.ensure_future(client.get(f"/runs/{run_id}/watch"))

        async def watchers() -> str:
            return (await client.get("/metrics")).text

        await until(watchers, lambda text: "pyoco_watchers 1.0" in text)
        await client.post(f"/runs/{run_id}/cancel")
        answer = await watching
    assert answer.headers["content-type"].startswith("text/event-stream")
    statuses = [snapshot["status"] for snapshot in snapshots(answer.text)]
    assert statuses[-1] == "CANCELLED"
    assert set(statuses) <= {"PENDING", "CANCELLING", "CANCELLED"}


async def test_the_runs_of_a_tenant_are_listed_watched_and_cancelled_by_that_tenant_only() -> None:
    """REQ-0017"""
    async with gateway_with_two_tenants() as (client, keys):
        ours, theirs = {"X-API-Key": keys["ours"]}, {"X-API-Key": keys["theirs"]}
        run_id = await submit(client, **ours)
        assert [run["run_id"] for run in (await client.get("/runs", headers=ours)).json()] == [run_id]
        assert (await client.get("/runs", headers=theirs)).json() == []
        for path in ("", "/tasks", "/logs", "/watch"):
            assert (await client.get(f"/runs/{run_id}{path}", headers=theirs)).status_code == 404
        assert (await client.post(f"/runs/{run_id}/cancel", headers=theirs)).status_code == 404
        assert (await client.get(f"/runs/{run_id}", headers=ours)).json()["status"] == "PENDING"
