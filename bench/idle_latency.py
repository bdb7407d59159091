"""How long one run takes from submit to COMPLETED on an idle server, and what it costs when many are sent.

Real processes on loopback: the embedded NATS, the gateway, one worker. A run is a chain of three tiny tasks.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx2

from pyoco_server.cli.ports import free_port
from pyoco_server.cli.stack import running_stack, worker_child
from pyoco_server.config import NatsBackendConfig
from pyoco_server.logs import configure_logging
from pyoco_server.wiring import Durability, EmbeddedNats

RESOLVER = f"{Path(__file__).parent / 'tiny_flows.py'}:resolve"


async def measure(durability: Durability, runs: int) -> list[float]:
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedNats(Path(directory), durability=durability, port=free_port("127.0.0.1")) as nats,
    ):
        config = NatsBackendConfig(nats_url=nats.url)
        port = free_port("127.0.0.1")
        worker = worker_child(config, RESOLVER, "bench", None)
        async with running_stack(config, nats, "127.0.0.1", port, worker):
            return await asyncio.to_thread(_submit_and_wait, f"http://127.0.0.1:{port}", runs)


def _submit_and_wait(url: str, runs: int) -> list[float]:
    with httpx2.Client(base_url=url, timeout=30) as http:
        while http.get("/ready").status_code != 200 or not http.get("/workers").json():
            time.sleep(0.05)
        for _ in range(20):
            _one(http)
        return [_one(http) for _ in range(runs)]


def _one(http: httpx2.Client) -> float:
    started = time.perf_counter()
    run_id = http.post("/runs", json={"flow_name": "tiny"}).json()["run_id"]
    with http.stream("GET", f"/runs/{run_id}/watch") as response:
        for line in response.iter_lines():
            if line.startswith("data: ") and '"COMPLETED"' in line:
                snapshot = json.loads(line[6:])["snapshot"]
                assert snapshot["status"] == "COMPLETED"
                return time.perf_counter() - started
    raise AssertionError("the run did not complete")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    configure_logging(service="bench", level="ERROR", log_format="text", stream=sys.stderr)
    print(f"idle latency, submit to COMPLETED, {runs} runs of three tasks, one after another")
    choices: tuple[Durability, ...] = ("safe", "fast")
    for durability in choices:
        taken = sorted(asyncio.run(measure(durability, runs)))
        p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
        print(f"  durability {durability}:  p50 {p50 * 1000:5.1f} ms   p99 {p99 * 1000:5.1f} ms")


if __name__ == "__main__":
    main()
