"""What a list and the figures cost with 1,000, 10,000 and 100,000 runs: the page, not the history.

A gateway for each, with a bucket of its own, asked in turns; and how much memory each has.
"""

import argparse
import asyncio
from contextlib import ExitStack

import nats

from gateways import HOST, gateway_process, milliseconds, nats_for_a_while
from load import get, hammer
from page import Figures, Goal, show, table
from processes import rss_mb
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.wiring import ensure_resources, new_run_id

GOAL = 1.5
PATHS = ("/runs?limit=50", "/runs?limit=50&status=FAILED", "/runs?limit=50&tag=gpu", "/metrics")
IN_FLIGHT = 1000
SIZES = (1_000, 10_000, 100_000)


def a_run(n: int, run_id: str) -> bytes:
    """One in ten failed, one in four on another tag."""
    status = RunStatus.FAILED if n % 10 == 0 else RunStatus.COMPLETED
    tag = "gpu" if n % 4 == 0 else "default"
    at = 1_700_000_000.0 + n
    return codec.encode(
        RunSnapshot(
            run_id=run_id,
            flow_name=f"flow-{n % 20}",
            status=status,
            params={"n": n},
            tasks={},
            heartbeat_at=at,
            updated_at=at,
            tag=tag,
            tags=(tag,),
        )
    )


async def fill(config: NatsBackendConfig, runs: int) -> None:
    """Straight into the bucket, many writes under way at once."""
    await ensure_resources(config)
    await put_runs(config, runs)


async def put_runs(config: NatsBackendConfig, runs: int) -> None:
    """Into a bucket that is there."""
    client = await nats.connect(config.nats_url)
    js = client.jetstream(publish_async_max_pending=IN_FLIGHT)
    for n in range(runs):
        run_id = new_run_id()
        await js.publish_async(f"$KV.{config.runs_kv_bucket}.{run_id}", a_run(n, run_id))
    await js.publish_async_completed()
    stored = (await js.stream_info(f"KV_{config.runs_kv_bucket}")).state.messages
    assert stored >= runs, stored
    await client.close()


async def ask(questions: list[tuple[int, str]], times: int) -> list[float]:
    """The median of each (port and path) in milliseconds."""
    taken: list[list[float]] = [[] for _ in questions]
    for _ in range(5):
        for found, (port, path) in zip(taken, questions, strict=True):
            found.extend(await hammer(HOST, port, get(path), connections=1, total=times))
    return [milliseconds(found) for found in taken]


def measure(times: int, sizes: tuple[int, ...] = SIZES) -> Figures:
    with ExitStack() as stack:
        server = stack.enter_context(nats_for_a_while())
        gateways = []
        for size in sizes:
            config = NatsBackendConfig(nats_url=server.url, runs_kv_bucket=f"runs_{size}")
            asyncio.run(fill(config, size))
            gateways.append(stack.enter_context(gateway_process(config, "runs_kv_bucket")))
        ports = [gateway.port for gateway in gateways]
        found = {path: asyncio.run(ask([(port, path) for port in ports], times)) for path in PATHS}
        memory = [rss_mb(gateway.pid) for gateway in gateways]
    rows = [
        (f"`{path}`", *(f"{took:.2f} ms" for took in row), f"{row[-1] / row[0]:.2f} ×")
        for path, row in found.items()
    ]
    rows.append(("gateway's memory", *(f"{mb:.0f} MB" for mb in memory), f"{memory[-1] / memory[0]:.2f} ×"))
    lines = table(("p50", *(f"{size:,} runs" for size in sizes), "last to first"), rows)
    each = (memory[-1] - memory[0]) / (sizes[-1] - sizes[0]) * 1000
    lines += ["", f"The gateway's memory grows by {each:.2f} MB for every 1,000 runs that are kept."]
    worst = max(row[-1] / row[0] for row in found.values())
    what = f"lists and figures at {sizes[-1]:,} runs against {sizes[0]:,}"
    return Figures(lines, [Goal(what, f"≤ {GOAL} ×", f"{worst:.2f} ×", worst <= GOAL)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, action="append", help="runs; several, ascending")
    parser.add_argument("--times", type=int, default=60)
    chosen = parser.parse_args()
    show(measure(chosen.times, tuple(chosen.size or SIZES)))


if __name__ == "__main__":
    main()
