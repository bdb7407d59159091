"""Delayed runs: what a delay costs a submit, and how soon the runs start that are due at the same time.

Plain and delayed runs are submitted in turns. One worker takes the delayed ones when their time has come,
then another the plain ones, which wait on the queue: the difference is what the delay adds.
"""

import argparse
import asyncio
import json
import statistics
import time

import httpx2

from installation import HOST, Installation, installation, wait_until
from load import hammer, post

PARTS = 10
CONNECTIONS = 16
ALLOWANCE = 1.4
"""How much longer than the first part suggests the submits may take before the runs are due."""
MIN_RATIO = 0.7
MAX_EXTRA_SEC = 10.0


def submit(whole: Installation, total: int, **fields: object) -> float:
    """Runs per second."""
    body = json.dumps({"flow_name": "tiny", "params": {"x": 1}, **fields}).encode()
    started = time.perf_counter()
    asyncio.run(hammer(HOST, whole.port, post("/runs", body), connections=CONNECTIONS, total=total))
    return total / (time.perf_counter() - started)


def submit_in_turns(whole: Installation, runs: int, due_at: float) -> tuple[list[float], list[float]]:
    plain, delayed = [], []
    for _ in range(PARTS):
        plain.append(submit(whole, runs // PARTS, tag="plain"))
        delayed.append(submit(whole, runs // PARTS, tag="delayed", run_at=due_at))
    return plain, delayed


def seconds_until_completed(whole: Installation, runs: int, started: float, patience_sec: float) -> float:
    with httpx2.Client(base_url=whole.url, timeout=30) as http:
        wanted = f'pyoco_runs_total{{status="COMPLETED"}} {runs}.0'
        wait_until(lambda: wanted in http.get("/metrics").text, patience_sec)
    return time.time() - started


def costs(before: dict[str, float], after: dict[str, float], runs: int) -> str:
    found = {name: (after[name] - before.get(name, 0.0)) / runs * 1e6 for name in after}
    return "CPU µs per run: " + "  ".join(f"{name} {cost:.0f}" for name, cost in found.items() if cost >= 1)


def measure(runs: int) -> bool:
    with installation("fast") as whole:
        rate = submit(whole, runs // PARTS, tag="nobody")
        due_at = time.time() + ALLOWANCE * 2 * runs / rate + 10
        plain, delayed = submit_in_turns(whole, runs, due_at)
        ratio = statistics.median(d / p for d, p in zip(delayed, plain, strict=True))
        print(f"  submits/s, median of {PARTS} parts of {runs // PARTS:,}: ", end="")
        print(f"plain {statistics.median(plain):,.0f}, delayed {statistics.median(delayed):,.0f}", end="")
        print(f"; delayed / plain {ratio:.2f}", flush=True)
        patience_sec = runs / 50 + 60
        whole.start_worker("first", "--tags", "delayed")
        left_sec = due_at - time.time()
        assert left_sec > 0, f"the runs were due {-left_sec:.0f} s before all were submitted"
        time.sleep(left_sec)
        began = whole.cpu_seconds()
        of_delayed = seconds_until_completed(whole, runs, due_at, patience_sec)
        print(f"  delayed: all of them ran within {of_delayed:.1f} s of their time", end=" ")
        print(f"({runs / of_delayed:,.0f}/s)", flush=True)
        between = whole.cpu_seconds()
        print(f"    {costs(began, between, runs)}")
        whole.start_worker("second", "--tags", "plain")
        of_plain = seconds_until_completed(whole, 2 * runs, time.time(), patience_sec)
        print(f"  plain: all of them ran in {of_plain:.1f} s ({runs / of_plain:,.0f}/s)", end="; ")
        print(f"the delay adds {of_delayed - of_plain:+.1f} s", flush=True)
        print(f"    {costs(between, whole.cpu_seconds(), runs)}")
    return ratio >= MIN_RATIO and of_delayed - of_plain <= MAX_EXTRA_SEC


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5_000, help="of each kind")
    given = parser.parse_args()
    print(f"{given.runs:,} plain and {given.runs:,} delayed runs")
    is_ok = measure(given.runs)
    print("  as promised" if is_ok else f"  NOT as promised: {MIN_RATIO:g} of the rate, {MAX_EXTRA_SEC:g} s")


if __name__ == "__main__":
    main()
