"""What ticks cost and how late they are: many schedules on two gateways, and the same when none is due."""

import argparse
import asyncio
import time
from dataclasses import dataclass
from typing import Any

import httpx2

from installation import Installation, installation
from page import Figures, show, table

SETTLE_SEC = 5.0
AT_ONCE = 100
PUTS_PER_SEC = 150
DAY_SEC = 86_400.0
ASKED = 200
"""Schedules whose ticks are read."""


@dataclass(frozen=True)
class Load:
    schedules: int
    every_sec: float
    """0: none is due while it is measured."""
    seconds: float
    at_once: bool = False
    """All are due in the same second, as those are of people who choose the full hour."""

    @property
    def text(self) -> str:
        if not self.every_sec:
            return f"{self.schedules:,} not due"
        return f"{self.schedules:,} every {self.every_sec:g} s" + ", in one second" * self.at_once


async def put_schedules(http: httpx2.AsyncClient, load: Load) -> None:
    """Spread over their interval, or over one second of it."""
    putting_sec = load.schedules / PUTS_PER_SEC
    first = time.time() + SETTLE_SEC + (putting_sec if load.every_sec else DAY_SEC)
    body = {"target": {"flow": "tiny"}, "every_sec": load.every_sec or DAY_SEC, "overlap": "allow"}
    turns = asyncio.Semaphore(AT_ONCE)

    async def put(number: int) -> None:
        spread = 1.0 if load.at_once else load.every_sec
        starts_at = round(first + spread * number / load.schedules, 3)
        async with turns:
            answer = await http.put(f"/schedules/s{number}", json={**body, "starts_at": starts_at})
            answer.raise_for_status()

    await asyncio.gather(*(put(number) for number in range(load.schedules)))
    await asyncio.sleep(SETTLE_SEC if not load.every_sec else max(0.0, first + SETTLE_SEC - time.time()))


async def lateness(http: httpx2.AsyncClient, load: Load, since: float) -> list[float]:
    """Of the ticks since then, of some schedules, in order."""
    late: list[float] = []
    for number in range(0, load.schedules, max(1, load.schedules // ASKED)):
        page = (await http.get(f"/schedules/s{number}/ticks", params={"limit": 200})).json()
        ticks: list[dict[str, Any]] = [tick for tick in page["items"] if tick["due_at"] >= since]
        assert {tick["status"] for tick in ticks} <= {"STARTED"}, ticks
        late += [tick["late_sec"] for tick in ticks]
    return sorted(late)


def one_load(load: Load) -> tuple[str, ...]:
    with installation("fast") as whole:
        whole.start_gateway("gateway-2")
        return asyncio.run(_measured(whole, load))


async def _measured(whole: Installation, load: Load) -> tuple[str, ...]:
    async with httpx2.AsyncClient(base_url=whole.url, timeout=60) as http:
        await put_schedules(http, load)
        since, before = time.time(), whole.cpu_seconds()
        await asyncio.sleep(load.seconds)
        after = whole.cpu_seconds()
        used = {name: (after[name] - before[name]) / load.seconds for name in after}
        late = await lateness(http, load, since)
        gateways = used["gateway"] + used["gateway-2"]
        shown = ("-", "-") if not late else (f"{1000 * late[len(late) // 2]:.0f} ms", _p99(late))
        return (load.text, *shown, f"{gateways:.1%}", f"{used['nats']:.1%}")


def _p99(late: list[float]) -> str:
    return f"{1000 * late[int(len(late) * 0.99)]:.0f} ms"


def usual(seconds: float) -> list[Load]:
    return [
        Load(1_000, 1.0, seconds),
        Load(10_000, 60.0, 2 * seconds),
        Load(10_000, 60.0, 2 * seconds, at_once=True),
        Load(10_000, 0.0, seconds),
    ]


def measure(loads: list[Load]) -> Figures:
    head = ("schedules", "late, p50", "late, p99", "CPU of both gateways", "CPU of NATS")
    rows = [one_load(load) for load in loads]
    return Figures([*table(head, rows), "", "CPU: of one core. Without workers; runs wait in the queue."], [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, help="default: several loads")
    parser.add_argument("--every-sec", type=float, default=1.0, help="0: none is due")
    parser.add_argument("--at-once", action="store_true", help="all are due in the same second")
    parser.add_argument("--seconds", type=float, default=30)
    chosen = parser.parse_args()
    seconds = chosen.seconds
    show(
        measure(
            [Load(chosen.schedules, chosen.every_sec, seconds, chosen.at_once)]
            if chosen.schedules
            else usual(seconds)
        )
    )


if __name__ == "__main__":
    main()
