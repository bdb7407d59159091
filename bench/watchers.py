"""How long a write of a run takes to its watchers: from before the write until the client has the event."""

import argparse
import asyncio
import re
import time

from gateways import HOST, gateway_process, milliseconds, nats_for_a_while, verdict
from load import get
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.usecases.ports import Revision
from pyoco_server.wiring import JetStreamBackend, new_run_id, open_backend

GOAL_MS = 50.0
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


async def measure(config: NatsBackendConfig, port: int, watchers: int, runs: int, writes: int) -> list[float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--writes", type=int, default=400)
    chosen = parser.parse_args()
    print(
        f"{chosen.watchers} watchers, write to client          p50        p99   goal p99 <= {GOAL_MS:.0f} ms"
    )
    with nats_for_a_while() as server:
        config = NatsBackendConfig(nats_url=server.url)
        with gateway_process(config) as port:
            for name, runs in (
                ("a run each", chosen.watchers),
                ("ten for a run", max(1, chosen.watchers // 10)),
            ):
                taken = asyncio.run(measure(config, port, chosen.watchers, runs, chosen.writes))
                p50, p99 = milliseconds(taken), milliseconds(taken, 0.99)
                print(f"{name:<34} {p50:>6.1f} ms {p99:>7.1f} ms   {verdict(holds=p99 <= GOAL_MS)}")


if __name__ == "__main__":
    main()
