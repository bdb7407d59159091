"""What a list and the figures cost with 1,000 and with 100,000 runs: the page, not the history.

Two gateways, each with a bucket of its own, asked in turns.
"""

import argparse
import asyncio

import nats

from gateways import HOST, gateway_process, milliseconds, nats_for_a_while, verdict
from load import get, hammer
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import wire
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.wiring import ensure_resources, new_run_id

GOAL = 1.5
PATHS = ("/runs?limit=50", "/runs?limit=50&status=FAILED", "/runs?limit=50&tag=gpu", "/metrics")
IN_FLIGHT = 1000


def a_run(n: int, run_id: str) -> bytes:
    """One in ten failed, one in four on another tag."""
    status = RunStatus.FAILED if n % 10 == 0 else RunStatus.COMPLETED
    tag = "gpu" if n % 4 == 0 else "default"
    at = 1_700_000_000.0 + n
    return wire.encode(
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


async def measure(small: int, large: int, times: int) -> list[tuple[str, float, float]]:
    rows = []
    for path in PATHS:
        taken: dict[int, list[float]] = {small: [], large: []}
        for _ in range(5):
            for port in taken:
                taken[port] += await hammer(HOST, port, get(path), connections=1, total=times)
        rows.append((path, milliseconds(taken[small]), milliseconds(taken[large])))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=1_000)
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=60)
    chosen = parser.parse_args()
    with nats_for_a_while() as server:
        small = NatsBackendConfig(nats_url=server.url, runs_kv_bucket="small")
        large = NatsBackendConfig(nats_url=server.url, runs_kv_bucket="large")
        asyncio.run(fill(small, chosen.small))
        asyncio.run(fill(large, chosen.large))
        with gateway_process(small, "runs_kv_bucket") as one, gateway_process(large, "runs_kv_bucket") as two:
            rows = asyncio.run(measure(one, two, chosen.times))
    print(f"{'p50':<32} {chosen.small:>10,} runs {chosen.large:>10,} runs   ratio   goal <= {GOAL}")
    for path, few, many in rows:
        ratio = many / few
        print(f"{path:<32} {few:>12.2f} ms {many:>12.2f} ms   {ratio:>5.2f}   {verdict(holds=ratio <= GOAL)}")


if __name__ == "__main__":
    main()
