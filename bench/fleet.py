"""A fleet on one machine: what workers that wait, runs that last a minute, and short runs cost each process.

The workers are those of the product, many in a process, with flows that only wait. Gateways and NATS are real
processes. All workers have one tag, so that one consumer serves them.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import nats
from nats.aio.msg import Msg

from fleet_workers import READY
from installation import HOST, Installation, installation
from load import hammer_each, post
from page import Figures, Goal, show, table
from processes import cpu_seconds, stop, unwind_on_sigterm
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.runs.listing import is_beat

WORKERS_PER_PROCESS = 250
SETTLE_SEC = 10.0
RUN_SEC = 60.0
SHORT_SEC = 0.1
GATEWAY_IDLE, NATS_IDLE, BEATS_PER_SEC = 0.05, 0.20, 100.0
"""Wanted with 1,000 workers or running runs; shares of a core."""
START_SEC = 300.0
COUNT_SEC = 0.25
"""Between two counts, which cost the gateway something themselves."""


@dataclass
class Phase:
    """What was used and written, per second."""

    cpu: dict[str, float]
    writes: dict[str, float]
    beats: float = 0.0


@dataclass
class Counted:
    """Heartbeats among the writes of runs."""

    beats: int = 0
    others: int = 0


@dataclass
class Fleet:
    whole: Installation
    urls: list[str]
    config: NatsBackendConfig
    simulators: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def cpu_seconds(self) -> dict[str, float]:
        workers = sum(cpu_seconds(child.pid) for child in self.simulators)
        return {**self.whole.cpu_seconds(), "all workers": workers}

    @property
    def streams(self) -> dict[str, str]:
        return {
            "runs": f"KV_{self.config.runs_kv_bucket}",
            "workers": f"KV_{self.config.workers_kv_bucket}",
            "jobs": self.config.work_stream,
        }


@contextmanager
def fleet_of(workers: int, gateways: int, slots: int) -> Iterator[Fleet]:
    with installation("fast") as whole:
        others = [whole.start_gateway(f"gateway {n}") for n in range(2, gateways + 1)]
        fleet = Fleet(whole, [whole.url, *others], NatsBackendConfig(nats_url=whole.nats_url))
        try:
            for number, first in enumerate(range(0, workers, WORKERS_PER_PROCESS)):
                size = min(WORKERS_PER_PROCESS, workers - first)
                child = _simulator(whole, number, size, slots)
                fleet.simulators.append(child)
                assert child.stdout is not None
                assert child.stdout.readline().strip() == READY.encode(), "workers did not start"
            yield fleet
        finally:
            for child in fleet.simulators:
                stop(child)


def _simulator(whole: Installation, number: int, workers: int, slots: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).with_name("fleet_workers.py"))]
    return subprocess.Popen(
        [*command, str(number), str(workers), str(slots)],
        env=whole.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


async def observed(fleet: Fleet, seconds: float) -> Phase:
    async with counting(fleet) as (counted, sequences):
        before, sequences_before, began = fleet.cpu_seconds(), await sequences(), time.monotonic()
        counted.beats = 0
        await asyncio.sleep(seconds)
        beats, after, took = counted.beats, fleet.cpu_seconds(), time.monotonic() - began
        written = await sequences()
    return Phase(
        {name: (after[name] - before[name]) / took for name in after},
        {name: (written[name] - sequences_before[name]) / took for name in written},
        beats / took,
    )


@asynccontextmanager
async def counting(fleet: Fleet) -> AsyncIterator[tuple[Counted, Callable[[], Any]]]:
    """As a subscriber of what is written, beside the product."""
    client = await nats.connect(fleet.config.nats_url)
    js, counted = client.jetstream(), Counted()

    async def received(message: Msg) -> None:
        if message.data and is_beat(codec.decode_run(message.data)):
            counted.beats += 1
        else:
            counted.others += 1

    async def sequences() -> dict[str, int]:
        infos = {name: await js.stream_info(stream) for name, stream in fleet.streams.items()}
        return {name: info.state.last_seq for name, info in infos.items()}

    await client.subscribe(f"$KV.{fleet.config.runs_kv_bucket}.*", cb=received)
    try:
        yield counted, sequences
    finally:
        await client.close()


# The three loads


async def idle(fleet: Fleet, seconds: float) -> Phase:
    await asyncio.sleep(SETTLE_SEC)
    return await observed(fleet, seconds)


async def running(fleet: Fleet, runs: int, seconds: float) -> tuple[Phase, int]:
    """As after a minute of steady load: the first runs end at any time, and each is replaced by a new one."""
    await _submit(fleet, [RUN_SEC * n / runs for n in range(runs)])
    feeding = asyncio.ensure_future(_feed(fleet, runs / RUN_SEC))
    await asyncio.sleep(SETTLE_SEC)
    try:
        phase = await observed(fleet, seconds)
        return phase, _count(fleet.urls[0], "RUNNING")
    finally:
        feeding.cancel()


async def _feed(fleet: Fleet, per_sec: float) -> None:
    loop, began, sent = asyncio.get_running_loop(), time.monotonic(), 0
    while loop.is_running():
        await asyncio.sleep(0.5)
        due = int((time.monotonic() - began) * per_sec) - sent
        sent += due
        await _submit(fleet, [RUN_SEC] * due)


async def _submit(fleet: Fleet, durations: list[float]) -> None:
    """Evenly, at all gateways."""
    share = len(fleet.urls)
    await asyncio.gather(
        *(_submit_at(url, durations[n::share]) for n, url in enumerate(fleet.urls) if durations[n::share])
    )


async def _submit_at(url: str, durations: list[float]) -> None:
    bodies = iter(durations)

    def body() -> bytes:
        return post("/runs", json.dumps({"flow_name": "wait", "params": {"seconds": next(bodies)}}).encode())

    port = int(url.rpartition(":")[2])
    await hammer_each(HOST, port, body, connections=min(16, len(durations)), total=len(durations))


def _count(url: str, status: str) -> int:
    text = httpx2.get(f"{url}/metrics").text
    found = [line for line in text.splitlines() if line.startswith(f'pyoco_runs_total{{status="{status}"}}')]
    return int(float(found[0].split()[-1])) if found else 0


async def short(fleet: Fleet, runs: int) -> tuple[float, dict[str, float]]:
    """Runs per second, from the first submit to the last end, and CPU time per run by process."""
    url = fleet.urls[0]
    ended = _count(url, "COMPLETED")
    before, began = fleet.cpu_seconds(), time.monotonic()
    await _submit(fleet, [SHORT_SEC] * runs)
    while _count(url, "COMPLETED") < ended + runs:
        assert time.monotonic() - began < START_SEC, "short runs did not end"
        await asyncio.sleep(COUNT_SEC)
    took, after = time.monotonic() - began, fleet.cpu_seconds()
    return runs / took, {name: (after[name] - before[name]) / runs for name in after}


async def consumer(fleet: Fleet) -> dict[str, int]:
    client = await nats.connect(fleet.config.nats_url)
    durable = f"pyoco_workers_{fleet.config.default_tag}"
    info = await client.jetstream().consumer_info(fleet.config.work_stream, durable)
    await client.close()
    return {
        "max_waiting": info.config.max_waiting or 0,
        "waiting": info.num_waiting or 0,
        "max_ack_pending": info.config.max_ack_pending or 0,
        "redelivered": info.num_redelivered or 0,
    }


def measure(workers: int, gateways: int, seconds: float, runs: int, slots: int = 1) -> Figures:
    """`runs`: short ones, for the highest rate. As many run for a minute as there are slots."""
    with fleet_of(workers, gateways, slots) as fleet:
        waiting = asyncio.run(idle(fleet, seconds))
        at_rest = asyncio.run(consumer(fleet))
        rate, per_run = asyncio.run(short(fleet, runs))
        busy, reached = asyncio.run(running(fleet, workers * slots, seconds))
        loaded = asyncio.run(consumer(fleet))
    return _figures(workers, slots, waiting, busy, reached, rate, per_run, at_rest, loaded)


def _figures(  # noqa: PLR0913, PLR0917 - one argument per thing measured
    workers: int,
    slots: int,
    waiting: Phase,
    busy: Phase,
    reached: int,
    rate: float,
    per_run: dict[str, float],
    at_rest: dict[str, int],
    loaded: dict[str, int],
) -> Figures:
    wanted = workers * slots
    names = list(waiting.cpu)
    lines = table(
        ("CPU of one core", f"{workers:,} idle workers", f"{reached:,} runs of a minute", "a short run"),
        [(n, f"{waiting.cpu[n]:.1%}", f"{busy.cpu[n]:.1%}", f"{per_run[n] * 1e6:.0f} µs") for n in names],
    )
    lines += [
        "",
        f"Short runs: {rate:.0f} per second through {sum('gateway' in n for n in names)} gateways.",
        "",
    ]
    rows = [(name, f"{waiting.writes[name]:.0f}", f"{busy.writes[name]:.0f}") for name in waiting.writes]
    rows.append(("heartbeats of runs", f"{waiting.beats:.0f}", f"{busy.beats:.0f}"))
    lines += table(("writes per second", "idle", "runs of a minute"), rows)
    lines += ["", f"Consumer of the tag, idle: {_shown(at_rest)}; with the runs: {_shown(loaded)}."]
    share = workers / 1000
    gateway = max(cpu for name, cpu in waiting.cpu.items() if name.startswith("gateway"))
    goals = [
        Goal(
            f"gateway with {workers:,} idle workers",
            f"≤ {GATEWAY_IDLE * share:.1%} of a core",
            f"{gateway:.1%}",
            gateway <= GATEWAY_IDLE * share,
        ),
        Goal(
            f"NATS with {workers:,} idle workers",
            f"≤ {NATS_IDLE * share:.1%} of a core",
            f"{waiting.cpu['nats']:.1%}",
            waiting.cpu["nats"] <= NATS_IDLE * share,
        ),
        Goal(
            f"heartbeats of {wanted:,} running runs",
            f"≤ {BEATS_PER_SEC:.0f} per second",
            f"{busy.beats:.0f}",
            busy.beats <= BEATS_PER_SEC,
        ),
        Goal("all slots of one tag in use", f"≥ {wanted * 0.95:.0f}", f"{reached}", reached >= wanted * 0.95),
    ]
    return Figures(lines, goals)


def _shown(figures: dict[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in figures.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=1, help="runs at once, of each worker")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30, help="of each measurement")
    parser.add_argument("--runs", type=int, default=5000, help="short ones")
    chosen = parser.parse_args()
    unwind_on_sigterm()
    show(measure(chosen.workers, chosen.gateways, chosen.seconds, chosen.runs, chosen.slots))


if __name__ == "__main__":
    main()
