"""How many runs a second one gateway accepts, each with its snapshot and its job, without a worker."""

import argparse
import asyncio
import time

from gateways import HOST, gateway_process, milliseconds, nats_for_a_while, verdict
from load import hammer, post
from pyoco_server.config import NatsBackendConfig

GOAL = 1000
BODY = b'{"flow_name": "f", "params": {"x": 1}}'


async def measure(port: int, connections: int, total: int) -> tuple[float, list[float]]:
    request = post("/runs", BODY)
    await hammer(HOST, port, request, connections=connections, total=500)
    began = time.perf_counter()
    taken = await hammer(HOST, port, request, connections=connections, total=total)
    return total / (time.perf_counter() - began), taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--runs", type=int, default=8000)
    chosen = parser.parse_args()
    with nats_for_a_while() as server:
        config = NatsBackendConfig(nats_url=server.url)
        with gateway_process(config) as port:
            rate, taken = asyncio.run(measure(port, chosen.connections, chosen.runs))
    print(f"{chosen.runs:,} submits over {chosen.connections} connections, no worker, durability fast")
    print(f"  {rate:,.0f} a second   goal >= {GOAL:,}   {verdict(holds=rate >= GOAL)}")
    print(f"  p50 {milliseconds(taken):.1f} ms   p99 {milliseconds(taken, 0.99):.1f} ms")


if __name__ == "__main__":
    main()
