"""What grows with the number of runs that are kept: memory of each process, and NATS' files."""

import argparse
import asyncio

from end_to_end import submit, wait_for_completed
from installation import installation
from page import Figures, show, table

STEPS = 4


def measure(runs: int) -> Figures:
    """The first step is warm-up; growth is from there to the end."""
    rows, memory, disk = [], [], []
    with installation("fast") as whole:
        whole.start_worker("worker")
        for step in range(1, STEPS + 1):
            asyncio.run(submit(whole.port, runs, ["default"]))
            wait_for_completed(whole.url, step * runs)
            memory.append(whole.memory_mb())
            disk.append(whole.disk_bytes())
            sizes = (f"{mb:.1f} MB" for mb in memory[-1].values())
            rows.append((f"{step * runs:,}", *sizes, f"{disk[-1] / 1e6:.1f} MB"))
    grown = (STEPS - 1) * runs
    each = {name: (mb - memory[0][name]) / grown * 1000 for name, mb in memory[-1].items()}
    rows.append(
        (
            "for every 1,000 more",
            *(f"{mb:+.2f} MB" for mb in each.values()),
            f"{(disk[-1] - disk[0]) / grown / 1000:+.2f} MB",
        )
    )
    lines = table(("runs of three tasks", *memory[0], "NATS on disk"), rows)
    lines += ["", f"That is {(disk[-1] - disk[0]) / grown:,.0f} bytes on disk for every run."]
    return Figures(lines, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help=f"per step, of which there are {STEPS}")
    show(measure(parser.parse_args().runs))


if __name__ == "__main__":
    main()
