"""Runs per second from submit to COMPLETED, what a run costs each process, and how quick an idle server is.

Sixteen connections submit chains of three tiny tasks to one gateway; one worker runs them.
"""

import argparse
import asyncio
import json
import re
import statistics
import time

import httpx2

from installation import HOST, PATIENCE_SEC, Installation, installation
from load import hammer, post
from pyoco_server.running_server import Durability

ROUNDS = 3


def rounds(whole: Installation, runs: int, tags: list[str]) -> None:
    rates = []
    for number in range(1, ROUNDS + 1):
        before, started = whole.cpu_seconds(), time.perf_counter()
        asyncio.run(submit(whole.port, runs, tags))
        wait_for_completed(whole.url, number * runs)
        rates.append(runs / (time.perf_counter() - started))
        after = whole.cpu_seconds()
        costs = "  ".join(f"{name} {(after[name] - before[name]) / runs * 1e6:.0f}" for name in after)
        print(f"    {rates[-1]:5.0f} runs/s    CPU µs per run: {costs}")
    print(f"    median {statistics.median(rates):.0f} runs/s")


async def submit(port: int, runs: int, tags: list[str]) -> None:
    bodies = [json.dumps({"flow_name": "tiny", "params": {"x": 1}, "tag": tag}).encode() for tag in tags]
    share = runs // len(tags)
    await asyncio.gather(
        *(
            hammer(HOST, port, post("/runs", body), connections=max(1, 16 // len(tags)), total=share)
            for body in bodies
        )
    )


def wait_for_completed(url: str, runs: int) -> None:
    """Asked when half of the rest should be done: metrics cost a gateway as much as a few runs."""
    began, deadline = time.monotonic(), time.monotonic() + PATIENCE_SEC
    with httpx2.Client(base_url=url) as http:
        before = done = completed(http)
        while done < runs:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{done} of {runs} runs are completed")
            per_run_sec = (time.monotonic() - began) / (done - before) if done > before else 0.0
            time.sleep(min(max((runs - done) * per_run_sec / 2, 0.02), 1.0))
            done = completed(http)


def completed(http: httpx2.Client) -> int:
    found = re.search(
        r'^pyoco_runs_total\{status="COMPLETED"\} (\d+)', http.get("/metrics").text, re.MULTILINE
    )
    return int(found[1]) if found else 0


def idle_latency(url: str, tag: str, times: int = 200) -> list[float]:
    with httpx2.Client(base_url=url, timeout=30) as http:
        return sorted(_one_run(http, tag) for _ in range(times))


def _one_run(http: httpx2.Client, tag: str) -> float:
    started = time.perf_counter()
    run_id = http.post("/runs", json={"flow_name": "tiny", "tag": tag}).json()["run_id"]
    with http.stream("GET", f"/runs/{run_id}/watch") as response:
        assert any('"status":"COMPLETED"' in line for line in response.iter_lines())
    return time.perf_counter() - started


def measure(durability: Durability, runs: int, tags: list[str]) -> None:
    print(f"  durability {durability}, {len(tags)} tag(s)")
    with installation(durability) as whole:
        whole.start_worker("worker", "--tags", ",".join(tags))
        rounds(whole, runs, tags)
        idle_latency(whole.url, tags[-1], 20)
        taken = idle_latency(whole.url, tags[-1])
        print(f"    idle: p50 {taken[100] * 1000:.1f} ms   p99 {taken[198] * 1000:.1f} ms")


def sleepers() -> None:
    """A flow that sleeps must not hold back the others."""
    with installation("fast") as whole:
        whole.start_worker("worker", "--concurrency", "50")
        started = time.perf_counter()
        asyncio.run(hammer(HOST, whole.port, post("/runs", b'{"flow_name":"nap"}'), connections=16, total=50))
        wait_for_completed(whole.url, 50)
        print(f"  50 runs of a 1 s sleep, --concurrency 50: {time.perf_counter() - started:.2f} s")


def idle_cpu(seconds: float) -> None:
    with installation("safe") as whole:
        whole.start_worker("worker")
        time.sleep(3)
        before = whole.cpu_seconds()
        time.sleep(seconds)
        after = whole.cpu_seconds()
        shares = "  ".join(f"{name} {(after[name] - before[name]) / seconds:.2%}" for name in after)
        print(f"  idle for {seconds:g} s, CPU of one core: {shares}")
        print("  memory: " + "  ".join(f"{name} {mb:.0f} MB" for name, mb in whole.rss_mb().items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="per round")
    parser.add_argument("--idle", type=float, default=60, help="seconds of idling")
    options = parser.parse_args()
    print("end to end: 16 connections, chains of three tiny tasks, one gateway, one worker")
    four = ["default", "a", "b", "c"]
    measure("fast", options.runs, ["default"])
    measure("fast", options.runs, four)
    measure("safe", options.runs // 2, ["default"])
    sleepers()
    idle_cpu(options.idle)


if __name__ == "__main__":
    main()
