"""Schedules on real gateways: killed again and again, all down for a while, given the same tick twice."""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from itertools import groupby
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.schedules.model import ON_TIME_SEC
from support.gateways import GatewayProcess, gateways
from support.nats_server import jobs_waiting, messages_in, raw_nats
from support.programs import Programs
from support.waiting import until

AT_ONCE = 50


async def put_schedules(http: httpx2.AsyncClient, count: int, **fields: Any) -> dict[str, float]:
    """Their names and first ticks."""
    names = [f"every-second-{number}" for number in range(count)]
    body = {"target": {"flow": "report"}, "every_sec": 1, "overlap": "allow", **fields}
    first: dict[str, float] = {}
    for start in range(0, count, AT_ONCE):
        answers = await asyncio.gather(
            *(http.put(f"/schedules/{name}", json=body) for name in names[start : start + AT_ONCE])
        )
        assert {answer.status_code for answer in answers} == {201}
        first |= {made["id"]: made["created_at"] + 1 for made in (answer.json() for answer in answers)}
    return first


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


async def paused(http: httpx2.AsyncClient, name: str) -> list[dict[str, Any]]:
    """The ticks of a schedule that was paused once it had done what was due."""
    now = time.time()

    async def has_caught_up() -> bool:
        return bool((await http.get(f"/schedules/{name}")).json()["next_due_at"] > now)

    await until(has_caught_up)
    assert (await http.post(f"/schedules/{name}/pause")).status_code == 200
    return [tick for tick in await history(http, name) if tick.get("reason") != "paused"]


def check_ticks(ticks: list[dict[str, Any]], first: float) -> None:
    """Every second has one record: none is missing, none is there twice."""
    expected = first
    for tick in ticks:
        assert tick["due_at"] == pytest.approx(expected, abs=0.0005)
        expected += tick.get("count", 1)
    runs = [tick["run_id"] for tick in ticks if tick["status"] == "STARTED"]
    assert len(set(runs)) == len(runs)


async def torment(pair: list[GatewayProcess], kills: int, seconds: float, rng: random.Random) -> int:
    """Kill one of them and start it again, at least so often and so long."""
    done, deadline = 0, time.monotonic() + seconds
    while done < kills or time.monotonic() < deadline:
        victim = pair[done % 2]
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        await victim.kill()
        await victim.start()
        done += 1
    return done


async def survive(
    config: NatsBackendConfig, programs: Programs, *, schedules: int, kills: int, seconds: float = 0.0
) -> Counter[str]:
    """What became of the ticks."""
    seed = int(os.environ.get("SEED", "7"))
    async with gateways(config, programs, 2) as pair:
        http = pair[0].http
        first = await put_schedules(http, schedules)
        found = Counter({"kills": await torment(pair, kills, seconds, random.Random(seed))})  # noqa: S311
        names = list(first)
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            for name, ticks in zip(
                some, await asyncio.gather(*(paused(http, one) for one in some)), strict=True
            ):
                check_ticks(ticks, first[name])
                for tick in ticks:
                    found[tick["status"]] += tick.get("count", 1)
        assert await jobs_waiting(config) == found["STARTED"]
        assert await messages_in(config, f"KV_{config.runs_kv_bucket}") == found["STARTED"]
        return found


async def test_killed_gateways_lose_and_double_no_tick(config: NatsBackendConfig, programs: Programs) -> None:
    found = await survive(config, programs, schedules=20, kills=4)
    assert found["STARTED"] > 20


@pytest.mark.long
async def test_a_thousand_schedules_every_second_survive_two_minutes_of_kills(
    config: NatsBackendConfig, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    found = await survive(config, programs, schedules=1_000, kills=6, seconds=120)
    with capsys.disabled():
        sys.stdout.write(f"{dict(found)}\n")
    assert found["STARTED"] > 10_000


@pytest.mark.long
async def test_schedules_survive_hundreds_of_kills(
    config: NatsBackendConfig, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    found = await survive(config, programs, schedules=20, kills=int(os.environ.get("KILLS", "300")))
    with capsys.disabled():
        sys.stdout.write(f"{dict(found)}\n")
    assert found["STARTED"] > 20 * found["kills"] // 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "every_sec"), [(14.0, 4), pytest.param(90.0, 20, marks=pytest.mark.long)]
)
async def test_after_an_outage_of_all_gateways_the_ticks_are_caught_up_as_asked(
    config: NatsBackendConfig, programs: Programs, seconds: float, every_sec: int
) -> None:
    async with gateways(config, programs, 2) as pair:
        http = pair[0].http
        for catch_up in ("latest", "none", "all"):
            body = {"target": {"flow": "f"}, "every_sec": every_sec, "overlap": "allow", "catch_up": catch_up}
            assert (await http.put(f"/schedules/{catch_up}", json=body)).status_code == 201
        for gateway in pair:
            await gateway.kill()
        killed_at = time.time()
        await asyncio.sleep(seconds)
        for gateway in pair:
            await gateway.start()
        for catch_up in ("latest", "none", "all"):
            ticks = [tick for tick in await paused(http, catch_up) if tick["due_at"] > killed_at]
            fired_at, missed = next(groupby(ticks, lambda tick: tick["fired_at"]))
            check_caught_up(catch_up, fired_at, list(missed))
            due = [tick["due_at"] for tick in ticks]
            assert due == [due[0] + every_sec * number for number in range(len(due))]


def check_caught_up(catch_up: str, fired_at: float, missed: list[dict[str, Any]]) -> None:
    assert len(missed) >= 3
    statuses = [tick["status"] for tick in missed]
    late = sum(tick["due_at"] < fired_at - ON_TIME_SEC for tick in missed)
    match catch_up:
        case "latest":
            assert statuses == ["MISSED"] * (len(missed) - 1) + ["STARTED"]
        case "none":
            assert statuses == ["MISSED"] * late + ["STARTED"] * (len(missed) - late)
        case _:
            assert statuses == ["STARTED"] * len(missed)


async def test_gateways_that_get_the_same_tick_start_one_run(
    config: NatsBackendConfig, programs: Programs
) -> None:
    async with gateways(config, programs, 2) as pair, raw_nats(config.nats_url) as nats:
        http = pair[0].http
        body = {"target": {"flow": "f"}, "every_sec": 1, "overlap": "allow"}
        first = (await http.put("/schedules/s", json=body)).json()["next_due_at"]
        while time.time() < first + 5:
            for _ in range(10):
                await nats.publish(
                    f"{config.timers_subject_prefix}.due.schedule", headers={"Pyoco-Timer-Key": "=.s"}
                )
            await asyncio.sleep(0.1)
        ticks = await paused(http, "s")
        check_ticks(ticks, first)
        assert [tick["status"] for tick in ticks] == ["STARTED"] * len(ticks)
        assert await jobs_waiting(config) == len(ticks) >= 5
