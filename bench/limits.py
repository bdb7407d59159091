"""What limits cost: the hand-over of a place, a run that no limit concerns, and how exact a rate is."""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx2

from end_to_end import submit, wait_for_completed
from installation import Installation, installation
from page import Figures, show, table
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.changes import Claim, Conclude, Refusal
from pyoco_server.domain.runs.model import Owner, RunSnapshot, RunStatus
from pyoco_server.usecases.consistency import change_run
from pyoco_server.wiring import open_gateway_backend, open_worker_backend

BATCH = 100
ROUNDS = 2
OTHERS = 20
"""Limits of other flows."""
RUN_SEC = (0.5, 1.5)
"""Long enough that the places, not the machine, limit how many runs there are; not all end at once."""


class Places:
    """When places became free and were given again, by the clock of NATS."""

    def __init__(self) -> None:
        self.freed: dict[str, list[float]] = {}
        self.handovers: list[float] = []
        self.admitted: list[float] = []
        self.ended = 0
        self._held: set[str] = set()
        self._waiting: dict[str, set[str]] = {}

    def look(self, run: RunSnapshot, at: float) -> None:
        if not run.limits:
            return
        key = run.limits[0].key
        waiting = self._waiting.setdefault(key, set())
        freed = self.freed.setdefault(key, [])
        if run.status.is_terminal:
            self.ended += 1
            if run.run_id in self._held and waiting:
                freed.append(at)
            self._held.discard(run.run_id)
        elif run.is_held:
            waiting.add(run.run_id)
        elif run.run_id not in self._held:
            self._held.add(run.run_id)
            waiting.discard(run.run_id)
            self.admitted.append(at)
            if freed:
                self.handovers.append(at - freed.pop(0))


async def _carry_out(backend: Any, delivery: Any) -> None:
    job, owner = delivery.job(), Owner("bench", "bench", delivery.num_delivered)
    claimed = await change_run(backend.runs, job.run_id, Claim(owner, delivery.sequence), time.time)
    if not isinstance(claimed, Refusal):
        await asyncio.sleep(random.uniform(*RUN_SEC))  # noqa: S311
        end = Conclude(owner=owner, status=RunStatus.COMPLETED)
        await change_run(backend.runs, job.run_id, end, time.time)
    await delivery.ack()


@asynccontextmanager
async def watched(whole: Installation) -> AsyncIterator[Places]:
    """With a worker that needs no CPU for its flows."""
    config, places = NatsBackendConfig(nats_url=whole.nats_url), Places()
    async with open_gateway_backend(config) as backend, open_worker_backend(config, "bench") as working:

        async def follow() -> None:
            async for batch in backend.run_feed.follow(None):
                for change in batch.changes:
                    if change.value is not None:
                        places.look(change.value, change.stored_at or 0.0)

        async def work() -> None:
            source, tasks = await working.sources.open(["default"]), set()
            while True:
                delivery = await source.next(1.0, 100)
                if delivery is not None:
                    task = asyncio.ensure_future(_carry_out(working, delivery))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

        doing = [asyncio.ensure_future(follow()), asyncio.ensure_future(work())]
        try:
            yield places
        finally:
            for task in doing:
                task.cancel()
            await asyncio.wait(doing)


async def _until(is_true: Callable[[], bool]) -> None:
    while not is_true():  # noqa: ASYNC110 - a measurement waits for a number
        await asyncio.sleep(0.05)


async def _submit(http: httpx2.AsyncClient, runs: int, keys: int) -> None:
    bodies = [{"flow_name": "tiny", "params": {"k": n % keys}} for n in range(runs)]
    for start in range(0, runs, BATCH):
        (await http.post("/runs/batch", json={"runs": bodies[start : start + BATCH]})).raise_for_status()


async def _handover(whole: Installation, runs: int, keys: int, max_running: int) -> tuple[str, ...]:
    async with httpx2.AsyncClient(base_url=whole.url, timeout=60) as http, watched(whole) as places:
        body = {"match": {}, "key": "params.k", "max_running": max_running}
        (await http.put("/limits/bench", json=body)).raise_for_status()
        began = time.monotonic()
        await _submit(http, runs, keys)
        await _until(lambda: places.ended >= runs)
        took = time.monotonic() - began
        late = sorted(places.handovers)
        p50, p99 = (1000 * late[int(len(late) * part)] for part in (0.5, 0.99))
        return (
            f"{keys} keys, {max_running} places each",
            f"{p50:.1f} ms",
            f"{p99:.1f} ms",
            f"{runs / took:.0f}",
        )


async def _rate(whole: Installation, per_sec: int, seconds: float) -> str:
    async with httpx2.AsyncClient(base_url=whole.url, timeout=60) as http, watched(whole) as places:
        rate = {"count": per_sec, "per_sec": 1, "burst": 1}
        (await http.put("/limits/bench", json={"match": {}, "rate": rate})).raise_for_status()
        await _submit(http, int(per_sec * seconds), 1)
        await _until(lambda: places.ended >= per_sec * seconds)
        times = places.admitted
        gaps = [after - before for before, after in pairwise(times)]
        reached = (len(times) - 1) / (times[-1] - times[0])
        return f"{per_sec} per second: {reached:.2f} reached, smallest gap {1000 * min(gaps):.0f} ms"


async def _limit_other_flows(http: httpx2.AsyncClient, limits: int) -> None:
    for number in range(limits):
        body = {"match": {"flow": f"other-{number}"}, "max_running": 1}
        (await http.put(f"/limits/other-{number}", json=body)).raise_for_status()


async def _submits(whole: Installation, runs: int, *, limits: int) -> float:
    """Seconds per submit, one after the other, of runs that no limit concerns."""
    async with httpx2.AsyncClient(base_url=whole.url, timeout=60) as http:
        await _limit_other_flows(http, limits)
        began = time.perf_counter()
        for _ in range(runs):
            (await http.post("/runs", json={"flow_name": "tiny"})).raise_for_status()
        return (time.perf_counter() - began) / runs


async def _prepare(whole: Installation, limits: int) -> None:
    async with httpx2.AsyncClient(base_url=whole.url, timeout=60) as http:
        await _limit_other_flows(http, limits)


def _cpu_per_run(runs: int, *, limits: int) -> list[float]:
    """Microseconds of all processes, for runs from submit to COMPLETED that no limit concerns."""
    with installation("fast") as whole:
        asyncio.run(_prepare(whole, limits))
        whole.start_worker("worker")
        found = []
        for number in range(1, ROUNDS + 2):
            before = sum(whole.cpu_seconds().values())
            asyncio.run(submit(whole.port, runs, ["default"]))
            wait_for_completed(whole.url, number * runs)
            found.append((sum(whole.cpu_seconds().values()) - before) / runs * 1e6)
        return found[1:]  # the first warms up


def end_to_end(runs: int, times: int) -> str:
    """In turns, each in an installation of its own."""
    plain: list[float] = []
    among: list[float] = []
    for _ in range(times):
        plain += _cpu_per_run(runs, limits=0)
        among += _cpu_per_run(runs, limits=OTHERS)
    without, beside = statistics.median(plain), statistics.median(among)
    return (
        f"CPU per run from submit to COMPLETED: {without:.0f} µs without limits, {beside:.0f} µs among "
        f"{OTHERS} of other flows: {beside / without:.2f} ×"
    )


def measure(runs: int, seconds: float) -> Figures:
    head = ("limit", "hand-over, p50", "hand-over, p99", "runs per second")
    rows = []
    for keys, places in ((1, 50), (25, 2)):
        with installation("fast") as whole:
            rows.append(asyncio.run(_handover(whole, runs, keys, places)))
    with installation("fast") as whole:
        rate = asyncio.run(_rate(whole, 20, seconds))
    with installation("fast") as whole:
        plain = [asyncio.run(_submits(whole, runs, limits=0)) for _ in range(3)]
        among = [asyncio.run(_submits(whole, runs, limits=OTHERS)) for _ in range(3)]
    cost = (
        f"{1000 * min(plain):.2f} ms without limits, {1000 * min(among):.2f} ms among {OTHERS} of other flows"
    )
    lines = [*table(head, rows), "", f"Rate: {rate}.", "", f"A submit that no limit concerns: {cost}."]
    lines += ["", f"{end_to_end(2 * runs, 2)}."]
    return Figures(lines, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10, help="of the rate")
    parser.add_argument("--end-to-end", type=int, metavar="TIMES", help="only the cost of a run, so often")
    chosen = parser.parse_args()
    if chosen.end_to_end:
        print(end_to_end(2 * chosen.runs, chosen.end_to_end))
        return
    show(measure(chosen.runs, chosen.seconds))


if __name__ == "__main__":
    main()
