"""How many runs a second one gateway accepts, each with its snapshot and its job, without a worker."""

import argparse
import asyncio
import time

from gateways import HOST, gateway_process, milliseconds, nats_for_a_while
from load import hammer, post
from page import Figures, Goal, show, table
from pyoco_server.config import NatsBackendConfig

GOAL = 1000
CONNECTIONS = (1, 16, 64)
BODY = b'{"flow_name": "f", "params": {"x": 1}}'


async def submit(port: int, connections: int, total: int) -> tuple[float, list[float]]:
    request = post("/runs", BODY)
    await hammer(HOST, port, request, connections=connections, total=max(50, total // 16))
    began = time.perf_counter()
    taken = await hammer(HOST, port, request, connections=connections, total=total)
    return total / (time.perf_counter() - began), taken


def measure(runs: int, connections: tuple[int, ...] = CONNECTIONS) -> Figures:
    """The goal is for as many connections as the other benchmarks have."""
    found = {}
    with nats_for_a_while() as server:
        config = NatsBackendConfig(nats_url=server.url)
        with gateway_process(config) as gateway:
            for many in connections:
                total = runs // 8 if many == 1 else runs
                found[many] = asyncio.run(submit(gateway.port, many, total))
    rows = [
        (str(many), f"{rate:,.0f}", f"{milliseconds(taken):.1f} ms", f"{milliseconds(taken, 0.99):.1f} ms")
        for many, (rate, taken) in found.items()
    ]
    rate = found.get(16, next(iter(found.values())))[0]
    goal = Goal("submits a second, one gateway", f"≥ {GOAL:,}", f"{rate:,.0f}", rate >= GOAL)
    return Figures(table(("connections", "submits a second", "p50", "p99"), rows), [goal])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, action="append")
    parser.add_argument("--runs", type=int, default=8000)
    chosen = parser.parse_args()
    show(measure(chosen.runs, tuple(chosen.connections or CONNECTIONS)))


if __name__ == "__main__":
    main()
