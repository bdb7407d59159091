"""What workers cost that have nothing to do: one, five, twenty of them."""

import argparse
import statistics
import time
from itertools import pairwise

from installation import Installation, installation
from page import Figures, show, table

MANY = (1, 5, 20)
SETTLE_SEC = 3.0


def one_size(whole: Installation, seconds: float) -> tuple[str, ...]:
    time.sleep(SETTLE_SEC)
    before = whole.cpu_seconds()
    time.sleep(seconds)
    after, memory = whole.cpu_seconds(), whole.memory_mb()
    used = {name: (after[name] - before[name]) / seconds for name in after}
    workers = [name for name in used if name.startswith("worker")]
    return (
        str(len(workers)),
        f"{statistics.fmean(used[name] for name in workers):.2%}",
        f"{statistics.fmean(memory[name] for name in workers):.0f} MB",
        f"{used['gateway']:.2%}",
        f"{used['nats']:.2%}",
    )


def measure(seconds: float, many: tuple[int, ...] = MANY) -> Figures:
    """With the executors of each: as many as the machine has CPUs."""
    rows: list[tuple[str, ...]] = []
    with installation("safe") as whole:
        for before, wanted in pairwise((0, *many)):
            for number in range(before, wanted):
                whole.start_worker(f"worker-{number}")
            rows.append(one_size(whole, seconds))
    head = ("idle workers", "CPU of one core, each", "memory, each", "CPU of the gateway", "CPU of NATS")
    lines = [*table(head, rows), "", f"Over {seconds:g} s. What a worker's processes share is counted once."]
    return Figures(lines, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--workers", type=int, action="append", help="several, ascending")
    chosen = parser.parse_args()
    show(measure(chosen.seconds, tuple(chosen.workers or MANY)))


if __name__ == "__main__":
    main()
