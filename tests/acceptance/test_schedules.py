"""Schedules on gateways that are killed again and again: every tick has one record and at most one run."""

import asyncio
import os
import random
import time
from collections import Counter
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from support.gateways import GatewayProcess, gateways
from support.nats_server import jobs_waiting
from support.programs import Programs
from support.waiting import until


async def put_schedules(http: httpx2.AsyncClient, count: int, **fields: Any) -> list[str]:
    names = [f"every-second-{number}" for number in range(count)]
    body = {"target": {"flow": "report"}, "every_sec": 1, "overlap": "allow", **fields}
    for start in range(0, count, 50):
        answers = await asyncio.gather(
            *(http.put(f"/schedules/{name}", json=body) for name in names[start : start + 50])
        )
        assert {answer.status_code for answer in answers} == {201}
    return names


async def history(http: httpx2.AsyncClient, name: str) -> list[dict[str, Any]]:
    """All ticks, oldest first."""
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {"limit": 200}
    while True:
        page = (await http.get(f"/schedules/{name}/ticks", params=params)).json()
        found += page["items"]
        if page["next_cursor"] is None:
            return found[::-1]
        params["cursor"] = page["next_cursor"]


async def stop_all(http: httpx2.AsyncClient, names: list[str]) -> None:
    """Once each has done what was due."""
    for name in names:
        shown = await http.get(f"/schedules/{name}")
        now = time.time()

        async def has_caught_up(name: str = name, now: float = now) -> bool:
            found = (await http.get(f"/schedules/{name}")).json()
            return bool(found["next_due_at"] > now)

        assert shown.status_code == 200
        await until(has_caught_up)
        assert (await http.post(f"/schedules/{name}/pause")).status_code == 200


def check_ticks(ticks: list[dict[str, Any]], first: float) -> None:
    """Every second has one record: none is missing, none is there twice."""
    due = [(tick["due_at"], tick.get("count", 1)) for tick in ticks if tick.get("reason") != "paused"]
    expected = first
    for due_at, count in due:
        assert due_at == pytest.approx(expected, abs=0.0005)
        expected += count
    runs = [tick["run_id"] for tick in ticks if tick["status"] == "STARTED"]
    assert len(set(runs)) == len(runs)


async def torment(pair: list[GatewayProcess], kills: int, seconds: float, rng: random.Random) -> None:
    """Kill one of them and start it again, at least so often and so long."""
    done, deadline = 0, time.monotonic() + seconds
    while done < kills or time.monotonic() < deadline:
        victim = pair[done % 2]
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        await victim.kill()
        await victim.start()
        done += 1


async def survive(
    config: NatsBackendConfig, programs: Programs, *, schedules: int, kills: int, seconds: float = 0.0
) -> Counter[str]:
    seed = int(os.environ.get("SEED", "7"))
    async with gateways(config, programs, 2) as pair:
        http = pair[0].http
        names = await put_schedules(http, schedules)
        first = {name: (await http.get(f"/schedules/{name}")).json()["created_at"] + 1 for name in names}
        await torment(pair, kills, seconds, random.Random(seed))  # noqa: S311 - a plan
        await stop_all(http, names)
        statuses: Counter[str] = Counter()
        started = 0
        for name in names:
            ticks = await history(http, name)
            check_ticks(ticks, first[name])
            statuses.update({tick["status"]: tick.get("count", 1) for tick in ticks})
            started += sum(tick["status"] == "STARTED" for tick in ticks)
        assert await jobs_waiting(config) == started
        return statuses


async def test_killed_gateways_lose_and_double_no_tick(config: NatsBackendConfig, programs: Programs) -> None:
    statuses = await survive(config, programs, schedules=20, kills=6)
    assert statuses["STARTED"] > 0


@pytest.mark.long
async def test_a_thousand_schedules_every_second_survive_two_minutes_of_kills(
    config: NatsBackendConfig, programs: Programs
) -> None:
    await survive(config, programs, schedules=1_000, kills=20, seconds=120)


async def test_after_an_outage_of_all_gateways_the_ticks_are_caught_up_as_asked(
    config: NatsBackendConfig, programs: Programs
) -> None:
    async with gateways(config, programs, 1) as (gateway,):
        http = gateway.http
        for catch_up in ("latest", "none", "all"):
            body = {"target": {"flow": "f"}, "every_sec": 4, "overlap": "allow", "catch_up": catch_up}
            assert (await http.put(f"/schedules/{catch_up}", json=body)).status_code == 201
        await gateway.kill()
        killed_at = time.time()
        await asyncio.sleep(18)
        await gateway.start()
        ready_at = time.time()
        started = {}
        for catch_up in ("latest", "none", "all"):
            await stop_all(http, [catch_up])
            ticks = await history(http, catch_up)
            missed = [tick for tick in ticks if killed_at < tick["due_at"] < ready_at - 10]
            assert len(missed) >= 2
            started[catch_up] = {tick["status"] for tick in missed}
        assert started == {"latest": {"MISSED"}, "none": {"MISSED"}, "all": {"STARTED"}}
