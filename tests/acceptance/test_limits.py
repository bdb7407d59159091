"""Limits on real gateways that are killed in turn: never too many, all runs end, no place stays empty."""

import asyncio
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.changes import Claim, Conclude, Refusal
from pyoco_server.domain.runs.model import Owner, RunSnapshot, RunStatus
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.queues import Delivery
from pyoco_server.usecases.ports.stores import Change
from pyoco_server.wiring import JetStreamBackend, open_gateway_backend, open_worker_backend
from support.gateways import GatewayProcess, gateways
from support.programs import Programs
from support.waiting import until

MAX_RUNNING = 3
BATCH = 100
BODY = {"match": {"flow": "sync"}, "key": "params.customer", "max_running": MAX_RUNNING}


class Ledger:
    """Who had a place when, from the writes of runs in their order."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._holders: dict[str, set[str]] = defaultdict(set)
        self._waiting: dict[str, set[str]] = defaultdict(set)
        self._since: dict[str, float] = {}
        self.admitted_at: dict[str, float] = {}
        self.needed_sec = 0.0
        self.used_sec = 0.0

    def look(self, changes: list[Change[RunSnapshot]]) -> None:
        for change in changes:
            run = change.value
            if run is not None and run.limits:
                self._count(run.limits[0].key, run, change.stored_at or 0.0)

    def _count(self, key: str, run: RunSnapshot, at: float) -> None:
        held, waiting = self._holders[key], self._waiting[key]
        if waiting:
            passed = max(0.0, at - self._since.get(key, at))
            self.needed_sec += passed
            self.used_sec += passed * len(held) / MAX_RUNNING
        self._since[key] = at
        held.discard(run.run_id)
        waiting.discard(run.run_id)
        if run.status.is_terminal:
            self.ended[run.status.value] += 1
        else:
            (waiting if run.is_held else held).add(run.run_id)
        if not run.is_held:
            self.admitted_at.setdefault(run.run_id, at)
        self.most[key] = max(self.most[key], len(held))


class Workers:
    """Takes jobs as fast as they come and needs no CPU for them."""

    def __init__(self, backend: JetStreamBackend, seconds: float) -> None:
        self._backend = backend
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        source = await self._backend.sources.open(["default"])
        while True:
            delivery = await source.next(1.0, 100)
            if delivery is not None:
                task = asyncio.ensure_future(self._carry_out(delivery))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, delivery: Delivery) -> None:
        job, runs = delivery.job(), self._backend.runs
        owner = Owner("test", "test", delivery.num_delivered)
        claimed = await change_run(runs, job.run_id, Claim(owner, delivery.sequence), time.time)
        if not isinstance(claimed, Refusal):
            await asyncio.sleep(self._seconds)
            end = Conclude(owner=owner, status=RunStatus.COMPLETED)
            await change_run(runs, job.run_id, end, time.time)
        await delivery.ack()


@asynccontextmanager
async def watched(config: NatsBackendConfig, seconds: float) -> AsyncIterator[Ledger]:
    ledger = Ledger()
    async with open_gateway_backend(config) as backend, open_worker_backend(config, "test") as working:

        async def follow() -> None:
            async for batch in backend.run_feed.follow(None):
                ledger.look(batch.changes)

        tasks = [
            asyncio.ensure_future(follow()),
            asyncio.ensure_future(Workers(working, seconds).run()),  # type: ignore[arg-type]
        ]
        try:
            yield ledger
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def submit(http: httpx2.AsyncClient, runs: int, keys: int) -> None:
    bodies = [{"flow_name": "sync", "params": {"customer": f"c{n % keys}"}} for n in range(runs)]
    for start in range(0, runs, BATCH):
        answer = await http.post("/runs/batch", json={"runs": bodies[start : start + BATCH]})
        assert answer.json()["refused"] == 0, answer.text


async def kill_in_turn(pair: list[GatewayProcess], ledger: Ledger, runs: int, every_sec: float) -> int:
    """Until all runs have ended; how often."""
    kills = 0
    chance = random.Random(int(os.environ.get("SEED", "7")))  # noqa: S311
    while ledger.ended.total() < runs:
        await asyncio.sleep(chance.uniform(0.5, 1.5) * every_sec)
        if ledger.ended.total() < runs:
            victim = pair[kills % 2]
            await victim.kill()
            await victim.start()
            kills += 1
    return kills


async def survive(
    config: NatsBackendConfig, programs: Programs, *, runs: int, keys: int, seconds: float, every_sec: float
) -> tuple[Ledger, int]:
    async with gateways(config, programs, 2) as pair, watched(config, seconds) as ledger:
        answer = await pair[0].http.put("/limits/per-customer", json=BODY)
        assert answer.status_code == 201
        await submit(pair[0].http, runs, keys)
        kills = await kill_in_turn(pair, ledger, runs, every_sec)
        assert ledger.ended == {"COMPLETED": runs}
        assert max(ledger.most.values()) <= MAX_RUNNING

        async def shown() -> dict[str, int]:
            found: dict[str, int] = (await pair[0].http.get("/limits/per-customer")).json()
            return found

        found = await until(shown, lambda it: it["holders"] == 0)
        assert (found["waiting"], found["admitted"] >= runs) == (0, True)
        return ledger, kills


async def test_gateways_that_are_killed_in_turn_never_admit_too_many(
    config: NatsBackendConfig, programs: Programs
) -> None:
    ledger, kills = await survive(config, programs, runs=120, keys=4, seconds=0.3, every_sec=2.0)
    assert kills
    assert set(ledger.most.values()) == {MAX_RUNNING}


@pytest.mark.long
async def test_five_thousand_runs_over_fifty_keys_survive_kills(
    config: NatsBackendConfig, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    ledger, kills = await survive(config, programs, runs=5_000, keys=50, seconds=2.0, every_sec=15.0)
    busy = ledger.used_sec / ledger.needed_sec
    with capsys.disabled():
        sys.stdout.write(f"{kills} kills, {busy:.1%} busy, {time.monotonic() - began:.0f} s\n")
    assert busy >= 0.9


@pytest.mark.long
async def test_a_rate_holds_over_restarts_of_its_gateways(
    config: NatsBackendConfig, programs: Programs
) -> None:
    """A thousand runs at ten per second with a burst of twenty; gateways are killed in turn meanwhile."""
    body = {"match": {"flow": "sync"}, "rate": {"count": 10, "per_sec": 1, "burst": 20}}
    async with gateways(config, programs, 2) as pair, watched(config, 0.0) as ledger:
        assert (await pair[0].http.put("/limits/ten", json=body)).status_code == 201
        await submit(pair[0].http, 1_000, 1)
        assert await kill_in_turn(pair, ledger, 1_000, 20.0) >= 3
    times = sorted(ledger.admitted_at.values())
    rate = (1_000 - 20) / (times[-1] - times[0])
    sys.stdout.write(f"{rate:.2f}/s\n")
    assert rate == pytest.approx(10, rel=0.05)
    most = max(
        n + 1 - 10 * (times[i + n] - times[i])
        for i in range(len(times))
        for n in (20, 50, 200)
        if i + n < len(times)
    )
    assert most <= 20 + 1.5, "more than the burst at once"
