"""What a run costs each process of ours, and how much memory each has, by durability.

Sixteen light connections submit flows of three tiny tasks to one gateway; one worker runs them.
"""

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass

from end_to_end import submit, wait_for_completed
from installation import Installation, installation
from page import Figures, show, table
from processes import descendants, rss_mb
from pyoco_server.running_server import Durability

WARM_RUNS = 200


@dataclass
class Cost:
    rates: list[float]
    cpu_us: dict[str, float]
    """Per run, by process."""
    memory_mb: dict[str, float]


def one_durability(durability: Durability, runs: int, rounds: int) -> Cost:
    with installation(durability) as whole:
        whole.start_worker("worker")
        asyncio.run(submit(whole.port, WARM_RUNS, ["default"]))
        wait_for_completed(whole.url, WARM_RUNS)
        before, rates = whole.cpu_seconds(), []
        for number in range(1, rounds + 1):
            began = time.perf_counter()
            asyncio.run(submit(whole.port, runs, ["default"]))
            wait_for_completed(whole.url, WARM_RUNS + number * runs)
            rates.append(runs / (time.perf_counter() - began))
        after = whole.cpu_seconds()
        used = {name: (after[name] - before[name]) / (runs * rounds) * 1e6 for name in after}
        return Cost(rates, used, each_process(whole))


def each_process(whole: Installation) -> dict[str, float]:
    executors = descendants(whole.pids["worker"])
    found = whole.rss_mb()
    if executors:
        found[f"each of the {len(executors)} below the worker"] = statistics.fmean(map(rss_mb, executors))
    return found


def measure(runs: int, rounds: int) -> Figures:
    durabilities: tuple[Durability, ...] = ("fast", "safe")
    costs = {name: one_durability(name, runs, rounds) for name in durabilities}
    names = list(costs["fast"].cpu_us)
    rows = [
        (
            f"`--durability {durability}`",
            f"{statistics.median(cost.rates):.0f} ({min(cost.rates):.0f} to {max(cost.rates):.0f})",
            *(f"{cost.cpu_us[name]:.0f} µs" for name in names),
        )
        for durability, cost in costs.items()
    ]
    lines = table(("", "runs/s, median (spread)", *(f"CPU per run, {name}" for name in names)), rows)
    kept = costs["fast"].memory_mb
    lines += ["", f"Memory (RSS) after {WARM_RUNS + runs * rounds:,} runs:", ""]
    lines += table(("process", "MB"), ((name, f"{mb:.0f}") for name, mb in kept.items()))
    return Figures(lines, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="per round")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    show(measure(chosen.runs, chosen.rounds))


if __name__ == "__main__":
    main()
