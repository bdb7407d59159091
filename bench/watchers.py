"""How long a write of a run takes to its watchers: from before the write until the client has the event."""

import argparse
import asyncio
import re
import time

from gateways import HOST, gateway_process, milliseconds, nats_for_a_while
from load import get
from page import Figures, Goal, show, table
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.usecases.ports.stores import Revision
from pyoco_server.wiring import JetStreamBackend, new_run_id, open_backend

GOAL_MS = 50.0
GOAL_WATCHERS = 200
CROWDS = (50, 200, 500)
NUMBER = re.compile(rb'"n":(\d+)')
PAUSE_SEC = 0.02


def a_run(run_id: str, n: int) -> RunSnapshot:
    now = time.time()
    return RunSnapshot(
        run_id=run_id,
        flow_name="f",
        status=RunStatus.RUNNING,
        params={"n": n},
        tasks={},
        heartbeat_at=now,
        updated_at=now,
    )


class Crowd:
    """Watchers, and when each of them saw what."""

    def __init__(self) -> None:
        self.written: dict[int, float] = {}
        self.taken: list[float] = []
        self.ready = 0

    async def watch(self, port: int, run_id: str) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(get(f"/runs/{run_id}/watch"))
        while line := await reader.readline():
            found = NUMBER.search(line) if line.startswith(b"data:") else None
            if found is None:
                continue
            if int(found[1]) == 0:
                self.ready += 1
            else:
                self.taken.append(time.perf_counter() - self.written[int(found[1])])


async def watch_and_write(
    config: NatsBackendConfig, port: int, watchers: int, runs: int, writes: int
) -> list[float]:
    crowd = Crowd()
    async with open_backend(config, "bench") as backend:
        ids = [new_run_id() for _ in range(runs)]
        revisions = {run_id: await backend.runs.create(run_id, a_run(run_id, 0)) for run_id in ids}
        watching = [asyncio.ensure_future(crowd.watch(port, ids[n % runs])) for n in range(watchers)]
        while crowd.ready < watchers:  # noqa: ASYNC110 - a count of connections has no event
            await asyncio.sleep(0.05)
        await _write(backend, crowd, revisions, writes)
        await asyncio.sleep(0.5)
        for task in watching:
            task.cancel()
    assert len(crowd.taken) >= writes * watchers // runs * 0.99, "some watchers missed something"
    return crowd.taken


async def _write(
    backend: JetStreamBackend, crowd: Crowd, revisions: dict[str, Revision], writes: int
) -> None:
    ids = list(revisions)
    for n in range(1, writes + 1):
        run_id = ids[n % len(ids)]
        crowd.written[n] = time.perf_counter()
        revisions[run_id] = await backend.runs.update(run_id, a_run(run_id, n), revisions[run_id])
        await asyncio.sleep(PAUSE_SEC)


def measure(writes: int, crowds: tuple[int, ...] = CROWDS) -> Figures:
    """The goal is for 200 watchers, however they are spread."""
    rows, goals = [], []
    with nats_for_a_while() as server:
        config = NatsBackendConfig(nats_url=server.url)
        with gateway_process(config) as gateway:
            for watchers in crowds:
                for spread, runs in (("a run each", watchers), ("ten for a run", max(1, watchers // 10))):
                    taken = asyncio.run(watch_and_write(config, gateway.port, watchers, runs, writes))
                    p50, p99 = milliseconds(taken), milliseconds(taken, 0.99)
                    rows.append((f"{watchers}, {spread}", f"{p50:.1f} ms", f"{p99:.1f} ms"))
                    if watchers == GOAL_WATCHERS:
                        what = f"p99 of a write to {watchers} watchers, {spread}"
                        goals.append(Goal(what, f"≤ {GOAL_MS:.0f} ms", f"{p99:.1f} ms", p99 <= GOAL_MS))
    return Figures(table(("watchers", "p50", "p99"), rows), goals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchers", type=int, action="append")
    parser.add_argument("--writes", type=int, default=400)
    chosen = parser.parse_args()
    show(measure(chosen.writes, tuple(chosen.watchers or CROWDS)))


if __name__ == "__main__":
    main()
